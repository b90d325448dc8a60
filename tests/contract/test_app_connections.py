"""A project's own app behind gunicorn as the Procfile starts it, over raw connections: HTTP and WebSockets."""

from __future__ import annotations

import http.client as http_client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from subprocess import Popen
from typing import Any
from uuid import uuid4

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

import tests.support.factories as make
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from tests.contract.conftest import Api
from tests.support.app_routes import FLOOD, ROUTES
from tests.support.played_app import serve
from tests.support.waiting import wait_until
from tests.support.web_process import started as web_process
from web.deployment_api.user_app import waiting

WAIT_SECONDS = 20.0  # upper limit for data that is certain to arrive


@pytest.fixture(scope="module")
def served(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Popen[bytes], str]]:
    with web_process(database, tmp_path_factory.mktemp("data"), app="tests.support.app_web:app") as running:
        yield running


@pytest.fixture
def base(served: tuple[Popen[bytes], str]) -> str:
    return served[1]


@pytest.fixture
def name(api: Api) -> str:
    """Name of a deployment, unique because the web process caches deployments by name for a moment."""
    deployment = make.deployment(organization_id=DEFAULT_ORGANIZATION_ID, name=f"chat-{uuid4().hex[:8]}")
    serve(deployment, *ROUTES)
    return deployment.name


@pytest.fixture
def raw(base: str) -> Iterator[socket.socket]:
    with connected(base) as connection:
        yield connection


def connected(base: str) -> socket.socket:
    host, port = base.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_SECONDS)


def ask(raw: socket.socket, line: str, *headers: str, body: bytes = b"") -> None:
    raw.sendall("\r\n".join([f"{line} HTTP/1.1", "Host: x", *headers, "", ""]).encode() + body)


def answered(raw: socket.socket) -> tuple[int, bytes]:
    with closing(http_client.HTTPResponse(raw)) as answer:
        answer.begin()
        return answer.status, answer.read()


def is_over(raw: socket.socket) -> bool:
    """Return whether the server closes the connection. Discards unread data."""
    try:
        while raw.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


# Requests


def test_requests_on_one_connection_are_answered_one_after_the_other(raw: socket.socket, name: str) -> None:
    for _ in range(3):
        ask(raw, f"GET /d/{name}/hello")
        assert answered(raw) == (200, b"hello")
        ask(raw, f"POST /d/{name}/echo", "Content-Length: 70000", body=bytes(70000))
        assert answered(raw) == (200, bytes(70000))


def test_a_body_in_chunks_is_passed_on_as_it_comes(raw: socket.socket, name: str) -> None:
    ask(raw, f"POST /d/{name}/echo", "Transfer-Encoding: chunked")
    reader = raw.makefile("rb")
    for piece in (b"one", b"two"):  # each piece is answered before the next one is sent
        raw.sendall(b"3\r\n" + piece + b"\r\n")
        if piece == b"one":
            assert reader.readline().split()[1] == b"200"
            while reader.readline() != b"\r\n":
                pass
        assert [reader.readline(), reader.readline()] == [b"3\r\n", piece + b"\r\n"]
    raw.sendall(b"0\r\n\r\n")
    assert [reader.readline(), reader.readline()] == [b"0\r\n", b"\r\n"]
    ask(raw, f"GET /d/{name}/hello")
    assert reader.readline().split()[1] == b"200"


def test_what_can_be_read_in_two_ways_or_is_no_body_ends_its_connection(base: str, name: str) -> None:
    smuggled = f"0\r\n\r\nGET /d/{name}/hello HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    for headers in (
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Content-Length: 5", "Content-Length: 6"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: gzip"],
        ["Content-Length: +5"],
        ["Bad Name: 1"],
        ["Bad\tName: 1"],
        [" Folded: 1"],
        ["Host: y"],
        ["X: a\rb"],
        ["X: a\0b"],
    ):
        with connected(base) as raw:
            ask(raw, f"POST /d/{name}/echo", *headers, body=smuggled)
            assert (headers, answered(raw)[0]) == (headers, 400)
            assert is_over(raw), headers
    with connected(base) as raw:
        ask(raw, f"POST /d/{name}/echo", "Transfer-Encoding: chunked", body=b"zz\r\n")
        assert raw.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 200")
        assert is_over(raw)


def test_a_path_that_climbs_reaches_no_app(base: str, name: str) -> None:
    for path in (
        "/x/../hello",
        f"/%2e%2e/{name}/hello",
        "/..%2fhello",
        "/hello%2f",
        "/hello%00",
        f"/../{name}/hello",
    ):
        with connected(base) as raw:
            ask(raw, f"GET /d/{name}{path}", "X-Api-Key: none")
            assert answered(raw)[0] in (401, 404), path


def seen(raw: socket.socket, name: str, target: str, *headers: str) -> Any:
    ask(raw, f"GET {target}", *headers)
    status, body = answered(raw)
    assert status == 200
    head = json.loads(body)
    return {**head, "headers": dict(head["headers"])}


def test_an_absolute_target_is_a_path_and_headers_with_an_underscore_are_no_others(
    raw: socket.socket, name: str
) -> None:
    head = seen(raw, name, f"http://elsewhere.example/d/{name}/seen?a=%2F")
    assert (head["path"], head["root_path"], head["query"]) == ("/seen", f"/d/{name}", "a=%2F")
    assert head["headers"]["host"] == "x"
    head = seen(raw, name, f"/d/{name}/seen", "X_User: evil", "Content_Length: 5", "X-User: good")
    assert head["headers"]["x-user"] == "good"
    assert "content-length" not in head["headers"]


def test_an_upgrade_on_a_plain_route_is_none(raw: socket.socket, name: str) -> None:
    head = seen(
        raw,
        name,
        f"/d/{name}/seen",
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: x",
    )
    assert head["type"] == "http"
    assert {"connection", "upgrade", "http2-settings"}.isdisjoint(head["headers"])
    for path, headers in (
        ("seen", ("Connection: Upgrade", "Upgrade: websocket")),
        ("ws/echo", ()),  # a WebSocket route, without an upgrade
    ):
        ask(raw, f"GET /d/{name}/{path}", *headers, "X-Api-Key: none")
        assert (path, answered(raw)[0]) == (path, 401)


def test_an_answer_that_is_too_short_ends_its_connection(raw: socket.socket, name: str) -> None:
    ask(raw, f"GET /d/{name}/short")
    with pytest.raises(http_client.IncompleteRead):
        answered(raw)


def test_what_an_app_did_not_read_is_no_next_request(raw: socket.socket, name: str) -> None:
    body = f"GET /d/{name}/hello HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 30_000
    ask(raw, f"POST /d/{name}/early", f"Content-Length: {len(body)}", body=body)
    assert answered(raw) == (200, b"early")
    ask(raw, f"GET /d/{name}/seen")
    status, seen = answered(raw)
    assert (status, json.loads(seen)["path"]) == (200, "/seen")


def test_a_dead_host_or_an_answer_that_would_split_ends_one_request(raw: socket.socket, name: str) -> None:
    for path, detail in (("dies", waiting.DIED), ("split", waiting.NO_ANSWER)):
        ask(raw, f"GET /d/{name}/{path}")
        status, body = answered(raw)
        assert (status, json.loads(body)) == (502, {"detail": detail})
        ask(raw, f"GET /d/{name}/hello")
        assert answered(raw) == (200, b"hello")


@pytest.mark.parametrize("body", [b"", bytes(300_000)])
def test_a_client_that_leaves_is_seen_by_the_app(base: str, name: str, body: bytes) -> None:
    before = httpx.get(f"{base}/d/{name}/gone/seen").json()
    with connected(base) as raw:
        line = f"POST /d/{name}/gone" if body else f"GET /d/{name}/gone"
        ask(raw, line, f"Content-Length: {len(body)}", body=body)
        reader = raw.makefile("rb")
        while reader.readline() != b"begun\r\n":
            pass
        reader.close()
    expected = [*before, True]
    wait_until(lambda: httpx.get(f"{base}/d/{name}/gone/seen").json() == expected)


# WebSockets


def opened(base: str, name: str, kind: str, **more: Any) -> ClientConnection:
    url = f"ws{base.removeprefix('http')}/d/{name}/ws/{kind}"
    return connect(url, compression=None, max_size=None, ping_interval=None, **more)


def closed(socket: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as caught:
        all(True for _ in iter(lambda: socket.recv(timeout=WAIT_SECONDS), None))
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason


def test_messages_come_back_whole_also_when_they_were_sent_in_pieces(base: str, name: str) -> None:
    with opened(base, name, "echo") as socket:
        for said in ("héllo", b"\0\xff", "x" * 200_000, bytes(200_000), ""):
            socket.send(said)
            assert socket.recv(timeout=WAIT_SECONDS) == said
        socket.send(["a", "é", "c"])
        assert socket.recv(timeout=WAIT_SECONDS) == "aéc"
        socket.send([b"a", b"b"])
        assert socket.recv(timeout=WAIT_SECONDS) == b"ab"


def test_the_app_chooses_a_subprotocol_and_says_headers(base: str, name: str) -> None:
    with opened(base, name, "echo", subprotocols=[Subprotocol("one"), Subprotocol("two")]) as socket:
        assert socket.subprotocol == "two"
        assert socket.response is not None
        assert socket.response.headers["x-app"] == "yes"


def test_the_app_refuses_a_handshake_and_ends_a_socket(base: str, name: str) -> None:
    for kind, status, body in (("refused", 403, b""), ("denied", 418, b"go away")):
        with pytest.raises(InvalidStatus) as refused:
            opened(base, name, kind)
        assert (kind, refused.value.response.status_code) == (kind, status)
        assert body in (refused.value.response.body or b"")
    for kind, ending in (
        ("closes", (4321, "enough")),
        ("dies", (1011, "the app has ended")),
        ("raises", (1011, "")),
    ):
        with opened(base, name, kind) as socket:
            assert (kind, closed(socket)) == (kind, ending)


def test_the_app_learns_how_its_client_closed(base: str, name: str) -> None:
    with opened(base, name, "echo") as socket:
        socket.close(4001, "bye")
    with opened(base, name, "echo") as socket:
        socket.socket.shutdown(2)
    with opened(base, name, "echo") as socket:

        def closings() -> Any:
            socket.send("how did others close")
            return json.loads(socket.recv(timeout=WAIT_SECONDS))

        wait_until(lambda: {"code": 4001, "reason": "bye"} in closings())
        wait_until(lambda: {"code": 1006, "reason": ""} in closings())


def test_a_slow_client_gets_all_of_a_flood(base: str, name: str) -> None:
    with opened(base, name, "flood") as socket:
        for _ in range(FLOOD):
            assert len(socket.recv(timeout=WAIT_SECONDS)) == 16 * 1024
        socket.send("still here")
        assert socket.recv(timeout=WAIT_SECONDS) == "still here"


def test_a_quiet_client_is_asked_for_a_sign(base: str, name: str) -> None:
    with opened(base, name, "echo") as socket:
        with pytest.raises(TimeoutError):
            socket.recv(timeout=3)  # meanwhile the client's own thread answers pings
        socket.send("here")
        assert socket.recv(timeout=WAIT_SECONDS) == "here"


def test_a_caller_has_so_many_sockets(base: str, name: str) -> None:
    def opened_from(address: str) -> ClientConnection:
        host, port = base.removeprefix("http://").split(":")
        own = socket.create_connection((host, int(port)), timeout=WAIT_SECONDS, source_address=(address, 0))
        return held.enter_context(opened(base, name, "echo", sock=own))

    with ExitStack() as held:
        for _ in range(6):
            opened_from("127.0.0.5")
        with pytest.raises(InvalidStatus) as refused:
            opened_from("127.0.0.5")
        assert refused.value.response.status_code == 429
        opened_from("127.0.0.6").send("x")


def test_answers_of_apps_do_not_hold_up_the_servers_end(served: tuple[Popen[bytes], str], name: str) -> None:
    """The last test of the process."""
    process, base = served
    with connected(base) as raw, opened(base, name, "echo") as socket:
        ask(raw, f"GET /d/{name}/gone")
        reader = raw.makefile("rb")
        while reader.readline() != b"begun\r\n":
            pass
        process.terminate()
        assert closed(socket) == (1012, "the server is shutting down")
        assert reader.read() == b""  # without the last chunk, so the client knows that the body is incomplete
        process.wait(20)
