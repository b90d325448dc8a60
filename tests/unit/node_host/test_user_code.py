"""A JavaScript project's authorization, and the calls of its graphs to their own deployment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.authorizing import ask, request
from tests.support.hosts import Exchange, HostProcess
from tests.support.node_hosts import node_host
from tests.support.waiting import wait_until
from workers.graph_host import frames

GRAPHS = {name: f"./members.ts:{name}" for name in ("asks", "streams")}
AUTH = {"path": "./members.ts:auth"}
APP = {"app": "./members.ts:app"}
USER = {"identity": "ann", "permissions": ["read"], "display_name": "ann", "is_authenticated": True}


@pytest.fixture(scope="module")
def members(node_project: Path) -> Iterator[HostProcess]:
    with node_host(node_project, GRAPHS, auth=AUTH, http=APP) as host:
        assert "error" not in host.ready, host.ready
        yield host


def answer(host: HostProcess, document: dict[str, Any]) -> dict[str, Any]:
    (part,) = host.query(document)
    return json.loads(part)


def signed_in(host: HostProcess, token: str) -> dict[str, Any]:
    return answer(host, request(headers=[["authorization", token]]))


def test_it_describes_the_handlers_and_the_routes_of_an_app(node_project: Path) -> None:
    with node_host(node_project, GRAPHS, auth=AUTH, http=APP, inspect=True) as host:
        described = host.ready["user_code"]
    assert described["auth"] == {
        "parameters": ["request"],
        "handlers": [
            ["*", "*"], ["assistants", "read"], ["store", "*"], ["threads", "*"], ["threads", "create"],
            ["threads", "delete"],
        ],
    }  # fmt: skip
    assert described["app"]["middleware"] == [["guard", "/"]]
    assert described["app"]["routes"] == [
        {"path": "/words/{id}", "methods": ["GET"], "kind": "http"},
        {"path": "/echo", "methods": ["POST"], "kind": "http"},
    ]


def test_authenticate_answers_with_a_user_or_a_refusal(members: HostProcess) -> None:
    assert signed_in(members, "ann") == {"user": {**USER, "role": "GET"}}
    assert signed_in(members, "text")["user"]["identity"] == "text"
    assert signed_in(members, "other") == {
        "denied": {"status": 401, "detail": "no token", "headers": {"www-authenticate": "Bearer"}}
    }
    assert signed_in(members, "breaks") == {"failed": "authenticate raised TypeError"}
    assert signed_in(members, "reads") == {"failed": "authenticate raised TypeError"}
    assert "an object with 'identity'" in signed_in(members, "nobody")["failed"]


def test_the_most_specific_handler_decides(members: HostProcess) -> None:
    created = answer(members, ask("threads", "create", {"metadata": {"title": "x"}}, USER))
    read = answer(members, ask("threads", "read", {"thread_id": "t"}, USER))

    owned = {"owner": "ann"}
    assert created == {"granted": [{"value": {"metadata": {"title": "x", **owned}}, "filter": owned}]}
    assert read == {"granted": [{"value": {"thread_id": "t"}, "filter": owned}]}
    assert answer(members, ask("crons", "read", {}, USER))["denied"]["status"] == 403
    assert answer(members, ask("threads", "delete", {}, USER))["denied"] == {
        "status": 409, "detail": "kept", "headers": {},
    }  # fmt: skip
    assert "value.namespace" in answer(members, ask("store", "get", {}, USER))["failed"]
    assert "is no JSON" in answer(members, ask("assistants", "read", {}, USER))["failed"]


def test_an_export_that_is_no_auth_is_refused(node_project: Path) -> None:
    with node_host(node_project, GRAPHS, auth={"path": "./members.ts:no_auth"}) as host:
        assert host.ready["error"]["message"].startswith("auth.path: ./members.ts:no_auth is no Auth")


def respond(exchange: Exchange, body: bytes, content_type: str) -> None:
    head = {"status": 200, "headers": [["content-type", content_type]]}
    exchange.send(frames.HEAD, json.dumps(head).encode())
    exchange.send(frames.BODY, body)
    exchange.send(frames.END)


def test_a_client_without_address_calls_the_deployment_as_the_runs_user(members: HostProcess) -> None:
    configurable = {"langgraph_auth_user": USER}
    run = members.start("asks", {"seen": None}, config={"configurable": configurable})
    exchange = members.wait_opened()

    assert exchange.head["method"] == "GET"
    assert exchange.head["path"] == "/threads/a b/c" or exchange.head["path"].startswith("/threads/a")
    assert exchange.head["user"] == USER
    headers = dict(map(tuple, exchange.head["headers"]))
    assert headers["x-runyard-parent-run"] == str(run.id)
    assert "x-api-key" not in headers
    respond(exchange, b'{"thread_id": "t"}', "application/json")
    members.wait_done(run)

    assert run.values["seen"] == {"thread_id": "t"}


def test_an_answer_is_read_as_it_arrives(members: HostProcess) -> None:
    run = members.start("streams", {"seen": None}, stream_mode=["custom"])
    exchange = members.wait_opened()
    exchange.wait(frames.END)
    assert json.loads(exchange.body)["assistant_id"] == "agent"

    head = {"status": 200, "headers": [["content-type", "text/event-stream"]]}
    exchange.send(frames.HEAD, json.dumps(head).encode())
    exchange.send(frames.BODY, b'event: one\ndata: {"n": 1}\n\n')
    members.read_until(lambda: run.named("custom") == ["one"])
    exchange.send(frames.BODY, b'event: two\ndata: {"n": 2}\n\n')
    exchange.send(frames.END)
    members.wait_done(run)

    assert run.values["seen"] == [{"n": 1}, {"n": 2}]
    assert exchange.credits >= 1


def test_a_refused_request_fails_in_the_graph(members: HostProcess) -> None:
    run = members.start("asks", {"seen": None})
    exchange = members.wait_opened()
    exchange.send(frames.HEAD, b'{"status": 404, "headers": []}')
    exchange.send(frames.END)
    members.wait_done(run)

    assert run.outcome["status"] == "error"
    assert "404" in run.outcome["error"]["message"]


# The project's app


def test_an_app_of_hono_routes_by_the_path_below_its_deployment(node_project: Path) -> None:
    with node_host(node_project, GRAPHS, http={"app": "./pages.ts:app"}) as host:
        assert "error" not in host.ready, host.ready

        def answer(path: str, method: str = "GET") -> tuple[int, bytes]:
            headers = [["host", "a.example"], ["x-forwarded-prefix", "/d/words"]]
            exchange = host.request(path, method=method, headers=headers, root_path="/d/words")
            return exchange.document(frames.HEAD)["status"], exchange.body

        assert answer("/words/7") == (200, b'{"id":"7"}')
        assert answer("/words/x")[0] == 404
        assert answer("/private/page") == (200, b"http://a.example/private/page /d/words")
        assert answer("/private/page", "POST")[0] == 201
        assert answer("/files/a/b") == (200, b"/files/a/b")
        assert answer("/optional") == (200, b"nobody")
        assert answer("/mounted/a") == (200, b"mounted")
        assert answer("/other/a/b") == (200, b"/b")


def test_routes_of_hono_are_in_the_api_document(node_project: Path) -> None:
    with node_host(node_project, GRAPHS, http={"app": "./pages.ts:app"}, inspect=True) as host:
        app = host.ready["user_code"]["app"]
        paths = app["openapi"]["paths"]
        assert app["middleware"] == [["logger", "/private"]]
        assert {path: sorted(item) for path, item in paths.items()} == {
            "/words/{id}": ["get"],
            "/private/page": ["get", "post"],
            "/files/{rest}": ["delete", "get", "head", "options", "patch", "post", "put"],
            "/optional": ["get"],
            "/optional/{name}": ["get"],
        }
        assert paths["/words/{id}"]["get"]["parameters"][0]["name"] == "id"
        by_kind = {
            kind: {route["path"] for route in app["routes"] if route["kind"] == kind}
            for kind in ("http", "mount")
        }
        assert by_kind == {
            "http": {*paths} - {"/files/{rest}"} | {"/files/{rest:path}"},
            "mount": {"/mounted", "/other/{place}"},
        }
    with node_host(node_project, GRAPHS, http={"app": "./pages.ts:described"}, inspect=True) as host:
        document = host.ready["user_code"]["app"]["openapi"]
        assert document["paths"]["/hello/{name}"]["get"]["responses"]["200"]["description"] == "A greeting"
        assert "info" not in document


APPS = {"/dashboard": "./pages.ts:dashboard", "/dashboard/app": "./members.ts:app"}


def test_mounted_apps_answer_all_paths_below_theirs(node_project: Path) -> None:
    for http in ({"apps": APPS}, {"app": "./pages.ts:app", "apps": APPS}):
        with node_host(node_project, GRAPHS, http=http) as host:
            assert "error" not in host.ready, host.ready

            def answer(path: str, host: HostProcess = host) -> tuple[int, str]:
                headers = [["host", "a.example"], ["x-forwarded-prefix", "/d/words"]]
                exchange = host.request(path, headers=headers, root_path="/d/words")
                return exchange.document(frames.HEAD)["status"], exchange.body.decode()

            assert answer("/dashboard") == answer("/dashboard/") == (200, "dashboard")
            assert answer("/dashboard/metrics/a") == (200, "/metrics/a /d/words/dashboard")
            assert answer("/dashboard/x") == (404, "no such metric")
            assert json.loads(answer("/dashboard/app/aborted")[1])["host"] == "a.example"
            assert answer("/dashboards") == (404, "404 Not Found")
            assert answer("/words/7")[0] == (200 if "app" in http else 404)


def test_mounted_apps_are_described_with_their_paths(node_project: Path) -> None:
    http = {"app": "./pages.ts:words", "apps": APPS}
    with node_host(node_project, GRAPHS, http=http, inspect=True) as host:
        app = host.ready["user_code"]["app"]
        assert app["routes"] == [
            {"path": "/dashboard", "methods": [], "kind": "mount"},
            {"path": "/dashboard/app", "methods": [], "kind": "mount"},
            {"path": "/{id}", "methods": ["GET"], "kind": "http"},
        ]
        assert app["middleware"] == [], "that of mounted apps is for their own paths"
        assert app["openapi"]["paths"].keys() == {
            *("/{id}", "/dashboard", "/dashboard/metrics/{name}"),
            *("/dashboard/app/words/{id}", "/dashboard/app/echo"),
        }
    with node_host(node_project, GRAPHS, http={"apps": {"/x": "./members.ts:no_auth"}}) as host:
        assert host.ready["error"]["message"] == "http.apps./x: ./members.ts:no_auth has no method 'fetch'"


def test_an_app_of_hono_with_its_own_not_found_answers_all_paths(node_project: Path) -> None:
    with node_host(node_project, GRAPHS, http={"app": "./pages.ts:answering"}, inspect=True) as host:
        app = host.ready["user_code"]["app"]
        assert [route["path"] for route in app["routes"]] == ["/hello", ""]
        assert app["middleware"] == [], "the service applies settings of CORS for all origins itself"
        assert app["cors"] == {
            "allow_origins": ["*"],
            "allow_methods": ["GET"],
            "allow_headers": ["*"],
            "expose_headers": [],
            "allow_credentials": False,
            "max_age": 60,
        }
    with node_host(node_project, GRAPHS, http={"app": "./pages.ts:guarded"}, inspect=True) as host:
        app = host.ready["user_code"]["app"]
        assert (app["middleware"], app["cors"]) == ([["cors", "/"]], None)
        assert [route["path"] for route in app["routes"]] == ["/hello"]


def test_an_app_answers_requests_with_bodies_of_any_size(members: HostProcess) -> None:
    body = b"x" * 60_000
    exchange = members.request("/echo", body, method="POST", query="a=1", root_path="/d/app")

    head = exchange.document(frames.HEAD)
    assert head["status"] == 201
    assert ["x-search", "?a=1"] in head["headers"]
    assert exchange.body == body


def test_an_app_that_fails_is_logged_and_answers_nothing(members: HostProcess) -> None:
    exchange = members.request("/nowhere")

    assert exchange.document(frames.FAILED) == {"message": "the project's app failed"}
    assert any(
        "http.app failed at GET /nowhere\nTypeError: no such page" in log["message"] for log in members.logs
    )
    socket = members.open(type="websocket").wait_end()
    assert "no WebSockets" in socket.document(frames.FAILED)["message"]


def test_a_client_that_disconnects_ends_the_response(members: HostProcess) -> None:
    exchange = members.open("/endless")
    exchange.gives_credit = False
    members.read_until(lambda: len(exchange.body) >= 16 * 34_000)
    exchange.send(frames.CLOSE, b"{}")

    wait_until(lambda: json.loads(members.request("/aborted").body) == {"aborted": 1, "host": "service.test"})
