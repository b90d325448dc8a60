"""Protocol v2 over a WebSocket, served by gunicorn: commands, and events of several subscriptions.

Clients that break a socket's rules, stop reading or fall silent do not affect the process or other clients.
"""

from __future__ import annotations

import socket as sockets_of_python
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from subprocess import Popen
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from shared.access import api_keys
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.infra.postgres import connection
from tests.contract.conftest import Api, new_key
from tests.support import open_connections, sockets
from tests.support.played_app import serve
from tests.support.protocol import (
    RUN,
    WAITING,
    WHOLE,
    Host,
    brief,
    classic,
    one_run,
    replay,
    started,
    stored_joined,
)
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

Open = Callable[..., AbstractContextManager[Socket]]
MOST_BYTES = 200_000  # largest message there
RAW_RESERVED = 3

OpenRaw = Callable[..., Raw]


@pytest.fixture(scope="module")
def served(
    database: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Popen[bytes], str]]:
    app, place = "tests.support.heard_web:app", tmp_path_factory.mktemp("data")
    with web_process(database, place, app=app, REDIS_URL=redis_url) as running:
        yield running


@pytest.fixture
def base(served: tuple[Popen[bytes], str]) -> str:
    return served[1]


@pytest.fixture
def thread_id(chat: Api) -> str:
    return str(chat.post("/threads").json["thread_id"])


@pytest.fixture
def open_socket(base: str, chat: Api, thread_id: str) -> Open:
    return partial(sockets.opened, base, chat.deployment.name, thread_id, KEY)


# Events


def test_a_subscription_replays_the_events_of_a_stream_then_follows(
    chat: Api, thread_id: str, open_socket: Open
) -> None:
    one_run(chat, thread_id)
    with open_socket() as socket:
        assert socket.subscribe()["replayed_events"] == 3
        assert socket.events() == replay(chat, thread_id)
        one_run(chat, thread_id)
        assert brief(socket.until("lifecycle", "completed")) == WHOLE


def test_a_run_that_overtakes_the_subscription_of_an_open_socket_is_to_write_content(
    chat: Api, thread_id: str, open_socket: Open
) -> None:
    waiting = classic(chat, thread_id)
    assert stored_joined(waiting) is None
    with open_socket():
        new = classic(chat, thread_id)
    for run_id in (waiting, new):
        assert stored_joined(run_id) == {"stream_mode": ["protocol"], "subgraphs": False}


def test_each_new_subscription_replays_to_itself_and_live_events_come_once(
    chat: Api, thread_id: str, open_socket: Open
) -> None:
    one_run(chat, thread_id)
    with open_socket() as socket:
        first = socket.subscribe(["values"])
        assert brief(socket.events()) == ["values"]
        second = socket.subscribe(["values", "lifecycle"])
        assert second["replayed_events"] == 3
        assert first["subscription_id"] != second["subscription_id"]
        assert brief(socket.events()) == WHOLE
        third = socket.subscribe(WAITING, since=2 * RUN - 1)
        assert (third["replayed_events"], socket.events()) == (0, [])
        one_run(chat, thread_id)
        assert brief(socket.until("lifecycle", "completed")) == WHOLE
        assert socket.events() == []


def test_a_subscription_in_the_middle_of_a_run_loses_nothing(
    chat: Api, thread_id: str, open_socket: Open
) -> None:
    host = Host(started(chat, thread_id)["result"]["run_id"])
    with open_socket() as socket:
        socket.subscribe(["values"])
        host.show("values", {"n": 1})
        assert brief(socket.until("values")) == ["values"]
        socket.subscribe(["updates"])
        host.show("values", {"n": 2})
        host.show("updates", {"n": 2})
        assert brief(socket.until("updates")) == ["values", "updates"]
        assert socket.subscribe(["values"])["replayed_events"] == 2
        assert [event["params"]["data"]["n"] for event in socket.events()] == [1, 2]
        host.finish({})


def test_who_unsubscribes_gets_nothing_more(chat: Api, thread_id: str, open_socket: Open) -> None:
    with open_socket() as socket:
        ids = [socket.subscribe([channel])["subscription_id"] for channel in ("values", "lifecycle")]
        answer = socket.command("subscription.unsubscribe", subscription_id=ids[0])
        assert (answer["type"], answer["result"]) == ("success", {})
        one_run(chat, thread_id)
        assert brief(socket.until("lifecycle", "completed")) == [WHOLE[0], WHOLE[2]]
        socket.command("subscription.unsubscribe", subscription_id=ids[1])
        one_run(chat, thread_id)
        again = socket.command("subscription.unsubscribe", subscription_id=ids[1])
        assert (again["type"], again["error"]) == ("error", "no_such_subscription")
        assert socket.events() == []
        assert socket.subscribe()["replayed_events"] == 3


def test_a_deleted_thread_ends_its_sockets(chat: Api, thread_id: str, open_socket: Open) -> None:
    with open_socket() as socket:
        socket.subscribe()
        assert chat.delete(f"/threads/{thread_id}").status_code == 204
        failure = socket.receive()
        assert (failure["type"], failure["id"], failure["error"]) == ("error", None, "no_such_run")
        with pytest.raises(ConnectionClosed) as closed:
            socket.receive()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1011


# Commands


def test_a_run_is_started_and_seen_on_one_socket(chat: Api, thread_id: str, open_socket: Open) -> None:
    with open_socket() as socket:
        socket.subscribe()
        answer = socket.command("run.start", assistant_id="agent", input={"a": 1})
        assert answer["meta"] == {"applied_through_seq": RUN}
        Host(answer["result"]["run_id"]).finish({})
        assert brief(socket.until("lifecycle", "completed")) == ["lifecycle running", "lifecycle completed"]
        tree = socket.command("agent.getTree")
        assert tree["result"]["tree"]["status"] == "completed"
        assert tree["meta"] == {"applied_through_seq": 2 * RUN - 1}


def test_a_run_has_the_headers_that_the_socket_was_opened_with(
    chat: Api, thread_id: str, open_socket: Open
) -> None:
    serve(chat.deployment, http={"configurable_headers": {"includes": ["x-*"]}})
    with open_socket(**{"X-Team": "red"}) as socket:
        run_id = socket.command("run.start", assistant_id="agent", input={})["result"]["run_id"]

    configurable = chat.get(f"/threads/{thread_id}/runs/{run_id}").json["kwargs"]["config"]["configurable"]
    assert configurable["x-team"] == "red"


def test_a_refused_command_has_its_code(open_socket: Open, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, dict[str, Any], str]] = [
        ("run.start", {}, "invalid_argument"),
        ("input.respond", {"interrupt_id": "x"}, "no_such_run"),
        ("subscription.subscribe", {}, "invalid_argument"),
        ("subscription.subscribe", {"channels": ["nope"]}, "invalid_argument"),
        ("subscription.unsubscribe", {}, "invalid_argument"),
        ("subscription.unsubscribe", {"subscription_id": "x"}, "no_such_subscription"),
        ("subscription.reconnect", {"run_id": "x"}, "not_supported"),
    ]
    with open_socket() as socket:
        for method, params, code in rows:
            with subtests.test(method=method, params=params):
                answer = socket.command(method, **params)
                assert (answer["type"], answer["error"]) == ("error", code)
                assert answer["meta"] == {"applied_through_seq": 0}


def test_what_is_no_command_is_refused_and_the_socket_stays(open_socket: Open) -> None:
    with open_socket() as socket:
        for sent in ("", "{", "nonsense", "[]", "7", "null", "{}", '{"id": "x", "method": "y"}'):
            socket.connection.send(sent)
            refused = socket.receive()
            id = "x" if "x" in sent else None
            assert (sent, refused["type"], refused["error"], refused["id"]) == (
                sent, "error", "invalid_argument", id,
            )  # fmt: skip
        assert socket.subscribe()["replayed_events"] == 0


def test_a_socket_of_a_key_that_reads_takes_no_commands(base: str, chat: Api, thread_id: str) -> None:
    one_run(chat, thread_id)
    with sockets.opened(base, chat.deployment.name, thread_id, new_key("read")) as socket:
        assert socket.subscribe()["replayed_events"] == 3
        assert socket.command("run.start", assistant_id="agent", input={})["error"] == "permission_denied"


# Handshakes that are refused


def test_a_refused_handshake_has_its_status(base: str, chat: Api, thread_id: str) -> None:
    here, reads = f"/d/{chat.deployment.name}/threads", new_key("read")
    for path, key, status in (
        (f"{here}/{thread_id}", "nonsense", 401),
        (f"{here}/{thread_id}", "", 401),
        (f"/d/nowhere/threads/{thread_id}", KEY, 404),
        (f"{here}/nonsense", KEY, 422),
        (f"{here}/{uuid4()}", reads, 404),  # the key may not create a thread
    ):
        url = f"ws{base.removeprefix('http')}{path}/stream/events"
        with pytest.raises(InvalidStatus) as refused:
            sockets.connect(url, additional_headers={"x-api-key": key})
        assert (path, key, refused.value.response.status_code) == (path, key, status)


def test_without_an_upgrade_it_says_what_it_is_for(base: str, chat: Api, thread_id: str) -> None:
    url = f"{base}/d/{chat.deployment.name}/threads/{thread_id}/stream/events"
    for method in ("GET", "HEAD"):
        response = httpx.request(method, url, headers={"x-api-key": KEY})
        assert (method, response.status_code, response.headers["upgrade"]) == (method, 426, "websocket")
        assert response.headers["sec-websocket-version"] == "13", method


def test_a_handshake_that_is_none_is_refused(base: str, chat: Api, thread_id: str) -> None:
    host, port = base.removeprefix("http://").split(":")
    path = f"/d/{chat.deployment.name}/threads/{thread_id}/stream/events"
    rows: list[tuple[dict[str, str | None], bytes]] = [
        ({"Sec_WebSocket_Version": "8"}, b"426"),
        ({"Sec_WebSocket_Version": None}, b"426"),
        ({"Sec_WebSocket_Key": None}, b"400"),
        ({"Sec_WebSocket_Key": "short"}, b"400"),
    ]
    for changes, status in rows:
        with sockets.socket.create_connection((host, int(port))) as connection:
            connection.sendall(sockets.handshake(path, KEY, **changes))
            assert (changes, connection.makefile("rb").readline().split()[1]) == (changes, status)


# Limits


def test_a_socket_holds_a_slot_of_its_key(base: str, chat: Api, thread_id: str) -> None:
    key = new_key("run")
    most = 4  # set in tests/support/heard_web.py
    connect = partial(sockets.opened, base, chat.deployment.name, thread_id, key)
    for _ in range(2):  # the second round needs released slots
        opened = [connect() for _ in range(most)]
        for each in opened:
            each.__enter__()
        with pytest.raises(InvalidStatus) as refused, connect():
            pass
        assert refused.value.response.status_code == 429
        for each in opened:
            each.__exit__(None, None, None)


# Clients that break the rules, stop reading or fall silent, beside one that must remain unaffected


def clients(served: tuple[Popen[bytes], str]) -> int:
    """Return the number of the process's connections to clients, including those that clients have closed."""
    return open_connections.held(served[1])


@pytest.fixture
def bystander(served: tuple[Popen[bytes], str], chat: Api) -> Iterator[Socket]:
    """Another client of the process, which must remain unaffected."""
    before = psutil.Process(served[0].pid).children()
    with sockets.opened(served[1], chat.deployment.name, str(uuid4()), KEY) as socket:
        socket.subscribe()
        yield socket
        assert socket.command("none.such")["error"] == "unknown_command"
        assert httpx.get(f"{served[1]}/ok").status_code == 200
        assert psutil.Process(served[0].pid).children() == before


@pytest.fixture
def open_raw(
    served: tuple[Popen[bytes], str], chat: Api, thread_id: str, bystander: Socket
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
    served: tuple[Popen[bytes], str], open_raw: OpenRaw
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
@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.release)])
def test_thousands_of_commands_are_answered(
    served: tuple[Popen[bytes], str], chat: Api, thread_id: str, bystander: Socket, count: int
) -> None:
    with sockets.opened(served[1], chat.deployment.name, thread_id, KEY) as socket:
        sender = threading.Thread(target=lambda: [socket.send("none.such") for _ in range(count)])
        sender.start()
        answered = []
        for _ in range(count):
            answered.append(socket.receive()["id"])
            if len(answered) % 250 == 0:
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
    served: tuple[Popen[bytes], str], chat: Api, thread_id: str, bystander: Socket
) -> None:
    key = new_key("run")
    with sockets.opened(served[1], chat.deployment.name, thread_id, key) as socket:
        answers = [socket.command("none.such") for _ in range(100)]
        assert {answer["error"] for answer in answers} == {"unknown_command", "unknown_error"}
        assert answers[-1]["message"] == "429: This API key sends too many requests: see Retry-After"


def test_who_takes_nothing_holds_up_nobody(
    served: tuple[Popen[bytes], str], chat: Api, thread_id: str, open_raw: OpenRaw
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
    served: tuple[Popen[bytes], str], chat: Api, thread_id: str, bystander: Socket
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
    served: tuple[Popen[bytes], str], chat: Api, thread_id: str, open_socket: Open
) -> None:
    """The last test of the process."""
    host = Host(started(chat, thread_id)["result"]["run_id"])
    with open_socket() as idle, open_socket() as waiting, open_socket() as following:
        waiting.subscribe(since=1 << 40)
        following.subscribe()
        served[0].terminate()
        for each in (idle, waiting, following):
            with pytest.raises(ConnectionClosed) as closed:
                each.until("none.such")
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
    assert served[0].wait(20) == 0
    host.finish({})
