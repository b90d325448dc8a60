"""`get_client()` without a URL in user code: requests leave through the socket, as the user of the current run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.authorizing import request
from tests.support.hosts import Exchange, HostProcess, Run, graph_host
from workers.graph_host import frames

PROJECT = """
import asyncio
from contextlib import asynccontextmanager
from typing import TypedDict
from langgraph.graph import StateGraph
import httpx
from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk import Auth, get_client, get_sync_client
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

client = get_client()
auth = Auth()

@auth.authenticate
async def who(path):
    if path == "/asks":
        return (await client.threads.get("t-who"))["owner"]
    return "ann"

@auth.on
async def may(ctx, value):
    value["found"] = await client.threads.get("t-may")

class S(TypedDict, total=False):
    seen: list

async def ask(state):
    return {"seen": [await client.threads.get("a b/c")]}

def ask_in_thread(state):
    async def threads():
        return await get_client(headers={"x-word": "w"}).threads.search(metadata={"a": 1})
    return {"seen": [asyncio.run(threads())]}

async def stream(state):
    seen = []
    async for part in get_client().runs.stream(None, "agent", input={}):
        print("seen", part.event)
        seen.append(part.data)
    return {"seen": seen}

async def fails(state):
    try:
        await client.threads.get("t")
    except Exception as error:
        return {"seen": [type(error).__name__, str(error)]}

async def sends(state):
    await client.store.put_item(["a"], key="k", value={"text": "x" * 150_000})
    return {"seen": ["sent"]}

async def leaves(state):
    async for part in client.runs.stream(None, "agent", input={}):
        return {"seen": [part.data]}

async def impatient(state):
    try:
        await get_client(timeout=0.2).threads.get("t")
    except Exception as error:
        return {"seen": [type(error).__name__]}

async def odd(state):
    seen = []
    for method in ("TRACE", "GET"):
        try:
            seen.append((await client.http.client.request(method, "/a/../b")).status_code)
        except Exception as error:
            seen.append(type(error).__name__)
    return {"seen": seen}

def elsewhere(state):
    seen = []
    def answer(request):
        seen.append(request.headers.get("x-runyard-parent-run"))
        return httpx.Response(200, json=[])
    sync, named = (get_sync_client(url="http://elsewhere", api_key="k") for _ in range(2))
    remote = RemoteGraph("agent", url="http://elsewhere", api_key="k").sync_client
    named.http.client.headers["X-Runyard-Parent-Run"] = "chosen"
    for each in (sync, remote, named):
        each.http.client._transport = httpx.MockTransport(answer)
        each.threads.search()
    async def ask():
        other = get_client(url="http://elsewhere", api_key="k")
        other.http.client._transport = httpx.MockTransport(answer)
        await other.threads.search()
    asyncio.run(ask())
    with httpx.Client(transport=httpx.MockTransport(answer)) as unknown:
        unknown.get("http://elsewhere")
    return {"seen": seen}

def graph(node):
    return StateGraph(S).add_node("node", node).set_entry_point("node").compile()

asks, in_thread, streams, fails = graph(ask), graph(ask_in_thread), graph(stream), graph(fails)
sends, leaves, impatient, odd = graph(sends), graph(leaves), graph(impatient), graph(odd)
elsewhere = graph(elsewhere)

early = []

@asynccontextmanager
async def lifespan(app):
    try:
        await client.threads.get("t")
    except Exception as error:
        early.append(str(error))
    yield

async def route(request):
    return JSONResponse([early, await client.threads.get("t-route")])

app = Starlette(routes=[Route("/route", route)], lifespan=lifespan)
"""
NAMES = ("asks", "in_thread", "streams", "fails", "sends", "leaves", "impatient", "odd", "elsewhere")
ANN = {"identity": "ann", "permissions": [], "org": "o1"}


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    directory = tmp_path_factory.mktemp("calling")
    Path(directory, "calls.py").write_text(PROJECT)
    Path(directory, "langgraph_api").mkdir()
    Path(directory, "langgraph_api", "__init__.py").touch()
    Path(directory, "langgraph_api", "server.py").write_text("raise SystemExit('it was loaded')\n")
    config: dict[str, Any] = {"auth": {"path": "./calls.py:auth"}, "http": {"app": "./calls.py:app"}}
    variables = {"LANGGRAPH_API_KEY": "of somebody else"}
    graphs = {name: f"./calls.py:{name}" for name in NAMES}
    with graph_host(directory, graphs, variables=variables, **config) as host:
        yield host


def begun(host: HostProcess, graph_id: str, user: dict[str, Any] | None = ANN) -> tuple[Run, Exchange]:
    """Start a run that calls its own deployment. Returns the run and its open exchange."""
    run = host.start(graph_id, {}, config={"configurable": {"langgraph_auth_user": user}})
    return run, host.wait_opened()


def reply(call: Exchange, document: Any, status: int = 200, kind: str = "application/json") -> None:
    head = {"status": status, "headers": [["content-type", kind]]}
    call.send(frames.HEAD, json.dumps(head).encode())
    call.send(frames.BODY, document if isinstance(document, bytes) else json.dumps(document).encode())
    call.send(frames.END)


def test_a_node_calls_for_the_user_of_its_run(calling: HostProcess) -> None:
    run, call = begun(calling, "asks")
    call.wait(frames.END)
    reply(call, {"thread_id": "t"})

    assert calling.wait_done(run).values == {"seen": [{"thread_id": "t"}]}
    assert (call.head["method"], call.head["path"], call.head["query"]) == ("GET", "/threads/a%20b%2Fc", "")
    assert call.head["user"] == ANN
    assert ["x-runyard-parent-run", str(run.id)] in call.head["headers"]
    names = {name for name, _ in call.head["headers"]}
    assert "user-agent" in names
    assert not names & {"x-api-key", "host", "accept-encoding"}
    assert "of somebody else" not in json.dumps(call.head)

    run, call = begun(calling, "asks", None)
    reply(call, {})

    assert call.head["user"] is None
    calling.wait_done(run)


def test_a_call_goes_below_the_path_that_everything_is_below(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(PROJECT)
    with graph_host(tmp_path, {"asks": "./calls.py:asks"}, http={"mount_prefix": "/my/api"}) as host:
        run, call = begun(host, "asks")
        call.wait(frames.END)
        assert call.head["path"] == "/my/api/threads/a%20b%2Fc"
        reply(call, {"thread_id": "t"})
        host.wait_done(run)


def test_clients_with_an_address_name_the_run_that_calls_and_nothing_else_does(calling: HostProcess) -> None:
    run = calling.start("elsewhere", {})
    calling.wait_done(run)

    assert run.values == {"seen": [str(run.id), str(run.id), "chosen", str(run.id), None]}


def test_a_node_in_a_thread_calls_from_a_loop_of_its_own(calling: HostProcess) -> None:
    run, call = begun(calling, "in_thread")
    call.wait(frames.END)
    reply(call, [{"thread_id": "t"}])

    assert calling.wait_done(run).values == {"seen": [[{"thread_id": "t"}]]}
    assert call.head["user"] == ANN
    assert ["x-word", "w"] in call.head["headers"]
    assert json.loads(call.body) == {"metadata": {"a": 1}, "limit": 10, "offset": 0}


def test_a_stream_is_read_as_it_comes(calling: HostProcess) -> None:
    run, call = begun(calling, "streams")
    call.wait(frames.END)
    head = {"status": 200, "headers": [["content-type", "text/event-stream"]]}
    call.send(frames.HEAD, json.dumps(head).encode())
    for number in range(3):
        call.send(frames.BODY, b'event: values\ndata: {"n": %d}\n\n' % number)
        calling.read_until(lambda number=number: len(run.logs) > number and call.credits > number)
    call.send(frames.END)

    assert calling.wait_done(run).values == {"seen": [{"n": 0}, {"n": 1}, {"n": 2}]}


def test_a_refusal_reaches_the_node_as_the_sdk_says_it(calling: HostProcess) -> None:
    run, call = begun(calling, "fails")
    reply(call, {"detail": "Forbidden"}, status=403)
    name, text = calling.wait_done(run).values["seen"]

    assert name == "PermissionDeniedError"
    assert "Forbidden" in text

    run, call = begun(calling, "odd")
    reply(call, {}, status=404)

    assert calling.wait_done(run).values == {"seen": ["UnsupportedProtocol", 404]}
    assert (call.head["method"], call.head["path"]) == ("GET", "/b")


@pytest.mark.parametrize("kind", [frames.FAILED, frames.CLOSE])
def test_a_call_that_cannot_be_made_is_a_connection_error(calling: HostProcess, kind: bytes) -> None:
    run, call = begun(calling, "fails")
    call.send(kind, b'{"message": "the service is not reached"}')
    name, text = calling.wait_done(run).values["seen"]

    assert "Connect" in name
    assert "the service is not reached" in text


def test_a_large_body_waits_for_credit_and_an_answer_before_its_end_counts(calling: HostProcess) -> None:
    run, call = begun(calling, "sends")
    call.wait(frames.END)
    reply(call, b"", status=204)

    assert calling.wait_done(run).values == {"seen": ["sent"]}
    assert [len(data) for kind, data in call.parts if kind == frames.BODY][:2] == [65536, 65536]
    assert len(json.loads(call.body)["value"]["text"]) == 150_000

    run, call = begun(calling, "sends")
    reply(call, {"detail": "too large"}, status=413)

    calling.wait_done(run)
    assert run.outcome["status"] == "error"
    assert "too large" in json.dumps(run.answer)


def test_a_call_is_closed_by_who_stops_reading_by_its_time_limit_and_with_its_run(
    calling: HostProcess,
) -> None:
    run, call = begun(calling, "leaves")
    head = {"status": 200, "headers": [["content-type", "text/event-stream"]]}
    call.send(frames.HEAD, json.dumps(head).encode())
    call.send(frames.BODY, b'event: values\ndata: {"n": 0}\n\n')
    calling.wait_done(run)
    call.wait(frames.CLOSE)

    assert run.values == {"seen": [{"n": 0}]}

    run, call = begun(calling, "impatient")
    call.wait(frames.CLOSE)

    assert calling.wait_done(run).values["seen"][0].endswith(("Timeout", "TimeoutError"))

    run, call = begun(calling, "asks")
    calling.cancel(run)
    call.wait(frames.CLOSE)
    calling.wait_done(run)

    assert run.outcome["status"] == "cancelled"


def test_a_route_calls_for_its_caller_and_a_lifespan_cannot_call(calling: HostProcess) -> None:
    got = calling.open("/route", user=ANN)
    call = calling.wait_opened()
    reply(call, {"thread_id": "t-route"})

    early, found = json.loads(got.wait_end().body)
    assert found == {"thread_id": "t-route"}
    assert call.head["user"] == ANN
    assert "x-runyard-parent-run" not in {name for name, _ in call.head["headers"]}, "no run calls"
    assert early == ["the deployment does not serve yet: it is being loaded"]


def test_a_handler_calls_for_whom_it_decides_and_who_is_being_found_out_for_nobody(
    calling: HostProcess,
) -> None:
    asks = [{"resource": "threads", "action": "read", "value": {}}]
    id = calling.ask({"op": "authorize", "user": ANN, "asks": asks})
    call = calling.wait_opened()
    reply(call, {"thread_id": "t-may"})

    (answer,) = calling.wait_answer(id)
    assert json.loads(answer)["granted"][0]["value"] == {"found": {"thread_id": "t-may"}}
    assert call.head["user"] == ANN

    id = calling.ask(request(path="/asks"))
    call = calling.wait_opened()
    reply(call, {"owner": "bob"})

    (answer,) = calling.wait_answer(id)
    assert json.loads(answer)["user"]["identity"] == "bob"
    assert call.head["user"] is None
