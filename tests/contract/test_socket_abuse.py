"""Clients that break a socket's rules, stop reading or fall silent do not affect the process or other clients."""

from __future__ import annotations

import socket as sockets_of_python
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx
import psutil
import pytest
from websockets.exceptions import ConnectionClosed

from shared.access import api_keys
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.infra.postgres import connection
from tests.contract.conftest import Api, new_key
from tests.support import open_connections, sockets
from tests.support.protocol import Host, started
from tests.support.sockets import (
    BINARY,
    CLOSE,
    COMPRESSED,
    CONTINUATION,
    FIN,
    PING,
    PONG,
    TEXT,
    Raw,
    Socket,
    frame,
    message,
)
from tests.support.waiting import wait_until
from tests.support.web_process import KEY
from tests.support.web_process import started as web_process

APP = "tests.support.heard_web:app"
MOST_BYTES = 200_000  # largest message there
RAW_RESERVED = 3

OpenRaw = Callable[..., Raw]


@pytest.fixture(scope="module")
def served(
    database: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[psutil.Process, str]]:
    place: Path = tmp_path_factory.mktemp("data")
    with web_process(database, place, app=APP, REDIS_URL=redis_url) as (arbiter, base):
        (worker,) = psutil.Process(arbiter.pid).children()
        yield worker, base


@pytest.fixture
def thread_id(chat: Api) -> str:
    return str(chat.post("/threads").json["thread_id"])


def clients(served: tuple[psutil.Process, str]) -> int:
    """Return the number of the process's connections to clients, including those that clients have closed."""
    return open_connections.held(served[1])


@pytest.fixture
def bystander(served: tuple[psutil.Process, str], chat: Api) -> Iterator[Socket]:
    """Another client of the process, which must remain unaffected."""
    with sockets.opened(served[1], chat.deployment.name, str(uuid4()), KEY) as socket:
        socket.subscribe()
        yield socket
        assert socket.command("none.such")["error"] == "unknown_command"
        assert httpx.get(f"{served[1]}/ok").status_code == 200
        assert served[0].is_running()


@pytest.fixture
def open_raw(
    served: tuple[psutil.Process, str], chat: Api, thread_id: str, bystander: Socket
) -> Callable[..., Raw]:
    return partial(Raw, served[1], chat.deployment.name, thread_id, KEY)


SUBSCRIBE = message(1, "subscription.subscribe", channels=["values"])
HALF = SUBSCRIBE[:20], SUBSCRIBE[20:]

BROKEN = {
    "binary": (frame(BINARY, b"{}"), 1003),
    "bad UTF-8": (frame(TEXT, b"\xff\xfe"), 1007),
    "cut UTF-8": (frame(TEXT, "é".encode()[:1]), 1007),
    "compressed": (frame(TEXT, b"{}", flags=FIN | COMPRESSED), 1002),
    "unmasked": (frame(TEXT, b"{}", is_masked=False), 1002),
    "reserved opcode": (frame(RAW_RESERVED, b"{}"), 1002),
    "continuation of nothing": (frame(CONTINUATION, b"{}"), 1002),
    "message inside of a message": (frame(TEXT, b"{", flags=0) + frame(TEXT, b"}"), 1002),
    "fragmented ping": (frame(PING, b"x", flags=0), 1002),
    "long ping": (frame(PING, b"x" * 126), 1002),
    "close with half a code": (frame(CLOSE, b"x"), 1002),
    "no frame": (b"GET / HTTP/1.1\r\n\r\n", 1002),
    "large frame": (frame(TEXT, b" " * (MOST_BYTES + 1)), 1009),
    "large message": (
        frame(TEXT, b" ", flags=0) + 3 * frame(CONTINUATION, b" " * (MOST_BYTES // 2), flags=0),
        1009,
    ),
    "a frame that is said to be huge": (
        struct.pack("!BBQ", FIN | TEXT, 0x80 | 127, 1 << 40) + bytes(4) + b" " * (MOST_BYTES + 1),
        1009,
    ),
}


def test_what_breaks_the_rules_is_closed_with_its_code(open_raw: OpenRaw) -> None:
    for kind, (sent, code) in BROKEN.items():
        with open_raw() as raw:
            assert raw.status == 101, kind
            with suppress(ConnectionError):
                raw.socket.sendall(sent)
            assert raw.close_code() == code, kind


def test_a_message_in_pieces_is_taken_also_around_a_ping_and_a_close_in_its_middle_answered(
    open_raw: OpenRaw,
) -> None:
    with open_raw() as raw:
        raw.send(TEXT, HALF[0], flags=0)
        raw.send(PING, b"there?")
        raw.send(CONTINUATION, b"", flags=0)
        raw.send(CONTINUATION, HALF[1])
        assert next(payload for opcode, payload in raw.frames() if opcode == PONG) == b"there?"
        assert raw.answer()["result"]["replayed_events"] == 0
    with open_raw() as raw:
        raw.send(TEXT, HALF[0], flags=0)
        raw.send(CLOSE, struct.pack("!H", 1000))
        assert raw.close_code() == 1000


def test_who_leaves_without_a_close_leaves_nothing(
    served: tuple[psutil.Process, str], open_raw: OpenRaw
) -> None:
    before = clients(served)
    for sent in (b"", frame(TEXT, SUBSCRIBE), frame(TEXT, SUBSCRIBE)[:9], frame(TEXT, HALF[0], flags=0)):
        for is_reset in (False, True):
            with open_raw() as raw:
                raw.socket.sendall(sent)
                if is_reset:
                    reset = struct.pack("ii", 1, 0)
                    raw.socket.setsockopt(sockets_of_python.SOL_SOCKET, sockets_of_python.SO_LINGER, reset)
    wait_until(lambda: clients(served) <= before, timeout=30)


def test_who_answers_no_ping_is_closed_and_who_does_stays(open_raw: OpenRaw, bystander: Socket) -> None:
    """`bystander` connected before, and answers pings."""
    with open_raw() as raw:
        raw.send(TEXT, SUBSCRIBE)
        assert raw.close_code() == 1013


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.release)])
def test_thousands_of_commands_are_answered(
    served: tuple[psutil.Process, str], chat: Api, thread_id: str, bystander: Socket, count: int
) -> None:
    with sockets.opened(served[1], chat.deployment.name, thread_id, KEY) as socket:
        sender = threading.Thread(target=lambda: [socket.send("none.such") for _ in range(count)])
        sender.start()
        answered = []
        for _ in range(count):
            answered.append(socket.receive()["id"])
            if len(answered) % 500 == 0:
                assert bystander.command("none.such")["error"] == "unknown_command"
        sender.join()
    assert answered == list(range(1, count + 1))


def test_a_ping_is_answered_before_the_commands_that_wait(open_raw: OpenRaw) -> None:
    count = 500
    with open_raw() as raw:
        commands = b"".join(frame(TEXT, message(n, "none.such")) for n in range(count))
        raw.socket.sendall(commands + frame(PING, b"there?"))
        before = 0
        for opcode, _ in raw.frames():
            if opcode == PONG:
                break
            before += opcode == TEXT
        assert before < count
        rest = (opcode for opcode, _ in raw.frames() if opcode == TEXT)
        assert all(next(rest, None) for _ in range(count - before))


def test_what_was_sent_before_a_close_is_still_done(chat: Api, thread_id: str, open_raw: OpenRaw) -> None:
    with open_raw() as raw:
        start = message(2, "run.start", assistant_id="agent", input={})
        commands = frame(TEXT, message(1, "none.such")) + frame(TEXT, start)
        raw.socket.sendall(commands + frame(CLOSE, struct.pack("!H", 1000)))
        opcodes = [opcode for opcode, _ in raw.frames() if opcode != PING]
        assert opcodes == [TEXT, TEXT, CLOSE]
    assert len(chat.get(f"/threads/{thread_id}/runs").json) == 1


def test_commands_are_limited_as_requests_are(
    served: tuple[psutil.Process, str], chat: Api, thread_id: str, bystander: Socket
) -> None:
    key = new_key("run")
    with sockets.opened(served[1], chat.deployment.name, thread_id, key) as socket:
        answers = [socket.command("none.such") for _ in range(100)]
        assert {answer["error"] for answer in answers} == {"unknown_command", "unknown_error"}
        assert answers[-1]["message"] == "429: This API key sends too many requests: see Retry-After"


def test_who_takes_nothing_holds_up_nobody(
    served: tuple[psutil.Process, str], chat: Api, thread_id: str, open_raw: OpenRaw
) -> None:
    before = clients(served)
    with open_raw(buffer=4096) as raw:
        raw.send(TEXT, SUBSCRIBE)
        assert raw.answer()["type"] == "success"
        host = Host(started(chat, thread_id)["result"]["run_id"])
        with sockets.opened(served[1], chat.deployment.name, thread_id, KEY) as reader:
            reader.subscribe(["values", "lifecycle"])
            for n in range(100):
                host.show("values", {"n": n, "text": "x" * 100_000})
            host.finish({})
            events = reader.until("lifecycle", "completed")
            assert len(events) == 102
        raw.send(TEXT, message(2, "none.such"))
    wait_until(lambda: clients(served) <= before, timeout=30)


def test_pings_are_read_no_faster_than_their_answers_are_taken(open_raw: OpenRaw) -> None:
    """The server does not buffer answers without limit: it stops reading."""
    flood = 1_000 * frame(PING, b"x" * 100)
    with open_raw(buffer=4096) as raw:
        raw.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            _send_for_ever(raw, flood)


def _send_for_ever(raw: Raw, data: bytes) -> None:
    while True:
        raw.socket.sendall(data)


def test_a_revoked_key_ends_its_sockets(
    served: tuple[psutil.Process, str], chat: Api, thread_id: str, bystander: Socket
) -> None:
    key = new_key("run")
    with Raw(served[1], chat.deployment.name, thread_id, key) as raw:
        raw.send(TEXT, SUBSCRIBE)
        assert raw.answer()["type"] == "success"
        with connection() as conn:
            api_keys.revoke(conn, DEFAULT_ORGANIZATION_ID, key.split("_")[1])
        raw.socket.settimeout(30)
        for opcode, payload in raw.frames():
            if opcode == PING:
                raw.send(PONG, payload)
            if opcode == CLOSE:
                assert struct.unpack("!H", payload[:2]) == (1008,)
                return
    pytest.fail("it was not closed")


def test_a_process_that_stops_closes_its_sockets(
    database: str, redis_url: str, tmp_path: Path, chat: Api, thread_id: str
) -> None:
    with web_process(database, tmp_path, app=APP, REDIS_URL=redis_url) as (arbiter, base):
        connect = partial(sockets.opened, base, chat.deployment.name, thread_id, KEY)
        host = Host(started(chat, thread_id)["result"]["run_id"])
        with connect() as idle, connect() as waiting, connect() as following:
            waiting.subscribe(since=1 << 40)
            following.subscribe()
            arbiter.terminate()
            for each in (idle, waiting, following):
                with pytest.raises(ConnectionClosed) as closed:
                    each.until("none.such")
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1012
        assert arbiter.wait(20) == 0
        host.finish({})
