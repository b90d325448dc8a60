"""A thread's events by protocol v2: content for runs of any origin, visibility, and framing."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask

from shared import thread_runs
from shared.eventlog import events
from shared.infra import redis
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from shared.runs import end_event, finish
from tests.contract.conftest import Api, caller, new_key
from tests.contract.statements import execute, scalar
from tests.support.acting import act
from tests.support.protocol import (
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
