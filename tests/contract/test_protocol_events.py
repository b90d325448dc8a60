"""A thread's events by protocol v2: where a stream begins, what it shows of runs of any origin, and its frames."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest
from flask import Flask
from redis.exceptions import ConnectionError
from sqlalchemy import text

from shared import thread_runs
from shared.access import api_keys
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.errors import Unavailable
from shared.eventlog import follow
from shared.infra import redis
from shared.infra.postgres import connection, transaction
from shared.models import RunStatus, ThreadStatus
from shared.protocol import lifecycle, stream
from tests.contract.conftest import Api, caller
from tests.support.acting import act
from tests.support.protocol import (
    ALL,
    AT,
    WAITING,
    Host,
    brief,
    command,
    replay,
    started,
    subscribed,
)

RUN = 1 << 26  # by how much the numbers of one run's events and the next one's lie apart
WHOLE = ["lifecycle running", "values", "lifecycle completed"]


def one_run(api: Api, thread_id: str, **params: Any) -> str:
    """A whole run made by a command, with one content event; its id."""
    run_id = started(api, thread_id, **params)["result"]["run_id"]
    host = Host(run_id)
    host.show("values", {"n": 1})
    host.finish({"n": 1})
    return str(run_id)


def classic(api: Api, thread_id: str, **body: Any) -> str:
    return api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", **body}).json["run_id"]


def milliseconds(run_id: str, column: str) -> int:
    with connection() as conn:
        at = conn.execute(text(f"SELECT {column} FROM run WHERE run_id = :id"), {"id": run_id}).scalar_one()
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


def test_it_stays_open_across_runs(api: Api, thread_id: str) -> None:
    with subscribed(api, thread_id) as reader:
        for _ in range(3):
            one_run(api, thread_id)
            assert brief(reader.quiet()) == WHOLE


def test_every_connection_says_the_same_of_an_event(api: Api, thread_id: str) -> None:
    with subscribed(api, thread_id) as live, subscribed(api, thread_id, ["values"]) as narrow:
        one_run(api, thread_id)
        seen = live.quiet()
        assert narrow.quiet() == [event for event in seen if event["method"] == "values"]
    assert replay(api, thread_id) == seen
    assert replay(api, thread_id, since=0) == seen


def test_a_run_of_an_older_endpoint_appears_live_and_later(api: Api, thread_id: str) -> None:
    run_id = classic(api, thread_id)
    act(run_id, {"n": 1})
    assert brief(replay(api, thread_id)) == [
        f"content of run {run_id} was not kept",
        "lifecycle running",
        "lifecycle completed",
    ]
    with subscribed(api, thread_id, WAITING) as reader:
        act(classic(api, thread_id), {"n": 2})
        assert brief(reader.quiet()) == ["lifecycle running", "lifecycle completed"]


def test_older_readers_do_not_see_events_of_the_protocol(api: Api, thread_id: str) -> None:
    run_id = started(api, thread_id)["result"]["run_id"]
    host = Host(run_id)
    host.show("custom", {"payload": 1}, name="x")
    host.emit("values", {"n": 1})
    host.finish({"n": 1})
    for path in (f"/threads/{thread_id}/runs/{run_id}/stream", f"/runs/{run_id}/stream"):
        joined = api.get(f"{path}?stream_mode=values&stream_mode=custom", headers={"Last-Event-ID": "-"})
        assert joined.text == 'event: values\r\ndata: {"n":1}\r\nid: 3\r\n\r\n'
    record = api.get(f"/threads/{thread_id}/runs/{run_id}").json
    assert record["kwargs"]["stream_mode"] == ["values", "updates", "messages-tuple", "custom"]


@pytest.mark.parametrize(
    ("channels", "seen"),
    [
        (["values"], ["values"]),
        (["input"], ["input.answered", "input.requested"]),
        (["custom"], ["custom", "custom"]),
        (["custom:a"], ["custom"]),
        (["custom:b", "tools"], []),
    ],
)  # fmt: skip
def test_only_the_channels_that_were_named_come(
    api: Api, thread_id: str, channels: list[str], seen: list[str]
) -> None:
    host = Host(started(api, thread_id)["result"]["run_id"])
    host.show("input.answered", {"interrupt_ids": ["x"]})
    host.show("custom", {"name": "a", "payload": 1}, name="a")
    host.show("custom", {"payload": 2})
    host.show("values", {})
    host.ask(q="?")
    assert brief(replay(api, thread_id, channels)) == seen


def test_only_the_namespaces_that_were_named_come(api: Api, thread_id: str) -> None:
    host = Host(started(api, thread_id)["result"]["run_id"])
    for namespace in ([], ["child:1"], ["child:2"], ["child:1", "inner:3"], ["other:4"]):
        host.show("values", {}, namespace=namespace)
    host.finish({})

    def seen(**more: Any) -> list[list[str]]:
        return [event["params"]["namespace"] for event in replay(api, thread_id, ["values"], **more)]

    everything = seen()
    assert len(everything) == 5
    assert seen(namespaces=[[]]) == seen(namespaces=[]) == everything
    assert seen(namespaces=[[]], depth=1) == [[], ["child:1"], ["child:2"], ["other:4"]]
    assert seen(namespaces=[[]], depth=0) == [[]]
    assert seen(namespaces=[["child"]]) == [["child:1"], ["child:2"], ["child:1", "inner:3"]]
    assert seen(namespaces=[["child:1"], ["other"]], depth=0) == [["child:1"], ["other:4"]]
    assert seen(namespaces=[["child:1", "inner"]]) == [["child:1", "inner:3"]]


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


def test_a_run_that_was_cancelled_before_it_began_only_ends(api: Api, thread_id: str) -> None:
    host = Host(started(api, thread_id)["result"]["run_id"])
    run_id = started(api, thread_id)["result"]["run_id"]
    api.post(f"/threads/{thread_id}/runs/{run_id}/cancel")
    host.finish({})
    assert [event["event_id"] for event in replay(api, thread_id, WAITING, since=2 * RUN - 1)] == [
        f"synth:{run_id}:lc||interrupted"
    ]


def test_a_run_that_is_rolled_back_ends_as_interrupted(api: Api, thread_id: str) -> None:
    with subscribed(api, thread_id, WAITING) as reader:
        run_id = started(api, thread_id)["result"]["run_id"]
        assert reader.quiet() == []
        assert api.delete(f"/threads/{thread_id}/runs/{run_id}").status_code == 204
        assert [event["event_id"] for event in reader.quiet()] == [f"synth:{run_id}:lc||interrupted"]
        one_run(api, thread_id)
        assert brief(reader.quiet()) == ["lifecycle running", "lifecycle completed"]


def test_a_second_attempt_begins_nothing_anew(api: Api, thread_id: str) -> None:
    run_id = started(api, thread_id)["result"]["run_id"]
    Host(run_id, "first").show("values", {"n": 1})
    with connection() as conn:
        conn.execute(text("UPDATE run SET status = 'pending', owner = NULL"))
    again = Host(run_id, "second")
    again.show("values", {"n": 2})
    again.finish({})
    events = replay(api, thread_id)
    assert brief(events) == ["lifecycle running", "values", "values", "lifecycle completed"]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)


# Where a stream begins that names no place.


def test_watchers_are_given_an_end_once(api: Api, thread_id: str) -> None:
    one_run(api, thread_id)
    assert brief(replay(api, thread_id, WAITING)) == ["lifecycle running", "lifecycle completed"]
    assert replay(api, thread_id, WAITING) == []
    assert brief(replay(api, thread_id)) == WHOLE


def test_content_does_not_count_as_an_end_given(api: Api, thread_id: str) -> None:
    one_run(api, thread_id)
    replay(api, thread_id)
    assert brief(replay(api, thread_id, WAITING)) == ["lifecycle running", "lifecycle completed"]


def test_nobody_waits_for_the_end_of_a_run_that_no_command_made(api: Api, thread_id: str) -> None:
    act(classic(api, thread_id), {"n": 1})
    with subscribed(api, thread_id, WAITING) as watcher:
        assert watcher.quiet() == []
        run_id = one_run(api, thread_id)
        assert {event["event_id"].split(":")[1] for event in watcher.quiet()} == {run_id}


def test_content_begins_with_the_newest_run_when_all_have_ended(api: Api, thread_id: str) -> None:
    for _ in range(2):
        run_id = one_run(api, thread_id)
    assert {event["event_id"].split(":")[event["event_id"].startswith("synth")] for event in replay(api, thread_id)} == {
        run_id
    }  # fmt: skip


@pytest.mark.parametrize("channels", [ALL, WAITING])
def test_a_stream_begins_with_the_oldest_run_that_has_not_ended(
    api: Api, thread_id: str, channels: tuple[str, ...]
) -> None:
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


def test_the_answer_to_a_start_names_the_place_before_its_run(api: Api, thread_id: str) -> None:
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


@pytest.mark.parametrize("beyond", [5 * RUN, 1 << 60, 2 * RUN])
def test_beyond_the_end_there_is_nothing_old(api: Api, thread_id: str, beyond: int) -> None:
    one_run(api, thread_id)
    with subscribed(api, thread_id, since=beyond) as reader:
        assert reader.quiet() == []
        one_run(api, thread_id)
        assert brief(reader.quiet()) == WHOLE


def test_before_the_beginning_is_the_beginning(api: Api, thread_id: str) -> None:
    one_run(api, thread_id)
    assert brief(replay(api, thread_id, since=-5)) == WHOLE


# What is left when a log is gone.


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has ended has ended long ago."""
    monkeypatch.setattr(stream, "SETTLED_SECONDS", -60)


def test_lifecycle_is_the_same_when_the_log_was_lost(api: Api, thread_id: str, settled: None) -> None:
    one_run(api, thread_id)
    before = replay(api, thread_id, ["lifecycle"], since=0)
    redis.client().flushall()
    assert replay(api, thread_id, ["lifecycle"], since=0) == ["history expired", *before]


def test_what_is_asked_is_told_by_the_row_when_the_log_was_lost(
    api: Api, thread_id: str, settled: None
) -> None:
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


def test_a_running_run_whose_log_is_lost_ends_all_the_same(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SELF_CHECK_SECONDS", "ROW_CHECK_SECONDS", "SETTLE_SECONDS"):
        monkeypatch.setattr(follow, name, 0.05)
    monkeypatch.setattr(Host, "end", lambda *said: None)  # as of an owner that cannot reach Redis
    host = Host(started(api, thread_id)["result"]["run_id"])
    host.show("values", {"n": 1})
    with subscribed(api, thread_id) as reader:
        before = reader.quiet()
        redis.client().flushall()
        host.finish({})
        after = reader.until("lifecycle completed")
    assert brief(after) == ["history expired", "lifecycle completed"]
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

    monkeypatch.setattr("shared.eventlog.follow.client", Away)
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


# Threads that come and go.


def test_a_thread_that_is_not_there_yet_is_waited_for(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_runs, "LOOK_SECONDS", 0.1)
    thread_id = str(uuid4())
    with subscribed(api, thread_id) as reader:
        assert reader.quiet() == []
        one_run(api, thread_id)
        assert brief(reader.quiet()) == WHOLE


def test_who_cannot_make_threads_does_not_wait_for_one(app: Flask, api: Api) -> None:
    with transaction() as session:
        key = api_keys.create(session, DEFAULT_ORGANIZATION_ID, name="reader", role="read")
    reader = Api(caller(app, key), api.deployment)
    thread_id = str(uuid4())
    response = reader.post(f"/threads/{thread_id}/stream/events", {"channels": ["values"]})
    assert (response.status_code, response.json) == (
        404,
        {"detail": f"Thread with ID {thread_id} not found"},
    )


def test_a_thread_that_is_deleted_ends_its_streams(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_runs, "LOOK_SECONDS", 0.1)
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


# Who watches.


def test_runs_of_a_thread_that_is_watched_are_to_write_content(api: Api, thread_id: str) -> None:
    waiting = classic(api, thread_id)
    assert "joined" not in _kwargs(waiting)
    with subscribed(api, thread_id, WAITING):
        new = classic(api, thread_id, stream_mode="updates")
    later = classic(api, thread_id)
    for run_id in (waiting, new, later):
        assert _kwargs(run_id)["joined"] == {"stream_mode": ["protocol"], "subgraphs": False}
    record = api.get(f"/threads/{thread_id}/runs/{new}").json
    assert "joined" not in record["kwargs"]
    assert record["kwargs"]["stream_mode"] == ["updates"]


def test_content_is_not_written_for_who_has_left_long_ago(api: Api, thread_id: str) -> None:
    replay(api, thread_id)
    with connection() as conn:
        conn.execute(text("UPDATE thread SET protocol_until = now() - interval '1 second'"))
    assert "joined" not in _kwargs(classic(api, thread_id))


def test_the_owner_of_a_running_run_hears_that_somebody_watches(api: Api, thread_id: str) -> None:
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
        with connection() as conn:
            conn.execute(text("UPDATE thread SET protocol_until = NULL"))
        reader.quiet()
        with connection() as conn:
            assert conn.execute(text("SELECT protocol_until > now() FROM thread")).scalar_one()


def _kwargs(run_id: str) -> Any:
    with connection() as conn:
        return conn.execute(text("SELECT kwargs FROM run WHERE run_id = :id"), {"id": run_id}).scalar_one()


# What is refused.


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "channels: this field is required"),
        ({"channels": None}, 400, "channels: must be an array"),
        ({"channels": "values"}, 400, "channels: must be an array"),
        ({"channels": []}, 400, "channels: must have at least 1 item"),
        ({"channels": ["values", "nope"]}, 400, "channels.1: unknown channel 'nope'"),
        ({"channels": ["input.requested"]}, 400, "channels.0: unknown channel 'input.requested'"),
        ({"channels": ["custom:"]}, 400, "channels.0: unknown channel 'custom:'"),
        ({"channels": [7]}, 400, "channels.0: must be a string"),
        ({"channels": ["values"], "namespaces": "a"}, 422, "namespaces: must be an array"),
        ({"channels": ["values"], "namespaces": ["a"]}, 422, "namespaces.0: must be an array"),
        ({"channels": ["values"], "namespaces": [[1]]}, 422, "namespaces.0.0: must be a string"),
        ({"channels": ["values"], "depth": "1"}, 422, "depth: must be an integer"),
        ({"channels": ["values"], "depth": -1}, 422, "depth: must be greater than or equal to 0"),
        ({"channels": ["values"], "since": "1"}, 422, "since: must be an integer"),
        ({"channels": ["values"], "since": True}, 422, "since: must be an integer"),
        ({"channels": ["values"], "since": 1.5}, 422, "since: must be an integer"),
    ],
)  # fmt: skip
def test_a_bad_subscription_is_refused(api: Api, thread_id: str, body: Any, status: int, said: str) -> None:
    response = api.post(f"/threads/{thread_id}/stream/events", body)
    assert (response.status_code, response.json) == (status, {"detail": said})


def test_a_bad_thread_id_is_refused(api: Api) -> None:
    response = api.post("/threads/nonsense/stream/events", {"channels": ["values"]})
    assert (response.status_code, response.json) == (422, {"detail": "Invalid thread ID: must be a UUID"})


def test_a_stream_holds_a_slot_of_its_key(app: Flask, api: Api, thread_id: str) -> None:
    with transaction() as session:
        key = api_keys.create(session, DEFAULT_ORGANIZATION_ID, name="reader", role="run")
    reader = Api(caller(app, key), api.deployment)
    most = app.config["SETTINGS"].streams_per_key
    path, body = f"/threads/{thread_id}/stream/events", {"channels": ["values"]}
    opened = [reader.post(path, body, buffered=False) for _ in range(most)]
    assert {response.status_code for response in opened} == {200}
    assert reader.post(path, body).status_code == 429
    opened.pop().close()
    with subscribed(reader, thread_id):
        pass
    for response in opened:
        response.close()
