"""A thread's events by protocol v2: content, visibility and framing; start positions; runs whose logs are gone."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from redis.exceptions import ConnectionError

from shared import thread_runs
from shared.errors import Unavailable
from shared.eventlog import events, follow
from shared.infra import redis
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from shared.protocol import lifecycle, stream
from shared.runs import end_event, finish
from tests.contract.conftest import Api, caller, new_key
from tests.contract.statements import execute, scalar
from tests.support.acting import act
from tests.support.protocol import (
    ALL,
    AT,
    RUN,
    WAITING,
    WHOLE,
    Host,
    brief,
    classic,
    command,
    one_run,
    replay,
    started,
    stored_joined,
    subscribed,
)
from web.gate import limits


def milliseconds(run_id: str, column: str) -> int:
    at = scalar(f"SELECT {column} FROM run WHERE run_id = :id", id=run_id)
    assert isinstance(at, datetime)
    return round(at.timestamp() * 1000)


def test_a_run_is_shown_from_its_beginning_to_its_end(api: Api, thread_id: str) -> None:
    with subscribed(api, thread_id) as reader:
        run_id = one_run(api, thread_id)
        events = reader.quiet()
    assert [event["event_id"] for event in events] == [
        f"synth:{run_id}:lc||running",
        f"{run_id}:2",
        f"synth:{run_id}:lc||completed",
    ]
    assert [event["seq"] for event in events] == [RUN + 1, RUN + 2, 2 * RUN - 1]
    assert [event["params"] for event in events] == [
        {
            "namespace": [],
            "timestamp": milliseconds(run_id, "started_at"),
            "data": {"event": "running", "graph_name": "agent"},
        },
        {"namespace": [], "timestamp": AT, "data": {"n": 1}},
        {
            "namespace": [],
            "timestamp": milliseconds(run_id, "ended_at"),
            "data": {"event": "completed", "graph_name": "agent"},
        },
    ]


def test_every_connection_says_the_same_of_an_event(api: Api, thread_id: str) -> None:
    with subscribed(api, thread_id) as live, subscribed(api, thread_id, ["values"]) as narrow:
        seen: list[Any] = []
        for _ in range(3):  # a stream stays open across runs
            one_run(api, thread_id)
            seen += live.until("lifecycle completed")
        assert brief(seen) == 3 * WHOLE
        assert narrow.quiet() == [event for event in seen if event["method"] == "values"]
    assert replay(api, thread_id) == seen[-3:]
    assert replay(api, thread_id, since=0) == seen


def test_a_run_of_an_older_endpoint_appears_live_and_later(api: Api, thread_id: str) -> None:
    run_id = classic(api, thread_id)
    act(run_id, {"n": 1})
    assert brief(replay(api, thread_id)) == [
        f"the content of run {run_id} was not stored",
        "lifecycle running",
        "lifecycle completed",
    ]
    with subscribed(api, thread_id, WAITING) as reader:
        act(classic(api, thread_id), {"n": 2})
        assert brief(reader.until("lifecycle completed")) == ["lifecycle running", "lifecycle completed"]


def test_only_the_channels_and_namespaces_that_were_named_come(api: Api, thread_id: str) -> None:
    host = Host(started(api, thread_id)["result"]["run_id"])
    for namespace in ([], ["child:1"], ["child:2"], ["child:1", "inner:3"]):
        host.show("values", {}, namespace=namespace)
    host.show("input.answered", {"interrupt_ids": ["x"]})
    host.show("custom", {"name": "a", "payload": 1}, name="a")
    host.show("custom", {"payload": 2})
    host.ask(q="?")

    def seen(*channels: str, **more: Any) -> list[tuple[str, list[str]]]:
        events = replay(api, thread_id, channels, since=0, **more)
        return [(event["method"], event["params"]["namespace"]) for event in events]

    assert seen("custom:a", "input") == [("input.answered", []), ("custom", []), ("input.requested", [])]
    assert seen("custom:b", "tools") == []
    everything = seen("values")
    assert len(everything) == 4
    assert seen("values", namespaces=[[]]) == seen("values", namespaces=[]) == everything
    assert seen("values", namespaces=[["child"]], depth=0) == [
        ("values", ["child:1"]),
        ("values", ["child:2"]),
    ]
    assert seen("values", namespaces=[["child:1"]]) == [
        ("values", ["child:1"]),
        ("values", ["child:1", "inner:3"]),
    ]


def test_how_a_run_ended_is_said_in_the_protocols_words(api: Api, thread_id: str) -> None:
    def last(**more: Any) -> Any:
        return replay(api, thread_id, WAITING, since=0)[-1]["params"]["data"]

    Host(started(api, thread_id)["result"]["run_id"]).fail("ValueError", "boom")
    assert last() == {"event": "failed", "graph_name": "agent", "error": "boom"}
    timed_out = Host(started(api, thread_id)["result"]["run_id"])
    error = {"error": "TimeoutError", "message": "too slow"}
    timed_out.finish(status=RunStatus.TIMEOUT, thread_status=ThreadStatus.ERROR, error=error)
    assert last() == {"event": "failed", "graph_name": "agent", "error": "too slow"}
    cancelled = Host(started(api, thread_id)["result"]["run_id"])
    cancelled.finish(status=RunStatus.INTERRUPTED, thread_status=ThreadStatus.INTERRUPTED, error=error)
    assert last() == {"event": "interrupted", "graph_name": "agent"}
    Host(started(api, thread_id)["result"]["run_id"]).ask(q="?")
    assert last() == {"event": "interrupted", "graph_name": "agent"}


def test_a_refused_strict_resume_says_what_is_still_open(api: Api, thread_id: str) -> None:
    Host(started(api, thread_id)["result"]["run_id"]).ask(q="?", r="!")
    command(api, thread_id, "input.respond", interrupt_id="q", response=1, strict_resume=True)
    run_id = api.get(f"/threads/{thread_id}/runs").json[0]["run_id"]
    host = Host(run_id)
    interrupts = {"task": [{"id": "r", "value": "!"}]}
    error = {"error": "UnknownInterruptError", "message": "Unknown or already answered interrupt: q"}
    host.finish(
        status=RunStatus.ERROR, thread_status=ThreadStatus.INTERRUPTED, error=error, interrupts=interrupts
    )
    assert replay(api, thread_id, WAITING)[-1]["params"]["data"] == {
        "event": "failed",
        "graph_name": "agent",
        "error": error["message"],
        "reason": "UnknownInterruptError",
        "interrupt_ids": ["q"],
        "pending_ids": ["r"],
    }


@pytest.mark.parametrize("is_log_lost", [False, True])
@pytest.mark.parametrize("by", ["cancel", "delete"])
def test_a_run_that_was_stopped_before_it_began_is_not_shown(
    api: Api, thread_id: str, by: str, is_log_lost: bool
) -> None:
    host = Host(started(api, thread_id)["result"]["run_id"])
    with subscribed(api, thread_id, WAITING) as reader:
        run_id = started(api, thread_id)["result"]["run_id"]
        path = f"/threads/{thread_id}/runs/{run_id}"
        stopped = api.post(f"{path}/cancel") if by == "cancel" else api.delete(path)
        assert stopped.status_code in (202, 204)
        if is_log_lost:
            redis.client().delete(events.log_key(UUID(run_id)), events.meta_key(UUID(run_id)))
        host.finish({})
        for _ in range(2):
            assert brief(reader.until("lifecycle completed")) == ["lifecycle running", "lifecycle completed"]
            one_run(api, thread_id)
    assert not any(run_id in event["event_id"] for event in replay(api, thread_id, WAITING, since=RUN))


def test_a_run_that_is_deleted_while_it_is_watched_and_has_not_begun_is_not_shown(
    api: Api, thread_id: str
) -> None:
    with subscribed(api, thread_id, WAITING) as reader:
        run_id = started(api, thread_id)["result"]["run_id"]
        assert reader.quiet() == []
        assert api.delete(f"/threads/{thread_id}/runs/{run_id}").status_code == 204
        assert reader.quiet() == []
        one_run(api, thread_id)
        assert brief(reader.until("lifecycle completed")) == ["lifecycle running", "lifecycle completed"]


def test_a_run_that_is_rolled_back_after_it_began_ends_as_interrupted(api: Api, thread_id: str) -> None:
    with subscribed(api, thread_id, WAITING) as reader:
        run_id = started(api, thread_id)["result"]["run_id"]
        host = Host(run_id)
        host.show("values", {"n": 1})
        assert brief(reader.until("lifecycle running")) == ["lifecycle running"]
        with connection() as conn:
            finish.roll_back(conn, host.run, error={"error": "UserRollback", "message": "rolled back"})
        host.end(end_event.ROLLBACK)
        assert [event["event_id"] for event in reader.quiet()] == [f"synth:{run_id}:lc||interrupted"]


def test_a_second_attempt_begins_nothing_anew(api: Api, thread_id: str) -> None:
    run_id = started(api, thread_id)["result"]["run_id"]
    Host(run_id, "first").show("values", {"n": 1})
    execute("UPDATE run SET status = 'pending', owner = NULL")
    again = Host(run_id, "second")
    again.show("values", {"n": 2})
    again.finish({})
    events = replay(api, thread_id)
    assert brief(events) == ["lifecycle running", "values", "values", "lifecycle completed"]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)


# Threads that are created or deleted


def test_a_thread_that_is_not_there_yet_is_waited_for_by_who_may_make_it(
    app: Flask, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_runs, "LOOK_SECONDS", 0.1)
    thread_id = str(uuid4())
    reader = Api(caller(app, new_key("read")), api.deployment)
    refused = reader.post(f"/threads/{thread_id}/stream/events", {"channels": ["values"]})
    assert (refused.status_code, refused.json) == (404, {"detail": f"Thread with ID {thread_id} not found"})
    with subscribed(api, thread_id) as stream:
        assert stream.quiet() == []
        one_run(api, thread_id)
        assert brief(stream.until("lifecycle completed")) == WHOLE


def test_a_thread_that_is_deleted_ends_its_streams(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_runs, "LOOK_SECONDS", 3_600)  # relies on the notification
    with subscribed(api, thread_id) as reader:
        assert reader.quiet() == []
        api.delete(f"/threads/{thread_id}")
        assert reader.until_end() == [
            {
                "type": "error",
                "id": None,
                "error": "no_such_run",
                "message": f"Thread {thread_id} was deleted",
            }
        ]


def test_a_stream_of_a_thread_of_others_is_that_of_one_nobody_has(api: Api, neighbour: Api) -> None:
    thread_id = neighbour.post("/threads").json["thread_id"]
    one_run(neighbour, thread_id)
    assert replay(api, thread_id, since=0) == []
    assert len(replay(neighbour, thread_id, since=0)) == 3


# Watched threads


def test_runs_of_a_thread_that_is_watched_are_to_write_content(api: Api, thread_id: str) -> None:
    waiting = classic(api, thread_id)
    assert stored_joined(waiting) is None
    with subscribed(api, thread_id, WAITING):
        new = classic(api, thread_id, stream_mode="updates")
    later = classic(api, thread_id)
    for run_id in (waiting, new, later):
        assert stored_joined(run_id) == {"stream_mode": ["protocol"], "subgraphs": False}
    record = api.get(f"/threads/{thread_id}/runs/{new}").json
    assert "joined" not in record.keys() | record["kwargs"].keys()
    assert record["kwargs"]["stream_mode"] == ["updates"]


def test_content_is_not_written_for_who_has_left_long_ago(api: Api, thread_id: str) -> None:
    replay(api, thread_id)
    execute("UPDATE thread SET protocol_until = now() - interval '1 second'")
    assert stored_joined(classic(api, thread_id)) is None


def test_the_owner_of_a_running_run_is_notified_that_somebody_watches(api: Api, thread_id: str) -> None:
    host = Host(classic(api, thread_id))
    with redis.client().pubsub() as heard:
        heard.subscribe(redis.control_channel(host.run.owner))
        assert heard.get_message(timeout=5)["type"] == "subscribe"  # type: ignore[index]
        replay(api, thread_id)
        message: Any = heard.get_message(timeout=5)
    assert b'"action":"widen"' in message["data"]
    assert b'"protocol"' in message["data"]


def test_watching_is_said_again(api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.protocol.watching.RENEW_SECONDS", 0.01)
    with subscribed(api, thread_id) as reader:
        execute("UPDATE thread SET protocol_until = NULL")
        reader.quiet()
        assert scalar("SELECT protocol_until > now() FROM thread")


# Rejected subscriptions


def test_a_bad_subscription_is_refused(api: Api, thread_id: str, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ({"channels": []}, 400, "channels: must have at least 1 item"),
        ({"channels": ["values", "nope"]}, 400, "channels.1: unknown channel 'nope'"),
        ({"channels": ["input.requested"]}, 400, "channels.0: unknown channel 'input.requested'"),
        ({"channels": ["custom:"]}, 400, "channels.0: unknown channel 'custom:'"),
        ({"channels": ["values"], "since": True}, 422, "since: must be an integer"),
    ]  # fmt: skip
    for body, status, said in rows:
        with subtests.test(body=body, status=status, said=said):
            response = api.post(f"/threads/{thread_id}/stream/events", body)
            assert (response.status_code, response.json) == (status, {"detail": said})


def test_a_stream_holds_a_slot_of_its_key(app: Flask, api: Api, thread_id: str) -> None:
    key = new_key("run")
    reader = Api(caller(app, key), api.deployment)
    most = 2
    api.set(streams_per_key=most)
    limits.start(app)
    path, body = f"/threads/{thread_id}/stream/events", {"channels": ["values"]}
    opened = [reader.post(path, body, buffered=False) for _ in range(most)]
    assert {response.status_code for response in opened} == {200}
    assert reader.post(path, body).status_code == 429
    opened.pop().close()
    with subscribed(reader, thread_id):
        pass
    for response in opened:
        response.close()


# Start of a stream without a position


def test_watchers_are_given_an_end_once_and_content_does_not_count_for_them(api: Api, thread_id: str) -> None:
    one_run(api, thread_id)
    assert brief(replay(api, thread_id, WAITING)) == ["lifecycle running", "lifecycle completed"]
    assert replay(api, thread_id, WAITING) == []
    assert brief(replay(api, thread_id)) == WHOLE

    one_run(api, thread_id)
    replay(api, thread_id)
    assert brief(replay(api, thread_id, WAITING)) == ["lifecycle running", "lifecycle completed"]


def test_nobody_waits_for_the_end_of_a_run_that_no_command_made(api: Api, thread_id: str) -> None:
    act(classic(api, thread_id), {"n": 1})
    with subscribed(api, thread_id, WAITING) as watcher:
        assert watcher.quiet() == []
        run_id = one_run(api, thread_id)
        assert {event["event_id"].split(":")[1] for event in watcher.quiet()} == {run_id}


def test_a_stream_begins_with_the_oldest_run_that_has_not_ended(api: Api) -> None:
    for channels in (ALL, WAITING):
        thread_id = api.post("/threads").json["thread_id"]
        one_run(api, thread_id)
        ids = [started(api, thread_id)["result"]["run_id"] for _ in range(2)]
        host = Host(ids[0])
        with subscribed(api, thread_id, channels) as reader:
            assert [event["event_id"] for event in reader.quiet()] == [f"synth:{ids[0]}:lc||running"]
            host.finish({})
            Host(ids[1]).finish({})
            assert [event["event_id"] for event in reader.quiet()] == [
                f"synth:{ids[0]}:lc||completed",
                f"synth:{ids[1]}:lc||running",
                f"synth:{ids[1]}:lc||completed",
            ]


def test_a_stream_begins_with_the_run_that_asks(api: Api, thread_id: str) -> None:
    run_id = started(api, thread_id)["result"]["run_id"]
    Host(run_id).ask(q="?")
    for _ in range(2):
        events = replay(api, thread_id, WAITING)
        assert brief(events) == ["lifecycle running", "input.requested", "lifecycle interrupted"]
    assert events[1]["event_id"] == f"synth:{run_id}:input||q"
    assert events[1]["params"]["data"] == {"interrupt_id": "q", "payload": "?", "value": "?"}


def test_the_answer_to_a_start_names_the_position_before_its_run(api: Api, thread_id: str) -> None:
    one_run(api, thread_id)
    answer = started(api, thread_id)
    through = answer["meta"]["applied_through_seq"]
    assert through > replay(api, thread_id, since=0)[2]["seq"]
    Host(answer["result"]["run_id"]).finish({})
    assert brief(replay(api, thread_id, WAITING, since=through)) == [
        "lifecycle running",
        "lifecycle completed",
    ]


def test_a_reader_goes_on_after_each_event_without_loss(api: Api, thread_id: str) -> None:
    for _ in range(2):
        host = Host(started(api, thread_id)["result"]["run_id"])
        for n in range(3):
            host.show("messages", {"n": n})
        host.finish({})
    whole = replay(api, thread_id, since=0)
    assert len(whole) == 10
    for at, event in enumerate(whole):
        assert replay(api, thread_id, since=event["seq"]) == whole[at + 1 :]


def test_before_the_beginning_is_the_beginning_and_beyond_the_end_nothing_old(
    api: Api, thread_id: str
) -> None:
    one_run(api, thread_id)
    assert brief(replay(api, thread_id, since=-5)) == WHOLE
    for beyond in (2 * RUN, 5 * RUN, 1 << 60):
        with subscribed(api, thread_id, since=beyond) as reader:
            assert reader.quiet() == [], beyond
            one_run(api, thread_id)
            assert brief(reader.until("lifecycle completed")) == WHOLE, beyond


# Events without a log


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every ended run as having ended long ago."""
    monkeypatch.setattr(stream, "SETTLED_SECONDS", -60)


def test_lifecycle_is_the_same_when_the_log_was_lost(api: Api, thread_id: str, settled: None) -> None:
    one_run(api, thread_id)
    before = replay(api, thread_id, ["lifecycle"], since=0)
    redis.client().flushall()
    assert replay(api, thread_id, ["lifecycle"], since=0) == ["history expired", *before]


def test_what_is_asked_is_in_the_row_when_the_log_was_lost(api: Api, thread_id: str, settled: None) -> None:
    Host(started(api, thread_id)["result"]["run_id"]).ask(q="?", r={"deep": 1})
    before = replay(api, thread_id, WAITING)
    redis.client().flushall()
    after = replay(api, thread_id, WAITING)
    assert brief(after) == ["history expired", *brief(before)]
    assert [event["event_id"] for event in after[1:]] == [event["event_id"] for event in before]
    assert [event["params"]["data"] for event in after[1:]] == [event["params"]["data"] for event in before]
    numbers = [event["seq"] for event in after[1:]]
    assert numbers == sorted(numbers)
    assert replay(api, thread_id, WAITING, since=numbers[1])[1:] == after[3:]


@pytest.mark.parametrize("unwritten", [0, 1])
def test_a_running_run_whose_log_is_lost_ends_all_the_same(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch, unwritten: int
) -> None:
    """The reader learns whether it lacks any event."""
    for name in ("SELF_CHECK_SECONDS", "ROW_CHECK_SECONDS", "SETTLE_SECONDS"):
        monkeypatch.setattr(follow, name, 0.05)
    monkeypatch.setattr(Host, "end", lambda *said: None)  # the owner cannot reach Redis
    host = Host(started(api, thread_id)["result"]["run_id"])
    host.show("values", {"n": 1})
    with subscribed(api, thread_id) as reader:
        before = reader.quiet()
        redis.client().flushall()
        host._next += unwritten
        host.finish({})
        after = reader.until("lifecycle completed")
    assert brief(after) == [*["history expired"] * unwritten, "lifecycle completed"]
    assert after[-1]["seq"] > before[-1]["seq"]


def test_a_log_that_cannot_be_read_now_is_not_taken_for_lost(
    api: Api, thread_id: str, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_run(api, thread_id)
    real = redis.client()
    calls = iter(range(4))

    class Away:
        def __getattr__(self, name: str) -> Any:
            if next(calls, None) is not None:
                raise ConnectionError("away")
            return getattr(real, name)

    monkeypatch.setattr("shared.eventlog.follow.server_of", lambda _: Away())
    monkeypatch.setattr(redis, "client", Away)
    with subscribed(api, thread_id) as reader:
        assert brief(reader.until("lifecycle completed")) == WHOLE


def test_a_database_that_is_away_for_a_moment_costs_nothing(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PAUSE_SECONDS", 0.0)
    real, failures = lifecycle.row, iter(range(3))

    def row(*asked: Any) -> Any:
        if next(failures, None) is not None:
            raise Unavailable("away")
        return real(*asked)

    monkeypatch.setattr(lifecycle, "row", row)
    one_run(api, thread_id)
    with subscribed(api, thread_id) as reader:
        assert brief(reader.until("lifecycle completed")) == WHOLE


def test_history_that_is_further_back_than_is_kept_is_said_to_be_gone(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.protocol.stream.KEPT_RUNS", 2)
    for _ in range(4):
        one_run(api, thread_id)
    events = replay(api, thread_id, since=0)
    assert brief(events) == ["history expired", *WHOLE, *WHOLE]
    assert events[1]["seq"] == 3 * RUN + 1
    assert brief(replay(api, thread_id, since=3 * RUN)) == [*WHOLE, *WHOLE]
