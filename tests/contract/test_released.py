"""Resources of a long answer are released whichever step of its request fails: slot, reader, subscription, run.

The requests pass through the server's own worker, on a socket that breaks at a chosen operation.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gevent
import orjson
import pytest
from flask import Flask, Response
from gunicorn.config import Config
from gunicorn.glogging import Logger

from shared.errors import Unavailable
from shared.eventlog.hub import Hub, Reader, hub
from shared.settings import Settings
from tests.contract.conftest import ADMIN_KEY, Api
from tests.contract.statements import scalar
from tests.support.acting import Actor
from web.gate.limits import Streams
from web.http import worker

PATIENCE_SECONDS = 0.2  # the server's wait for more data; gevent has not patched this process
OPERATIONS = 5  # reading the request; sending headers, chunks and heartbeats

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Breaking:
    """A connection's socket that is reset at its n-th operation and all later ones."""

    def __init__(self, inner: socket.socket, at: int) -> None:
        self._inner, self._left = inner, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _operation(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise ConnectionResetError(104, "reset by the test")

    def settimeout(self, seconds: float) -> None:
        self._inner.settimeout(min(seconds, PATIENCE_SECONDS))

    def recv(self, *args: Any) -> bytes:
        self._operation()
        return self._inner.recv(*args)

    def send(self, data: bytes) -> int:
        self._operation()
        return self._inner.send(data)

    def sendall(self, data: bytes) -> None:
        self._operation()
        self._inner.sendall(data)


class OneRequest(worker.Worker):
    settings = Settings()


def serve(app: Wsgi, request: bytes, *, breaks_at: int = 10_000) -> bytes:
    """Let the server's worker handle one connection with this request. Returns the bytes of its answer."""
    config = Config()
    config.set("keepalive", 75)
    handler = OneRequest(1, os.getpid(), [], None, 60, config, Logger(config))
    handler.wsgi = app  # type: ignore[assignment]  gunicorn annotates nothing
    handler.alive = False  # no keep-alive
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(request)
            handler.handle(listener, Breaking(ours, breaks_at), ("127.0.0.1", 1))  # type: ignore[arg-type]
            theirs.setblocking(False)
            try:
                return theirs.recv(1 << 20)
            except (BlockingIOError, ConnectionResetError):
                return b""


def request(api: Api, method: str, path: str, body: Any = None, headers: Iterable[str] = ()) -> bytes:
    content = b"" if body is None else orjson.dumps(body)
    head = [
        f"{method} /d/{api.deployment.name}{path} HTTP/1.1",
        "Host: test",
        f"X-Api-Key: {ADMIN_KEY}",
        f"Content-Length: {len(content)}",
        *headers,
    ]
    return "\r\n".join([*head, "", ""]).encode() + content


NEW = {"assistant_id": "agent", "on_disconnect": "cancel"}
ENQUEUED = ("enqueued stream",)
WAITING = "/threads/{thread_id}/runs/{run_id}"
LONG = {
    "stream": ("POST", "/threads/{thread_id}/runs/stream", NEW),
    "enqueued stream": ("POST", "/threads/{thread_id}/runs/stream", {**NEW, "multitask_strategy": "enqueue"}),
    "wait": ("POST", "/threads/{thread_id}/runs/wait", NEW),
    "stateless stream": ("POST", "/runs/stream", NEW),
    "join": ("GET", f"{WAITING}/join?cancel_on_disconnect=true", None),
    "join stream": ("GET", f"{WAITING}/stream?cancel_on_disconnect=true", None),
    "thread": ("GET", "/threads/{thread_id}/stream", None),
}


def asked(api: Api, name: str) -> tuple[bytes, int]:
    """Prepare a long request that cancels its run on disconnect. Returns it and the number of runs that remain."""
    method, path, body = LONG[name]
    thread_id = api.post("/threads").json["thread_id"]
    run_id, others = "", 0
    if name in ENQUEUED or "{run_id}" in path:
        run_id = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"}).json["run_id"]
        others = int(name in ENQUEUED)
    return request(api, method, path.format(thread_id=thread_id, run_id=run_id), body), others


def held(app: Flask) -> tuple[int, dict[str, int], int]:
    """Return slots of the process, slots by key, and the number of channels with readers."""
    streams: Streams = app.extensions["runyard_streams"]
    return streams.count, dict(streams._open), len(hub()._readers)


NOTHING: tuple[int, dict[str, int], int] = (0, {}, 0)


def live_runs() -> int:
    found: int = scalar("SELECT count(*) FROM run WHERE status IN ('pending', 'running')")
    return found


@pytest.mark.parametrize("at", range(2, OPERATIONS + 1))
@pytest.mark.parametrize("name", LONG)
def test_a_connection_may_break_at_any_operation(api: Api, app: Flask, name: str, at: int) -> None:
    content, others = asked(api, name)
    serve(app, content, breaks_at=at)
    assert held(app) == NOTHING
    assert live_runs() == others


class Broken:
    """The app with an answer that raises at its n-th chunk."""

    def __init__(self, app: Flask, at: int, error: BaseException) -> None:
        self._app, self._at, self._error = app, at, error
        self._chunks: Any = ()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Broken:
        self._chunks = self._app(environ, start_response)
        return self

    def __iter__(self) -> Iterator[bytes]:
        for number, chunk in enumerate(self._chunks, 1):
            if number == self._at:
                raise self._error
            yield chunk

    def close(self) -> None:
        self._chunks.close()


@pytest.mark.parametrize("error", [gevent.GreenletExit(), Unavailable(), KeyError("bug"), SystemExit(1)])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_answer_may_fail_at_any_chunk(api: Api, app: Flask, at: int, error: BaseException) -> None:
    content, _ = asked(api, "stream")
    serve(Broken(app, at, error), content)
    assert held(app) == NOTHING
    assert live_runs() == 0


@pytest.mark.parametrize("error", [gevent.GreenletExit(), RuntimeError("bug")])
def test_a_request_may_fail_after_its_stream_was_made(
    api: Api, app: Flask, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(response: Response) -> Response:
        if response.status_code == 200 and response.is_streamed:
            raise error
        return response

    called_last = [fail, *app.after_request_funcs[None]]
    monkeypatch.setitem(app.after_request_funcs, None, called_last)
    content, _ = asked(api, "stream")
    serve(app, content)
    assert held(app) == NOTHING
    assert live_runs() == 0


def test_a_request_may_fail_before_its_stream_was_made(
    api: Api, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise gevent.GreenletExit

    monkeypatch.setitem(app.before_request_funcs, None, [*app.before_request_funcs[None], fail])
    serve(app, request(api, "POST", "/runs/stream", NEW))
    assert held(app) == NOTHING


def test_a_reader_that_stops_is_cut_off_and_goes_on_by_the_last_id_it_read(
    api: Api, app: Flask, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "SOCKET_SECONDS", 0.1)
    run = api.post("/runs", {"assistant_id": "agent", "stream_resumable": True, "on_completion": "keep"}).json
    actor = Actor(run["run_id"])
    for _ in range(20):
        actor.emit("values", "x" * 100_000)
    actor.finish({})
    ask = request(api, "GET", f"/runs/{run['run_id']}/stream", headers=("Last-Event-ID: -1",))

    read = serve(app, ask)  # serve() reads only at the end
    held_back = read.rpartition(b"\r\n\r\n")[0]
    seen = ids(held_back)
    assert 0 < len(seen) < 21
    assert held(app) == NOTHING
    assert "Traceback" not in capsys.readouterr().err

    rest = api.get(f"/runs/{run['run_id']}/stream", headers={"Last-Event-ID": str(seen[-1])})
    assert [*seen, *ids(rest.data)] == list(range(1, 22))


def ids(stream: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"^id: (\d+)\r$", stream, re.MULTILINE)]


def test_what_a_body_leaves_behind_may_be_broken(api: Api, app: Flask) -> None:
    """A join ignores its body. The server reads the body after the stream was created."""
    content, _ = asked(api, "join stream")
    serve(app, content.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"zz\r\n")
    assert held(app) == NOTHING


def test_a_failure_to_release_one_thing_leaves_nothing_else_held(
    api: Api, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Hub, reader: Reader) -> None:
        remove(self, reader)
        raise RuntimeError("bug")

    remove = Hub._remove
    monkeypatch.setattr(Hub, "_remove", fail)
    content, _ = asked(api, "stream")
    serve(app, content, breaks_at=3)
    assert held(app) == NOTHING
    assert live_runs() == 0


@pytest.mark.parametrize("name", ["join", "join stream"])
def test_asking_for_the_headers_alone_ends_no_run(api: Api, app: Flask, name: str) -> None:
    content, _ = asked(api, name)
    assert serve(app, content.replace(b"GET", b"HEAD")).startswith(b"HTTP/1.1 200 OK")
    assert held(app) == NOTHING
    assert live_runs() == 1
