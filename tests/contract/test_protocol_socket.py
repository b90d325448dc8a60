"""Protocol v2 over a WebSocket, served by gunicorn: commands, and events of several subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.contract.conftest import Api, new_key
from tests.support import sockets
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
from tests.support.sockets import Socket
from tests.support.web_process import KEY
from tests.support.web_process import started as web_process

Open = Callable[..., AbstractContextManager[Socket]]


@pytest.fixture(scope="module")
def base(database: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place: Path = tmp_path_factory.mktemp("data")
    with web_process(database, place, app="tests.support.heard_web:app", REDIS_URL=redis_url) as (_, address):
        yield address


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


def test_a_thread_that_is_not_there_yet_is_waited_for(base: str, chat: Api) -> None:
    thread_id = str(uuid4())
    with sockets.opened(base, chat.deployment.name, thread_id, KEY) as socket:
        assert socket.subscribe()["replayed_events"] == 0
        one_run(chat, thread_id)
        assert brief(socket.until("lifecycle", "completed")) == WHOLE


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


def test_two_questions_are_answered_at_once(chat: Api, thread_id: str, open_socket: Open) -> None:
    with open_socket() as socket:
        socket.subscribe(WAITING)
        run = socket.command("run.start", assistant_id="agent", input={"a": 1})["result"]["run_id"]
        Host(run).ask(p="sure?", q="really?")
        asked = [event for event in socket.until("lifecycle", "interrupted") if "input" in event["method"]]
        ids = [event["params"]["data"]["interrupt_id"] for event in asked]
        assert sorted(ids) == ["p", "q"]
        responses = [{"interrupt_id": id, "response": "yes"} for id in ids]
        answer = socket.command("input.respond", responses=responses)
        assert (answer["result"], answer["meta"]) == ({}, {"applied_through_seq": 2 * RUN})
        again = socket.command("input.respond", responses=responses)
        assert again["error"] == "no_such_interrupt"


def test_a_refused_command_has_its_code(open_socket: Open, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, dict[str, Any], str]] = [
        ("run.start", {}, "invalid_argument"),
        ("run.start", {"assistant_id": "nope"}, "unknown_error"),
        ("input.respond", {"interrupt_id": "x"}, "no_such_run"),
        ("subscription.subscribe", {}, "invalid_argument"),
        ("subscription.subscribe", {"channels": ["nope"]}, "invalid_argument"),
        ("subscription.unsubscribe", {}, "invalid_argument"),
        ("subscription.unsubscribe", {"subscription_id": "x"}, "no_such_subscription"),
        ("subscription.reconnect", {"run_id": "x"}, "not_supported"),
        ("state.get", {}, "not_supported"),
        ("none.such", {}, "unknown_command"),
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
