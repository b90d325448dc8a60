"""A thread's stream: open across its runs, with modes, replay and errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from sqlalchemy import text

from shared import thread_runs
from shared.eventlog import events
from shared.hosts import calls
from shared.hosts.pending_calls import HostCall
from shared.infra import redis
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from shared.thread_stream import StreamPosition
from tests.contract.conftest import Api
from tests.contract.statements import execute
from tests.support.acting import Actor, act

HEARTBEAT = b": heartbeat\r\n\r\n"
FAILURE = {"error": "ValueError", "message": "boom"}


class Stream:
    """An open thread stream. The frequent heartbeats of tests keep its reads from blocking."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._seen = b""

    def until(self, name: str, count: int = 1) -> list[tuple[str, Any, str]]:
        """Return the events since the last call, up to the `count`th one of this name."""
        wanted = f"event: {name}\r\n".encode()
        while self._seen.count(wanted) < count:
            self._seen += next(self._chunks).replace(HEARTBEAT, b"")
        seen, self._seen = self._seen, b""
        return [parsed(event) for event in seen.decode().split("\r\n\r\n") if event]

    def beats(self, count: int) -> list[tuple[str, Any, str]]:
        """Return the events that arrive before this many heartbeats."""
        seen = b""
        while seen.count(HEARTBEAT) < count:
            seen += next(self._chunks)
        return [parsed(event) for event in seen.replace(HEARTBEAT, b"").decode().split("\r\n\r\n") if event]

    @property
    def ends(self) -> bool:
        return not b"".join(self._chunks).replace(HEARTBEAT, b"")


def parsed(event: str) -> tuple[str, Any, str]:
    if event.startswith(":"):
        return event.removeprefix(": "), None, ""
    name, data, id = event.split("\r\n")
    return (
        name.removeprefix("event: "),
        orjson.loads(data.removeprefix("data: ")),
        id.removeprefix("id: "),
    )


@contextmanager
def follow(api: Api, thread_id: str, query: str = "", last: str | None = None) -> Iterator[Stream]:
    headers = {} if last is None else {"Last-Event-ID": last}
    response = api.get(f"/threads/{thread_id}/stream{query}", headers=headers, buffered=False)
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert "Location" not in response.headers
    yield Stream(response.iter_encoded())
    response.close()


def start(api: Api, thread_id: str, **body: Any) -> str:
    return api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", **body}).json["run_id"]


def began(run_id: str, id: str, attempt: int = 1) -> tuple[str, Any, str]:
    return "metadata", {"run_id": run_id, "attempt": attempt}, id


def done(run_id: str, id: str) -> tuple[str, Any, str]:
    return "metadata", {"status": "run_done", "run_id": run_id}, id


def sent(run_id: str, number: int) -> list[tuple[str, Any, str]]:
    """Return the events of a run executed by `act(run_id, {"n": number})`."""
    return [
        began(run_id, f"{number}-1"),
        ("values", {"n": number}, f"{number}-2"),
        done(run_id, f"{number}-3"),
    ]


def test_a_subgraphs_messages_so_far_are_sent_under_the_name_that_clients_know(
    api: Api, thread_id: str
) -> None:
    with follow(api, thread_id) as stream:
        run_id = start(api, thread_id, stream_mode=["messages", "values"], stream_subgraphs=True)
        actor = Actor(run_id)
        for name in ("messages/metadata|child:1", "messages/partial|child:1", "values|child:1"):
            actor.emit(name, [])
        actor.finish({})
        seen = [name for name, _, _ in stream.until("metadata", 2)]
        assert seen == ["metadata", "messages/metadata", "messages/partial", "values|child:1", "metadata"]


def test_a_failed_run_is_sent_with_its_error_and_the_next_one_follows(api: Api, thread_id: str) -> None:
    with follow(api, thread_id) as stream:
        run_id = start(api, thread_id)
        Actor(run_id).finish(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=FAILURE)
        assert stream.until("metadata", 2) == [
            began(run_id, "1-1"),
            ("error", FAILURE, "1-2"),
            done(run_id, "1-3"),
        ]
        run_id = start(api, thread_id)
        act(run_id, {"n": 2})
        assert stream.until("metadata", 2) == sent(run_id, 2)


def test_runs_that_wait_when_it_opens_are_sent_whole_and_in_order(api: Api, thread_id: str) -> None:
    ids = [start(api, thread_id) for _ in range(3)]
    with follow(api, thread_id) as stream:
        assert stream.beats(1) == []
        for number, run_id in enumerate(ids, 1):
            act(run_id, {"n": number})
        assert stream.until("metadata", 6) == [event for n, id in enumerate(ids, 1) for event in sent(id, n)]


def test_a_run_under_way_is_sent_from_now_on(api: Api, thread_id: str) -> None:
    run_id = start(api, thread_id)
    actor = Actor(run_id)
    actor.emit("values", {"old": True})
    with follow(api, thread_id) as stream:
        assert stream.beats(1) == []
        actor.emit("values", {"n": 1})
        actor.finish({})
        assert stream.until("metadata") == [("values", {"n": 1}, "1-3"), done(run_id, "1-4")]


def test_a_run_that_is_cancelled_or_deleted_before_it_began_does_not_stop_the_others(
    api: Api, thread_id: str
) -> None:
    with follow(api, thread_id) as stream:
        first, cancelled, deleted, last = [start(api, thread_id) for _ in range(4)]
        assert stream.beats(1) == []
        assert api.post(f"/threads/{thread_id}/runs/{cancelled}/cancel").status_code == 202
        assert api.delete(f"/threads/{thread_id}/runs/{deleted}").status_code == 204
        act(first, {"n": 1})
        act(last, {"n": 4})
        seen = stream.until("metadata", 5)
        assert [event for event in seen if event[1].get("run_id") != cancelled] == [
            *sent(first, 1),
            *sent(last, 4),
        ]


def test_a_run_that_was_sent_halfway_and_is_rolled_back_ends(api: Api, thread_id: str) -> None:
    with follow(api, thread_id) as stream:
        run_id = start(api, thread_id)
        actor = Actor(run_id)
        stream.until("metadata")
        execute("DELETE FROM run")
        actor.end("rollback")
        assert stream.until("metadata") == [done(run_id, "1-2")]


def test_resumable_runs_are_replayed_after_an_id(api: Api, thread_id: str, subtests: pytest.Subtests) -> None:
    for number in (1, 2, 3):
        act(start(api, thread_id, stream_resumable=number != 2), {"n": number})
    rows = [
        (None, ""), ("nonsense", ""), ("3-9", ""), ("4-0", ""), ("3-3", ""), ("²-1", ""), ("1-" + "9" * 40, ""),
        ("-", "1-1 1-2 1-3 3-1 3-2 3-3"),
        ("0", "1-1 1-2 1-3 3-1 3-2 3-3"),
        ("1-1", "1-2 1-3 3-1 3-2 3-3"),
        ("1-3", "3-1 3-2 3-3"),
        ("2-0", "3-1 3-2 3-3"),
        ("2-1", "2-3 3-1 3-2 3-3"),  # only the end of a run that cannot be replayed
        ("2-3", "3-1 3-2 3-3"),
        ("3-2", "3-3"),
        ("99-1", ""),
    ]  # fmt: skip
    for number, (last, seen) in enumerate(rows, 4):
        with subtests.test(last=last), follow(api, thread_id, last=last) as stream:
            assert [id for _, _, id in stream.beats(3)] == seen.split()
            run_id = start(api, thread_id)
            act(run_id, {"n": number})
            assert stream.until("metadata", 2) == sent(run_id, number)


def test_what_came_while_nobody_listened_is_sent_once(api: Api, thread_id: str) -> None:
    ids = [start(api, thread_id, stream_resumable=True) for _ in range(3)]
    act(ids[0], {"n": 1})
    actor = Actor(ids[1])
    actor.emit("values", {"n": 2})
    with follow(api, thread_id, last="1-2") as stream:
        assert [id for _, _, id in stream.until("values")] == ["1-3", "2-1", "2-2"]
        actor.finish({})
        act(ids[2], {"n": 3})
        assert [id for _, _, id in stream.until("metadata", 3)] == ["2-3", "3-1", "3-2", "3-3"]


def test_events_that_are_gone_are_said_to_be(api: Api, thread_id: str) -> None:
    run_id = start(api, thread_id, stream_resumable=True)
    act(run_id, {"n": 1})
    redis.client().flushall()
    with follow(api, thread_id, last="1-1") as stream:
        assert stream.until("metadata")[:2] == [("history expired", None, ""), done(run_id, "1-2")]


@pytest.mark.parametrize(("last", "seen"), [("1-2", ["1-3"]), ("1-3", [])])
def test_a_reader_of_a_run_that_ended_meanwhile_gets_its_end_once(
    api: Api, thread_id: str, last: str, seen: list[str]
) -> None:
    run_id = start(api, thread_id)
    act(run_id, {"n": 1})
    for _ in range(2):  # with the run's event log and without it
        with follow(api, thread_id, last=last) as stream:
            ends = stream.until("metadata") if seen else stream.beats(3)
        assert [event for event in ends if event[1]] == [done(run_id, id) for id in seen]
        redis.client().flushall()


def test_a_lost_notification_costs_time_and_no_event(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_runs, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(events, "WAKE_UP", b"")
    with follow(api, thread_id) as stream:
        assert stream.beats(1) == []
        run_id = start(api, thread_id)
        act(run_id, {"n": 1})
        assert stream.until("metadata", 2) == sent(run_id, 1)


def test_it_ends_with_its_thread(api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_runs, "LOOK_SECONDS", 3_600)  # relies on the notification
    with follow(api, thread_id) as stream:
        assert stream.beats(1) == []
        api.delete(f"/threads/{thread_id}")
        assert stream.ends


def test_of_each_run_comes_what_its_creator_asked_for(api: Api, thread_id: str) -> None:
    with follow(api, thread_id) as stream:
        ids = [start(api, thread_id), start(api, thread_id, stream_mode="custom", stream_subgraphs=True)]
        for run_id in ids:
            actor = Actor(run_id)
            for name in ("values", "values|child:1", "custom|child:1"):
                actor.emit(name, 1)
            actor.finish({})
        seen = [(name, id) for name, _, id in stream.until("metadata", 4)]
    assert seen == [
        *[("metadata", "1-1"), ("values", "1-2"), ("metadata", "1-5")],
        *[("metadata", "2-1"), ("custom|child:1", "2-4"), ("metadata", "2-5")],
    ]


def test_lifecycle_sends_that_runs_begin_and_end(api: Api, thread_id: str) -> None:
    with follow(api, thread_id, "?stream_mode=lifecycle") as stream:
        run_id = start(api, thread_id)
        act(run_id, {"n": 1})
        assert stream.until("metadata", 2) == [began(run_id, "1-1"), done(run_id, "1-3")]


def test_state_update_sends_each_state_by_whomever_it_was_written(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"next": [], "tasks": [], "checkpoint_id": None}
    with follow(api, thread_id, "?stream_mode=state_update") as stream:
        assert stream.beats(1) == []
        Actor(start(api, thread_id)).finish({"n": 1}, state=document)
        (first,) = stream.until("state_update")
        _update_state(api, thread_id, monkeypatch, {"n": 2})
        (second,) = stream.until("state_update")
        assert stream.beats(2) == []
    assert first[:2] == ("state_update", {"values": {"n": 1}, **document})
    assert second[1]["values"] == {"n": 2}
    assert first[2].startswith("2-0-")
    assert int(first[2].rpartition("-")[2]) < int(second[2].rpartition("-")[2])

    for last, seen in ((first[2], [second]), (second[2], []), ("-", [("state_update", second[1])])):
        with follow(api, thread_id, "?stream_mode=state_update", last=last) as stream:
            again = stream.beats(2)
        assert [event[: len(wanted)] for event, wanted in zip(again, seen, strict=True)] == seen


def _update_state(api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]) -> None:
    """Update the state as a runner does: write the row, then answer the call."""

    def call(request: HostCall) -> bytes:
        with connection() as conn:
            update = "UPDATE thread SET values = CAST(:values AS json), state_updated_at = now()"
            conn.execute(text(update), {"values": orjson.dumps(values).decode()})
        return b'{"checkpoint":{"checkpoint_id":"x"}}'

    monkeypatch.setattr(calls, "call", call)
    response = api.post(f"/threads/{thread_id}/state", {"values": values})
    assert response.status_code == 200, response.text


def test_modes_may_be_combined_in_every_spelling(api: Api, thread_id: str) -> None:
    for number, query in enumerate(
        (
            "?stream_mode=run_modes&stream_mode=state_update",
            "?stream_mode=run_modes,state_update",
            '?stream_mode=["run_modes","state_update"]',
        ),
        1,
    ):
        with follow(api, thread_id, query) as stream:
            run_id = start(api, thread_id)
            act(run_id, {"n": number})
            seen = stream.until("state_update")
            told = [(name, data) for name, data, _ in seen[:-1]]
            assert (query, told) == (query, [event[:2] for event in sent(run_id, number)])
            assert (query, [id.count("-") for _, _, id in seen]) == (query, [2] * 4)
    for query, status in (("?stream_mode=nonsense", 422), ("?stream_mode=", 200)):
        response = api.get(f"/threads/{thread_id}/stream{query}", buffered=False)
        assert (query, response.status_code) == (query, status)
        response.close()


def test_a_position_is_read_from_an_id() -> None:
    read = [StreamPosition.parse(id) for id in ("3-7", "3-7-5", " - ")]
    assert read == [StreamPosition(3, 7), StreamPosition(3, 7, 5), StreamPosition(1, 0, 0)]
    for id in ("", None, "7", "3-7-", "a-b"):
        assert StreamPosition.parse(id) is None, id
