"""A project with its own authorization and its own routes, used by two users on the whole platform."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.support.stack import Stack
from tests.support.waiting import wait_until

GUARDED = Path(__file__).parent.parent / "projects" / "guarded"
STUDIO = {"x-auth-scheme": "langsmith"}
UNKNOWN = str(uuid4())


class Site:
    """A deployment, as callers without an API key of the platform reach it."""

    def __init__(self, stack: Stack, name: str) -> None:
        self.name = name
        self.url = f"{stack.url}/d/{name}"

    def sdk(self, user: str) -> SyncLangGraphClient:
        return get_sync_client(url=self.url, api_key=None, headers=token(user))

    def http(self, user: str | None = None, **headers: str) -> httpx.Client:
        base = f"{self.url}/"
        return httpx.Client(base_url=base, headers={**(token(user) if user else {}), **headers}, timeout=60)

    def socket(self, path: str, user: str | None = None) -> Any:
        url = self.url.replace("http", "ws", 1)
        return connect(f"{url}{path}", additional_headers=token(user) if user else {})


def token(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {user}-token"}


@pytest.fixture(scope="module")
def site(stack: Stack) -> Site:
    return Site(stack, stack.deploy(GUARDED, name="guarded"))


@pytest.fixture
def ada(site: Site) -> SyncLangGraphClient:
    return site.sdk("ada")


@pytest.fixture
def bob(site: Site) -> SyncLangGraphClient:
    return site.sdk("bob")


# Authentication


def test_who_calls_is_for_the_project_to_say(site: Site, ada: SyncLangGraphClient) -> None:
    with site.http() as nobody:
        refused = nobody.post("threads", json={})
        assert (refused.status_code, refused.json()) == (401, {"detail": "Who are you?"})
        assert refused.headers["www-authenticate"] == "Bearer"
        assert nobody.get("no/such/path").status_code == 401, "before it is said to be unknown"
        assert nobody.get("ok").status_code == nobody.get("info").status_code == 200
    with site.http("ada") as known:
        assert known.get("no/such/path").status_code == 404
    assert ada.threads.create()["metadata"] == {"owner": "ada"}


def test_clients_of_mcp_learn_where_to_sign_in_and_which_scope_they_lack(stack: Stack, site: Site) -> None:
    path = f"/.well-known/oauth-protected-resource/d/{site.name}/mcp"
    described = httpx.get(f"{stack.url}{path}")
    pointer = f'resource_metadata="{stack.url}{path}", scope="run"'
    assert described.json() == {
        "resource": f"{site.url}/mcp",
        "authorization_servers": ["https://login.example/team"],
        "scopes_supported": ["run"],
        "bearer_methods_supported": ["header"],
    }
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "desk", "arguments": {}}}
    rows: list[tuple[str | None, int, str | None]] = [
        (None, 401, f"Bearer {pointer}"),
        ("eve", 403, f'Bearer error="insufficient_scope", {pointer}'),
        ("ada", 200, None),
    ]
    for user, status, challenge in rows:
        with site.http(user, Accept="application/json, text/event-stream") as client:
            answer = client.post("mcp", json=call)
        assert (user, answer.status_code, answer.headers.get("www-authenticate")) == (user, status, challenge)


def test_a_graph_learns_who_asks_whatever_they_say(ada: SyncLangGraphClient) -> None:
    thread_id = ada.threads.create()["thread_id"]
    lies = {"langgraph_auth_user": {"identity": "bob"}, "langgraph_auth_user_id": "bob", "user_id": "bob"}

    values: Any = ada.runs.wait(thread_id, "desk", input={}, config={"configurable": lies})

    assert values["who"] == {
        "identity": "ada",
        "team": "engines",
        "id": "ada",
        "permissions": ["run"],
        "server": "ada",
        "headers": {},
    }
    (run,) = ada.runs.list(thread_id)
    assert run["metadata"]["owner"] == "ada"
    assert run["kwargs"]["config"]["configurable"]["langgraph_auth_user"]["identity"] == "ada"  # type: ignore[typeddict-item]


def test_headers_reach_a_graph_as_far_as_the_project_says(site: Site) -> None:
    with site.http("ada", **{"X-Desk-Colour": "blue", "X-Desk-Secret": "no", "X-Other": "no"}) as http:
        values = http.post("runs/wait", json={"assistant_id": "desk", "input": {}}).json()

    assert values["who"]["headers"] == {"x-desk-colour": "blue"}


# Ownership of resources


def test_what_is_another_s_is_as_if_it_were_not_there(
    site: Site, ada: SyncLangGraphClient, bob: SyncLangGraphClient
) -> None:
    """The project's handlers decide; tests/contract has every route with handlers that filter and refuse."""
    thread_id = ada.threads.create(metadata={"title": "mine"})["thread_id"]
    run_id = ada.runs.create(thread_id, "waits", input={})["run_id"]
    assistant_id = ada.assistants.create("desk", name="mine")["assistant_id"]

    with site.http("bob") as http:
        for path in ("", "/state", f"/runs/{run_id}", "/stream"):
            foreign, unknown = (http.get(f"threads/{id}{path}") for id in (thread_id, UNKNOWN))
            assert foreign.status_code == unknown.status_code == 404
            assert foreign.text.replace(thread_id, UNKNOWN) == unknown.text, path
    for refused in (
        lambda: bob.runs.wait(thread_id, "desk", input={}),
        lambda: bob.runs.wait(None, assistant_id, input={}),
        lambda: bob.runs.cancel(thread_id, run_id),
        lambda: bob.assistants.delete(assistant_id),
    ):
        with pytest.raises(httpx.HTTPStatusError) as error:
            refused()
        assert error.value.response.status_code == 404
    assert bob.threads.search(metadata={"title": "mine"}) == []
    assert ada.threads.count(metadata={"title": "mine"}) == 1
    assert ada.runs.get(thread_id, run_id)["status"] in ("pending", "running")
    ada.runs.cancel(thread_id, run_id, wait=True)
    ada.assistants.delete(assistant_id)


def test_who_lacks_the_permission_makes_no_run(site: Site) -> None:
    eve = site.sdk("eve")
    thread_id = eve.threads.create()["thread_id"]
    with pytest.raises(httpx.HTTPStatusError) as error:
        eve.runs.wait(thread_id, "desk", input={})
    assert error.value.response.status_code == 403
    assert eve.runs.list(thread_id) == []


def test_parts_of_the_store_never_meet(ada: SyncLangGraphClient, bob: SyncLangGraphClient) -> None:
    for client, name in ((ada, "ada"), (bob, "bob")):
        client.store.put_item(["notes"], "one", {"by": name})
    for client, name in ((ada, "ada"), (bob, "bob")):
        assert [item["value"] for item in client.store.search_items(["notes"])["items"]] == [{"by": name}]
        assert {space[0] for space in client.store.list_namespaces()["namespaces"]} == {name}


def test_a_graph_calls_its_deployment_as_its_user(ada: SyncLangGraphClient, bob: SyncLangGraphClient) -> None:
    theirs = bob.threads.create()["thread_id"]
    thread_id = ada.threads.create()["thread_id"]

    values: Any = ada.runs.wait(thread_id, "desk", input={"wish": "call"})

    assert thread_id in values["threads"]
    assert theirs not in values["threads"]
    (made,) = (one for one in ada.threads.search(metadata={"by": "desk"}))
    assert made["thread_id"] in values["threads"]
    assert made["metadata"]["owner"] == "ada"
    assert values["error"] == "NotFoundError"


def test_a_stream_is_its_maker_s(site: Site, ada: SyncLangGraphClient) -> None:
    thread_id = ada.threads.create()["thread_id"]
    question = {"messages": [{"role": "user", "content": "hello"}]}

    parts = list(ada.runs.stream(thread_id, "talks", input=question, stream_mode="messages-tuple"))

    words = [part.data[0]["content"] for part in parts if part.event == "messages"]
    assert "".join(words) == "One word after another."
    assert len(words) > 4


# Callers that manage the deployment


def test_studio_needs_a_key_of_the_organization(stack: Stack, site: Site, ada: SyncLangGraphClient) -> None:
    thread_id = ada.threads.create()["thread_id"]
    made = stack.client.post("/v2/organizations", json={"name": f"guests-{uuid4().hex[:6]}"}).json()
    body = {"name": "guest", "role": "admin"}
    theirs = stack.client.post("/v2/keys", json=body, headers={"X-Tenant-Id": made["id"]}).json()["key"]

    def status(**headers: str) -> int:
        with site.http(**headers) as http:
            return http.get(f"threads/{thread_id}").status_code

    assert status(**STUDIO) == 401
    assert status(**STUDIO, **{"x-api-key": stack.api_key}) == 200, "it sees everybody's"
    assert status(**{"x-api-key": stack.api_key}) == 401, "a key alone is an ordinary request"
    assert status(**STUDIO, **{"x-api-key": theirs}) in (401, 404)


def test_the_command_line_comes_as_studio(stack: Stack, site: Site, ada: SyncLangGraphClient) -> None:
    thread_id = ada.threads.create()["thread_id"]

    listed = stack.runyard("threads", "list", "-n", site.name, "--json")
    ran = stack.runyard("run", site.name, '{"wish": "x"}', "--assistant", "desk")

    assert thread_id in listed.stdout, listed.stderr
    assert ran.returncode == 0, ran.stderr
    assert "langgraph-studio-user" in ran.stdout


# Crons


def test_a_cron_s_runs_are_its_maker_s(ada: SyncLangGraphClient, bob: SyncLangGraphClient) -> None:
    thread_id = ada.threads.create()["thread_id"]
    cron: Any = ada.crons.create_for_thread(thread_id, "desk", schedule="* * * * * *", input={})
    try:
        wait_until(lambda: ada.threads.get(thread_id)["values"], 30, what="the cron to fire")
    finally:
        ada.crons.delete(cron["cron_id"])

    who: Any = (ada.threads.get(thread_id)["values"] or {})["who"]  # type: ignore[index]
    assert (who["identity"], who["team"], who["permissions"]) == ("ada", "engines", ["run"])
    with pytest.raises(httpx.HTTPStatusError):
        bob.threads.get(thread_id)


# The project's own routes


def test_the_app_s_routes_are_asked_about_where_the_project_wants_it(site: Site) -> None:
    with site.http() as nobody, site.http("ada") as http:
        assert nobody.get("hello").status_code == 401
        answer = http.get("hello/you", params=[("a", "1"), ("a", "2")], headers={"x-api-key": "ryd_none"})
        found = answer.json()
        assert (found["greeting"], found["name"], found["user"]) == ("Good day", "you", "ada")
        assert found["query"] == [["a", "1"], ["a", "2"]]
        assert (found["keys"], found["key_seen"]) == ([], False), "no key of the platform is within reach"
        assert answer.headers["x-desk"] == "front"
        assert http.get("queue").json() == {"covered": True}, "the app wins"
        assert http.get("files/a/b.txt").text == "a/b.txt"
        failed = http.get("fails")
        assert (failed.status_code, failed.text) == (500, "Internal Server Error")
        assert http.get("upload").status_code == 405


def test_its_lifespan_is_entered_before_graphs_run(site: Site, ada: SyncLangGraphClient) -> None:
    values: Any = ada.runs.wait(None, "desk", input={})
    assert values["opened"] == ["doors"]


def test_an_answer_is_passed_on_as_it_comes_and_a_client_may_leave(site: Site) -> None:
    with site.http("ada") as http, site.http("ada") as other:
        with http.stream("GET", "steps?count=600") as answer:
            lines = answer.iter_lines()
            assert [next(lines) for _ in range(3)] == ["0", "1", "2"]
            assert "steps ended" not in other.get("seen").json(), "it is still going on"
        wait_until(lambda: "steps ended" in other.get("seen").json(), what="the app to notice")


def test_sixteen_mebibytes_arrive_whole(site: Site) -> None:
    block = hashlib.sha256(b"block").digest() * 2048  # 64 KiB

    def body() -> Iterator[bytes]:
        for _ in range(256):
            yield block

    with site.http("ada") as http:
        answer = http.post("upload", content=body())

    digest = hashlib.sha256(block * 256).hexdigest()
    assert answer.json() == {"bytes": 16 * 2**20, "sha256": digest}


def test_a_websocket_is_the_user_s(site: Site) -> None:
    with pytest.raises(InvalidStatus) as refused:
        site.socket("/parrot")
    assert refused.value.response.status_code == 401

    with site.socket("/parrot", "bob") as socket:
        assert json.loads(socket.recv(20)) == {"user": "bob"}
        socket.send("hello")
        assert socket.recv(20) == "HELLO"
        socket.send("leave")
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(20)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4321, "as you wish")


def test_both_documents_are_one(site: Site) -> None:
    with site.http() as nobody:
        document = nobody.get("openapi.json").json()
    assert "/threads/{thread_id}" in document["paths"]
    assert document["components"]["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}
    assert {"bearer": []} in document["security"]


@pytest.fixture(scope="module")
def office(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An app without authorization of its own, under a prefix."""
    folder = tmp_path_factory.mktemp("office")
    shutil.copytree(GUARDED, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(GUARDED / "open.json", folder / "langgraph.json")
    return Site(stack, stack.deploy(folder, name="office"))


def test_an_app_alone_moves_under_its_prefix_and_switches_parts_off(stack: Stack, office: Site) -> None:
    keyed = {"x-api-key": stack.api_key}

    with office.http() as nobody, office.http(**keyed) as http:
        found = nobody.get("office/hello").json()
        assert (found["user"], found["root_path"].endswith("/office")) == (None, True)
        assert http.get("hello").status_code == 404
        assert nobody.get("ok").status_code == nobody.get("office/ok").status_code == 200
        assert nobody.post("office/threads", json={}).status_code == 401, "keys are the platform's here"
        assert http.post("office/threads", json={}).status_code == 200
        assert http.post("threads", json={}).status_code == 404
        assert (
            http.put("office/store/items", json={"namespace": ["a"], "key": "b", "value": {}}).status_code
            == 404
        )
        assert http.get("office/info").status_code == 404
        moved = nobody.get("office/moved")
        assert (moved.status_code, moved.headers["location"]) == (307, "/hello")
        assert f"path=/d/{office.name}" in moved.headers["set-cookie"].lower()


def test_what_it_says_to_browsers_replaces_the_default(office: Site) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}

    with office.http() as http:
        allowed = http.options("office/threads", headers={"Origin": "https://page.example", **asked})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://page.example"
        assert allowed.headers["access-control-allow-credentials"] == "true"
        assert allowed.headers["access-control-max-age"] == "77"
        refused = http.options("office/threads", headers={"Origin": "https://other.example", **asked})
        assert refused.status_code == 400
        simple = http.get("office/hello", headers={"Origin": "https://other.example"})
        assert simple.status_code == 200
        assert "access-control-allow-origin" not in simple.headers


def test_no_credential_is_written_down(stack: Stack, site: Site, ada: SyncLangGraphClient) -> None:
    ada.runs.wait(None, "desk", input={})
    with site.http("ada") as http:
        http.get("fails")
    id = stack.record(site.name)["id"]

    def deploy_log() -> str:
        return stack.client.post(f"/v1/projects/{id}/deploy_logs", json={}).text

    wait_until(lambda: "ValueError" in deploy_log(), what="the route's traceback in the log")
    assert "ada-token" not in deploy_log()
    assert "ada-token" not in stack.log.read_text()
