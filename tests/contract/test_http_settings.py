"""The `http` section of langgraph.json: disabled interfaces, the mount prefix, and access from browsers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.hosts import exchanges
from tests.contract.conftest import Api, MakeApp
from tests.contract.test_app import hello
from tests.support.played_app import Stage, serve
from web.gate.deployments import forget as forget_deployments

Settings = Callable[..., Stage]


@pytest.fixture
def having(api: Api, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Function that gives the deployment `chat` these settings, and an app that answers hello."""

    def have(*routes: str, openapi: Any = None, auth: Any = None, **http: Any) -> Stage:
        stage = Stage(hello)
        monkeypatch.setattr(exchanges, "open_exchange", stage.open_exchange)
        serve(api.deployment, *routes, http=http, openapi=openapi, auth=auth)
        forget_deployments()
        return stage

    return have


# Disabled interfaces


def test_an_interface_that_is_off_is_not_there(api: Api, having: Settings, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ("disable_assistants", ["POST /assistants/search", "GET /assistants/x", "PUT /assistants"], ["POST /threads/search"]),
        ("disable_threads", ["POST /threads", "POST /threads/search", "GET /threads/x/state"], ["POST /assistants/search"]),
        ("disable_threads", ["POST /threads/x/commands", "POST /threads/x/stream/events"], ["POST /runs/crons/search"]),
        ("disable_runs", ["POST /runs/wait", "GET /threads/x/runs", "POST /runs/crons/search"], ["POST /threads/search"]),
        ("disable_runs", ["POST /threads/x/commands", "POST /threads/x/stream/events"], ["POST /threads/search"]),
        ("disable_runs", ["GET /queue", "POST /webhooks/search", "POST /webhooks/x/retry"], ["POST /threads/search"]),
        ("disable_store", ["PUT /store/items", "POST /store/namespaces"], ["POST /threads/search"]),
        ("disable_mcp", ["POST /mcp"], ["POST /threads/search"]),
        ("disable_a2a", ["POST /a2a/agent", "GET /.well-known/agent-card.json?assistant_id=agent"], ["POST /threads/search"]),
        ("disable_ag_ui", ["POST /ag-ui/agent", "GET /ag-ui/agent?threadId=x", "GET /ag-ui/agent/capabilities"], ["POST /threads/search"]),
        ("disable_meta", ["GET /", "GET /info", "GET /metrics", "GET /docs", "GET /openapi.json"], ["GET /ok"]),
    ]  # fmt: skip
    for switch, off, on in rows:
        with subtests.test(switch=switch, off=off, on=on):
            having(**{switch: True})
            for asked in off:
                response = api.call(*asked.split(), body={})
                assert (response.status_code, response.json) == (404, {"detail": "Not Found"}), asked
            for asked in on:
                assert (
                    api.call(*asked.split(), body=None if asked.startswith("GET") else {}).status_code == 200
                ), asked


def test_a_page_that_is_off_is_missed_by_anybody_and_not_in_the_document(
    api: Api, anonymous: FlaskClient, having: Settings
) -> None:
    having(disable_meta=True)
    assert anonymous.get("/d/chat/info").status_code == 404
    assert anonymous.get("/d/chat/ok").status_code == 200
    assert anonymous.post("/d/chat/threads/search").status_code == 401
    having(disable_store=True, disable_a2a=True)
    paths: Any = api.get("/openapi.json").json["paths"]
    assert not [path for path in paths if path.startswith(("/store", "/a2a"))]
    assert "/threads" in paths


def test_the_app_may_have_what_is_off(anonymous: FlaskClient, having: Settings) -> None:
    having("GET /threads/{id}", disable_threads=True)
    assert anonymous.get("/d/chat/threads/x").data == b"hello"


# Mount prefix


def test_everything_moves_below_a_prefix(api: Api, having: Settings) -> None:
    stage = having("GET /hello", mount_prefix="/my/api")
    assert api.post("/my/api/threads/search").status_code == 200
    assert api.get("/my/api/ok").status_code == 200
    assert api.get("/ok").status_code == 200
    assert api.get("/my/api/hello").data == b"hello"
    assert (stage.last.head["path"], stage.last.head["root_path"]) == ("/hello", "/d/chat/my/api")
    for path in ("/threads/search", "/hello", "/my/apis/ok", "/my", "/info"):
        assert api.get(path).status_code == 404, path
    document: Any = api.get("/my/api/openapi.json").json
    assert document["servers"] == [{"url": "/d/chat/my/api"}]
    (record,) = api.client.get("/v2/deployments?name=chat").json["resources"]
    assert record["source_config"]["custom_url"].endswith("/d/chat/my/api")
    card: Any = api.get("/my/api/.well-known/agent-card.json?assistant_id=agent").json
    assert "/d/chat/my/api/a2a/" in card["url"]


def test_a_prefix_holds_at_the_deployments_own_root(app_with: MakeApp, having: Settings) -> None:
    stage = having("GET /hello", mount_prefix="/my")
    client = app_with(app_domain="apps.localhost").test_client()
    assert client.get("http://chat.apps.localhost/my/hello").data == b"hello"
    assert stage.last.head["root_path"] == "/my"
    assert client.get("http://chat.apps.localhost/hello", headers={"X-Api-Key": "x"}).status_code in (
        401,
        404,
    )


# Browsers

ASKS = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}


def preflight(client: FlaskClient, **headers: str) -> Any:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.options("/d/chat/threads/search", headers={**ASKS, **sent})


def test_origins_are_those_that_are_named(anonymous: FlaskClient, having: Settings) -> None:
    having(
        cors={
            "allow_origins": ["https://a.example"],
            "allow_origin_regex": r"https://[a-z]+\.b\.example",
            "allow_methods": ["GET", "POST"],
            "allow_headers": ["X-Mine"],
            "allow_credentials": True,
            "expose_headers": ["X-Shown"],
            "max_age": 5,
        }
    )
    allowed = preflight(anonymous, Access_Control_Request_Headers="x-mine, content-type")
    assert (allowed.status_code, allowed.text) == (200, "OK")
    found = {name: value for name, value in allowed.headers if name.lower().startswith("access-control")}
    assert found == {
        "Access-Control-Allow-Origin": "https://a.example",
        "Access-Control-Allow-Credentials": "true",
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": "Accept, Accept-Language, Content-Language, Content-Type, X-Mine",
        "Access-Control-Max-Age": "5",
    }
    assert preflight(anonymous, Origin="https://x.b.example").status_code == 200
    long = f"https://{'x' * 300}.b.example"
    assert preflight(anonymous, Origin=long).text == "Disallowed CORS origin", (
        "it would be matched for minutes"
    )
    refused = preflight(
        anonymous,
        Origin="https://c.example",
        Access_Control_Request_Method="PUT",
        Access_Control_Request_Headers="x-other",
    )
    assert (refused.status_code, refused.text) == (400, "Disallowed CORS origin, method, headers")
    assert "Access-Control-Allow-Origin" not in refused.headers


def test_an_answer_says_which_origin_may_read_it(api: Api, having: Settings) -> None:
    having("GET /hello", cors={"allow_origins": ["https://a.example"], "expose_headers": ["X-Shown"]})
    for path in ("/ok", "/hello", "/threads/x"):
        known = api.get(path, headers={"Origin": "https://a.example"}).headers
        assert known["Access-Control-Allow-Origin"] == "https://a.example"
        assert known["Access-Control-Expose-Headers"] == "X-Shown"
        assert "Origin" in known["Vary"]
        assert (
            "Access-Control-Allow-Origin"
            not in api.get(path, headers={"Origin": "https://b.example"}).headers
        )


def test_without_rules_of_its_own_any_origin_may_call(anonymous: FlaskClient, having: Settings) -> None:
    having("GET /hello")
    assert preflight(anonymous).status_code == 200
    response = anonymous.get("/d/chat/hello", headers={"Origin": "https://a.example"})
    assert response.headers["Access-Control-Allow-Origin"] == "*"


def test_any_origin_with_credentials_is_named(anonymous: FlaskClient, having: Settings) -> None:
    having(
        cors={
            "allow_origins": ["*"],
            "allow_credentials": True,
            "allow_methods": ["*"],
            "allow_headers": ["*"],
        }
    )
    allowed = preflight(anonymous, Access_Control_Request_Headers="x-any")
    assert allowed.headers["Access-Control-Allow-Origin"] == "https://a.example"
    assert allowed.headers["Access-Control-Allow-Headers"] == "x-any"
    assert "DELETE" in allowed.headers["Access-Control-Allow-Methods"]


# Headers


def test_a_run_has_the_headers_that_are_named_over_what_its_caller_configures(
    api: Api, having: Settings
) -> None:
    having(configurable_headers={"includes": ["x-*", "authorization"], "excludes": ["x-no-*"]})
    sent = {
        "X-Team": "red",
        "X-No-Team": "blue",
        "Authorization": "Bearer theirs",
        "X-Other": "ryd_12345678_secret",
        "Accept": "x",
    }
    body = {"assistant_id": "agent", "input": {}, "config": {"configurable": {"x-team": "mine", "other": 1}}}
    kwargs = api.post("/runs", body, headers=sent).json["kwargs"]
    assert kwargs["context"] == {"x-team": "mine", "other": 1}
    configurable = kwargs["config"]["configurable"]
    names = ("x-team", "authorization", "other", "x-no-team", "x-other", "x-api-key", "accept")
    assert {name: configurable[name] for name in names if name in configurable} == {
        "x-team": "red",
        "authorization": "Bearer theirs",
        "other": 1,
    }


def test_without_webhooks_none_is_taken(api: Api, having: Settings) -> None:
    having(disable_webhooks=True)
    body = {"assistant_id": "agent", "input": {}, "webhook": "https://example.com/called"}
    for path in ("/runs", "/runs/crons"):
        response = api.post(path, {**body, "schedule": "0 0 * * *"} if path.endswith("crons") else body)
        assert (response.status_code, response.json) == (
            422,
            {"detail": "webhook: webhooks are disabled for this deployment"},
        )


def test_headers_that_are_logged(api: Api, having: Settings, caplog: pytest.LogCaptureFixture) -> None:
    having(logging_headers={"includes": ["x-team"]})
    with caplog.at_level(logging.INFO, logger="web.http.headers"):
        api.get("/ok", headers={"X-Team": "red"})
    assert [record.getMessage() for record in caplog.records] == ["GET /d/chat/ok 200"]


# API document

APP_DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Desk", "version": "7"},
    "paths": {
        "/hello": {"get": {"responses": {"200": {"$ref": "#/components/responses/R"}}}},
        "/threads/{thread_id}": {"get": {"summary": "Mine", "responses": {}}},
    },
    "components": {
        "schemas": {"ThreadCreate": {"type": "string"}, "Own": {"$ref": "#/components/schemas/ThreadCreate"}},
        "responses": {"R": {"description": "r"}},
    },
    "tags": [{"name": "Desk"}],
}


def test_the_document_is_of_both(api: Api, having: Settings) -> None:
    before: Any = api.get("/openapi.json").json
    taken = "ThreadCreate" if "ThreadCreate" in before["components"]["schemas"] else None
    having("GET /hello", "GET /threads/{thread_id}", openapi=APP_DOCUMENT)
    found: Any = api.get("/openapi.json").json
    assert found["info"] == {"title": "Desk", "version": "7"}
    assert found["paths"]["/hello"]["get"]["security"] == []
    assert found["paths"]["/threads/{thread_id}"]["get"]["summary"] == "Mine"
    assert found["paths"]["/threads/{thread_id}"]["patch"] == before["paths"]["/threads/{thread_id}"]["patch"]
    schemas = found["components"]["schemas"]
    assert taken is not None
    assert schemas["ThreadCreate"] == before["components"]["schemas"]["ThreadCreate"]
    assert schemas["AppThreadCreate"] == {"type": "string"}
    assert schemas["Own"] == {"$ref": "#/components/schemas/AppThreadCreate"}
    assert found["security"] == before["security"]
    assert {"name": "Desk"} in found["tags"]


def test_what_authorization_says_of_itself_is_on_top(api: Api, having: Settings) -> None:
    openapi = {"securitySchemes": {"b": {"type": "http", "scheme": "bearer"}}, "security": [{"b": []}]}
    having(auth={"parameters": [], "handlers": [], "openapi": openapi})
    found: Any = api.client.application.test_client().get("/d/chat/openapi.json").json
    assert found["security"] == [{"b": []}]
    assert found["components"]["securitySchemes"] == openapi["securitySchemes"]
