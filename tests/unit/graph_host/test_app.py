"""A project's ASGI app in its host: lifespan, requests and WebSockets in parts, and error handling."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import HostProcess, graph_host
from tests.support.waiting import wait_until
from workers.graph_host import frames

PROJECT = """
import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypedDict
from langgraph.graph import StateGraph
from starlette.applications import Starlette
from starlette.authentication import requires
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute

happened = []

def note(word):
    happened.append(word)
    with open("happened", "a") as file:
        file.write(word + "\\n")

@asynccontextmanager
async def lifespan(app):
    note("entered")
    app.state.pool = "pool"
    yield {"yielded": "state"}
    note("left")

async def show(request):
    return JSONResponse({
        "method": request.method, "path": request.url.path, "url": str(request.url), "query": dict(request.query_params),
        "params": request.path_params, "header": request.headers.get("x-word"), "client": list(request.client),
        "pool": request.app.state.pool, "yielded": request.state.yielded, "root_path": request.scope["root_path"],
    }, status_code=201, headers={"x-mark": "é"})

async def echo(request):
    return Response(await request.body())

async def count(request):
    sizes = [len(part) async for part in request.stream()]
    return JSONResponse({"sizes": [size for size in sizes if size]})

async def hold(request):
    await asyncio.Event().wait()

async def large(request):
    return Response(b"x" * 200_000)

async def flood(request):
    async def parts():
        while True:
            note("part")
            yield b"more "
    return StreamingResponse(parts())

async def wait(request):
    note("waiting")
    try:
        while not await request.is_disconnected():
            await asyncio.sleep(0.01)
        note("client gone")
    finally:
        note("wait over")
    return PlainTextResponse("nobody")

async def stubborn(request):
    note("stubborn")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note("cancelled")
        raise

async def fail(request):
    raise ValueError("a secret")

async def breaks(request):
    async def parts():
        yield b"one"
        raise ValueError("a secret")
    return StreamingResponse(parts())

async def who(request):
    user = request.user
    return JSONResponse([user.identity, user["org"], user.is_authenticated, request.auth.scopes])

async def nobody(request):
    return JSONResponse({"has_user": "user" in request.scope, "has_auth": "auth" in request.scope})

@requires("write")
async def writes(request):
    return PlainTextResponse("written")

async def later(request):
    async def work():
        await asyncio.sleep(0.05)
        note("background done")
    return PlainTextResponse("soon", background=BackgroundTask(work))

async def talk(socket):
    await socket.accept(subprotocol=(socket.scope["subprotocols"] or [None])[0], headers=[(b"x-mark", b"1")])
    try:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                note(f"gone {message['code']}")
                return
            if message.get("text") == "bye":
                await socket.close(4001, "enough")
                return
            if message.get("text") == "fail":
                raise ValueError("a secret")
            if message.get("text") == "large":
                await socket.send_text("x" * 1_048_577)
            if message.get("text") is not None:
                await socket.send_text(message["text"].upper())
            else:
                await socket.send_bytes(message["bytes"][::-1])
    finally:
        note("talk over")

async def refuses(socket):
    await socket.close(4003, "not you")

async def brief(socket):
    await socket.accept()

async def pour(socket):
    await socket.accept()
    try:
        while True:
            await socket.send_text("more")
    finally:
        note("pour over")

class S(TypedDict, total=False):
    seen: list

def look(state):
    return {"seen": [happened[0], app.state.pool]}

graph = StateGraph(S).add_node("look", look).set_entry_point("look").compile()
names = [echo, count, hold, large, flood, wait, stubborn, fail, breaks, who, nobody, writes, later]
app = Starlette(
    routes=[Route("/show/{name}", show, methods=["GET", "POST"]), WebSocketRoute("/talk", talk),
            WebSocketRoute("/refuses", refuses), WebSocketRoute("/brief", brief),
            WebSocketRoute("/pour", pour)]
    + [Route("/" + each.__name__, each, methods=["GET", "POST"]) for each in names],
    lifespan=lifespan,
)

async def bare(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": str(scope["type"]).encode()})

async def silent(scope, receive, send):
    assert scope["type"] == "http"

@asynccontextmanager
async def broken(app):
    raise RuntimeError("no database today")
    yield

cannot_start = Starlette(lifespan=broken)

@asynccontextmanager
async def endless(app):
    yield
    await asyncio.Event().wait()

cannot_stop = Starlette(lifespan=endless)
"""
USER = {
    "identity": "ann",
    "is_authenticated": True,
    "display_name": "Ann",
    "permissions": ["read"],
    "org": "o1",
}


def started(directory: Path, app: str = "app") -> Any:
    (directory / "site.py").write_text(PROJECT)
    return graph_host(directory, {"g": "./site.py:graph"}, http={"app": f"./site.py:{app}"})


def happened(directory: Path) -> list[str]:
    return (directory / "happened").read_text().split("\n")[:-1]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="module")
def site(home: Path) -> Iterator[HostProcess]:
    with started(home) as host:
        yield host


# Requests


def test_a_request_and_its_answer_go_in_parts(site: HostProcess) -> None:
    got = site.request(
        "/show/a b",
        method="POST",
        raw_path="/show/a%20b",
        query="x=1",
        headers=[["host", "service.test"], ["X-Word", "é"]],
        root_path="/d/app",
    )

    assert got.kinds == [frames.HEAD, frames.BODY, frames.END]
    head = got.document(frames.HEAD)
    assert head["status"] == 201
    assert ["x-mark", "é"] in head["headers"]
    assert ["content-type", "application/json"] in head["headers"]
    assert json.loads(got.body) == {
        "method": "POST",
        "path": "/d/app/show/a b",
        "url": "http://service.test/d/app/show/a b?x=1",
        "query": {"x": "1"},
        "params": {"name": "a b"},
        "header": "é",
        "client": ["10.0.0.1", 5000],
        "pool": "pool",
        "yielded": "state",
        "root_path": "/d/app",
    }


def test_a_body_comes_whole_and_a_large_answer_leaves_in_parts(site: HostProcess) -> None:
    assert site.request("/echo", b"hello", method="POST").body == b"hello"
    got = site.request("/large")

    assert [len(data) for kind, data in got.parts if kind == frames.BODY] == [65536, 65536, 65536, 3392]


def test_an_app_gives_credit_for_what_it_has_read(site: HostProcess) -> None:
    ignoring = site.open("/hold", b"a" * 10, is_whole=False, method="POST")
    reading = site.open("/count", is_whole=False, method="POST")
    for _ in range(16):
        reading.send(frames.BODY, b"b" * 7)
    site.read_until(lambda: reading.credits == 16)
    reading.send(frames.BODY, b"b" * 7)
    reading.send(frames.END)

    assert json.loads(reading.wait_end().body) == {"sizes": [7] * 17}
    assert ignoring.credits == 0
    ignoring.send(frames.CLOSE, b"{}")


def test_a_reader_that_gives_no_credit_holds_the_app_back(home: Path, site: HostProcess) -> None:
    got = site.open("/flood")
    got.gives_credit = False
    site.read_until(lambda: got.kinds.count(frames.BODY) == 16)
    site.request("/nobody")
    held = happened(home).count("part")
    assert got.kinds.count(frames.BODY) == 16
    assert held == 17  # the last part waits for credit

    got.send(frames.CREDIT, b"2")
    site.read_until(lambda: got.kinds.count(frames.BODY) == 18)
    got.send(frames.CLOSE, b"{}")
    counts = [site.request("/nobody") and happened(home).count("part") for _ in range(5)]
    assert len(set(counts[-3:])) == 1
    assert counts[-1] < 40


def test_a_client_that_leaves_is_a_disconnect_then_a_cancel_but_for_work_after_the_answer(
    home: Path, site: HostProcess
) -> None:
    got = site.open("/wait")
    wait_until(lambda: "waiting" in happened(home), timeout=20)
    got.send(frames.CLOSE, b"{}")

    wait_until(lambda: "wait over" in happened(home), timeout=20)
    assert "client gone" in happened(home)
    site.request("/nobody")
    assert got.parts == []

    got = site.open("/stubborn")
    wait_until(lambda: "stubborn" in happened(home), timeout=20)
    got.send(frames.CLOSE, b"{}")

    wait_until(lambda: "cancelled" in happened(home), timeout=30)

    got = site.request("/later")
    got.send(frames.CLOSE, b"{}")

    assert got.body == b"soon"
    wait_until(lambda: "background done" in happened(home), timeout=20)


# Errors


def test_an_error_is_in_the_log_and_not_in_the_answer_and_fails_alone(site: HostProcess) -> None:
    site.logs.clear()
    got = site.request("/fail")
    site.read_until(lambda: bool(site.logs))

    assert got.document(frames.HEAD)["status"] == 500  # Starlette's error response
    assert b"secret" not in got.body
    assert "http.app failed at GET /fail" in site.logs[-1]["message"]
    assert "ValueError: a secret" in site.logs[-1]["message"]

    broken = site.request("/breaks")

    assert broken.kinds == [frames.HEAD, frames.BODY, frames.FAILED]
    assert broken.document(frames.FAILED) == {"message": "the project's app failed"}

    odd = site.open("/nobody", headers=[["x-word", "\u20ac"]])

    assert site.request("/nobody").document(frames.HEAD)["status"] == 200
    assert odd.wait_end().kinds == [frames.FAILED]


def test_a_request_fails_where_the_app_does_not_answer_or_is_missing(tmp_path: Path) -> None:
    with started(tmp_path, "silent") as host:
        assert host.request("/").kinds == [frames.FAILED]
        assert "http.app did not answer GET /" in host.logs[-1]["message"]

    (tmp_path / "site.py").write_text(PROJECT)
    with graph_host(tmp_path, {"g": "./site.py:graph"}) as host:
        assert host.request("/").document(frames.FAILED) == {"message": "this revision has no app"}


# The caller


def test_the_app_sees_who_asks(site: HostProcess) -> None:
    assert json.loads(site.request("/who", user=USER).body) == ["ann", "o1", True, ["read"]]
    assert site.request("/writes", user=USER).document(frames.HEAD)["status"] == 403
    assert site.request("/writes", user={**USER, "permissions": ["write"]}).body == b"written"
    assert json.loads(site.request("/nobody").body) == {"has_user": False, "has_auth": False}


# WebSockets


def opened(site: HostProcess, path: str = "/talk", **head: Any) -> Any:
    return site.open(path, type="websocket", method=None, **head)


def test_a_websocket_speaks_both_ways_and_is_closed_by_the_app(site: HostProcess) -> None:
    socket = opened(site, subprotocols=["v1", "v2"])
    socket.wait(frames.HEAD)
    socket.send(frames.TEXT, "é".encode())
    socket.send(frames.BYTES, b"abc")
    socket.send(frames.TEXT, b"bye")
    socket.wait_end()

    assert socket.document(frames.HEAD) == {
        "accepted": True,
        "subprotocol": "v1",
        "headers": [["x-mark", "1"]],
    }
    assert socket.parts[1:] == [
        (frames.TEXT, "É".encode()),
        (frames.BYTES, b"cba"),
        (frames.CLOSE, b'{"code":4001,"reason":"enough"}'),
    ]
    assert socket.credits == 3


def test_a_websocket_is_over_with_its_client_also_while_it_is_sent_to(home: Path, site: HostProcess) -> None:
    socket = opened(site).wait(frames.HEAD)
    socket.send(frames.CLOSE, b'{"code":4002,"reason":"done"}')

    wait_until(lambda: "gone 4002" in happened(home), timeout=20)

    socket = opened(site, "/pour").wait(frames.HEAD)
    socket.send(frames.CLOSE, b'{"code":1006,"reason":"the client has gone"}')

    wait_until(lambda: "pour over" in happened(home), timeout=20)
    site.request("/nobody")
    assert not any("/pour" in line["message"] for line in site.logs)


def test_a_handshake_may_be_refused(site: HostProcess) -> None:
    assert opened(site, "/refuses").wait_end().parts == [(frames.CLOSE, b'{"code":4003,"reason":"not you"}')]
    assert opened(site, "/brief").wait_end().document(frames.CLOSE) == {"code": 1000, "reason": ""}


def test_a_websocket_fails_with_its_app_and_at_a_message_that_nobody_lets_through(site: HostProcess) -> None:
    socket = opened(site).wait(frames.HEAD)
    socket.send(frames.TEXT, b"fail")

    assert socket.wait_end().kinds == [frames.HEAD, frames.FAILED]

    socket = opened(site).wait(frames.HEAD)
    socket.send(frames.TEXT, b"large")

    assert socket.wait_end().kinds == [frames.HEAD, frames.FAILED]
    site.request("/nobody")
    assert "PartTooLarge" in site.logs[-1]["message"]


# Lifespan


def test_graphs_and_app_share_a_process_and_its_lifespan(site: HostProcess) -> None:
    assert site.run("g", {}).values == {"seen": ["entered", "pool"]}


def test_the_lifespan_is_entered_before_ready_and_left_at_the_end(tmp_path: Path) -> None:
    with started(tmp_path) as host:
        assert happened(tmp_path) == ["entered"]
        host.open("/wait")
        wait_until(lambda: "waiting" in happened(tmp_path), timeout=20)
        host.send(frames.STOP, frames.NOBODY, b"")
        host.send(frames.STOP, frames.NOBODY, b"")
        code = host.process.wait(timeout=20)

    assert code == 0
    assert happened(tmp_path) == ["entered", "waiting", "client gone", "wait over", "left"]

    with started(tmp_path, "cannot_stop") as host:
        host.send(frames.STOP, frames.NOBODY, b"")

        assert host.process.wait(timeout=20) == 0


def test_a_lifespan_that_fails_is_said_for_the_deployer(tmp_path: Path) -> None:
    with started(tmp_path, "cannot_start") as host:
        error = host.ready["error"]
        code = host.process.wait(timeout=20)

    assert (error["step"], code) == ("load", 3)
    assert error["message"].startswith("http.app: its lifespan failed at the start\n")
    assert "RuntimeError: no database today" in error["message"]
    assert "site.py" in error["message"]

    with started(tmp_path, "bare") as host:
        assert host.request("/").body == b"http"
