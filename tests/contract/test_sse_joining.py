"""Joining and resuming a stream: replayed events, missing events, and the end of a wait."""

from __future__ import annotations

import dataclasses
from uuid import UUID, uuid4

import orjson
import pytest
from redis.exceptions import RedisError
from sqlalchemy import text

from shared.eventlog import events, follow
from shared.eventlog.events import RESERVED
from shared.eventlog.hub import hub
from shared.fleet import Heartbeat, record_heartbeat
from shared.infra import redis
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from shared.runs import end_event
from tests.contract.conftest import Api
from tests.contract.statements import execute
from tests.contract.streaming import ALL, FAILURE, HEARTBEAT, first, join, names, sse, start, text_of
from tests.support.acting import Actor, act

EXPIRED = ": history expired\r\n\r\n"


@pytest.fixture
def ended(api: Api, thread_id: str) -> str:
    """Id of an ended resumable run whose visible events are `ALL`."""
    run_id = start(api, thread_id, stream_resumable=True)
    actor = Actor(run_id)
    actor.emit("values", {"a": 1})
    actor.emit("updates", {"n": {"a": 1}})
    actor.finish({"a": 1})
    return run_id


POSITIONS = [
    ("-1", ALL), ("-", ALL), ("0", ALL), (" -1 ", ALL), ("1", ALL[1:]), ("2", ALL[2:]), ("3", []),
    ("4", []), ("50", []), ("9999", []), ("9" * 40, []), ("nonsense", []), ("1.5", []), ("²", []), ("", []),
    (None, []),
]  # fmt: skip


def test_a_resumable_run_replays_from_an_id_and_goes_on_while_it_lives(
    api: Api, thread_id: str, ended: str, subtests: pytest.Subtests
) -> None:
    for last, seen in POSITIONS:
        with subtests.test(last=last):
            assert names(join(api, ended, last)) == seen

            run_id = start(api, thread_id, stream_resumable=True)
            actor = Actor(run_id)
            actor.emit("values", {"a": 1})
            actor.emit("updates", {"n": 1})
            response = join(api, run_id, last)
            actor.emit("custom", 1)
            actor.finish({})
            assert names(response) == [*seen, ("custom", 4)]


def test_both_addresses_of_a_run_s_stream_work(api: Api, thread_id: str, ended: str) -> None:
    path = f"/threads/{thread_id}/runs/{ended}"
    short, long = join(api, ended), api.get(f"{path}/stream", headers={"Last-Event-ID": "-1"})
    assert short.headers["Location"] == f"/runs/{ended}/stream"
    assert short.headers["Content-Location"] == f"/runs/{ended}"
    assert long.headers["Location"] == f"{path}/stream"
    assert long.headers["Content-Location"] == path
    assert names(long) == ALL


def test_all_that_is_kept_of_a_run_can_be_asked_for(api: Api, thread_id: str) -> None:
    ended, failed = start(api, thread_id), start(api, thread_id)
    act(ended, {"a": 1})
    whole = first(ended) + sse("values", {"a": 1})
    assert text_of(join(api, ended, "-")) == whole
    assert text_of(join(api, ended, "-1")) == "", "it is not resumable"
    assert text_of(join(api, ended, "-", "?stream_mode=values")) == sse("values", {"a": 1})
    actor = Actor(failed)
    actor.emit("values", {"a": 1})
    response = join(api, failed, "-")
    actor.finish(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=FAILURE)
    assert text_of(response) == first(failed) + sse("values", {"a": 1}) + sse("error", FAILURE)

    redis.client().flushall()
    assert text_of(join(api, ended, "-")) == EXPIRED
    assert text_of(join(api, failed, "-")) == EXPIRED + sse("error", FAILURE)


def test_a_run_that_is_not_resumable_is_joined_from_its_start_or_from_now_on(
    api: Api, thread_id: str
) -> None:
    run_id = start(api, thread_id)
    pending = join(api, run_id)
    actor = Actor(run_id)
    running = join(api, run_id, "0")
    actor.emit("values", {"a": 1})
    actor.finish({})
    assert text_of(pending) == first(run_id) + sse("values", {"a": 1})
    assert text_of(running) == sse("values", {"a": 1})


def test_a_failed_run_replays_its_error(api: Api, thread_id: str) -> None:
    run_id = start(api, thread_id, stream_resumable=True)
    Actor(run_id).finish(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=FAILURE)
    assert text_of(join(api, run_id, "0")) == first(run_id, id=1) + sse("error", FAILURE, 2)
    assert text_of(join(api, run_id, "1")) == sse("error", FAILURE, 2)
    assert text_of(join(api, run_id, "2")) == ""


def test_an_expired_log_says_so_and_ends_as_the_row_does(api: Api, thread_id: str, ended: str) -> None:
    failed = start(api, thread_id, stream_resumable=True)
    Actor(failed).finish(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=FAILURE)
    redis.client().flushall()
    assert text_of(join(api, ended, "2")) == EXPIRED
    assert text_of(join(api, failed, "-1")) == EXPIRED + sse("error", FAILURE)
    assert text_of(join(api, failed)) == ""


def test_a_log_that_lacks_its_end_says_so(api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SETTLE_SECONDS", 0.0)
    run_id = start(api, thread_id, stream_resumable=True)
    Actor(run_id)
    execute("UPDATE run SET status = 'success', owner = NULL")
    assert text_of(join(api, run_id, "0")) == first(run_id, id=1) + EXPIRED


@pytest.mark.parametrize("failed", [False, True])
def test_nothing_is_missing_where_the_end_alone_was_not_written(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    """A runner may be killed after it has committed a run's end and before the log contains that end."""
    monkeypatch.setattr(follow, "SETTLE_SECONDS", 0.0)
    run_id = start(api, thread_id, stream_resumable=True)
    actor = Actor(run_id)
    actor.emit("values", {"a": 1})
    if failed:
        actor.finish(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=FAILURE, dies=True)
    else:
        actor.finish({"a": 1}, dies=True)

    error = sse("error", FAILURE, 3) if failed else ""
    assert text_of(join(api, run_id, "1")) == sse("values", {"a": 1}, 2) + error
    assert text_of(join(api, run_id, "2")) == error


@pytest.fixture
def owner() -> str:
    """Id of a live runner."""
    with connection() as conn:
        heartbeat = Heartbeat(
            id="actor", kind="runner", pool="default", host_name="h", pid=1, version="1", isolation=2
        )
        record_heartbeat(conn, heartbeat)
    return heartbeat.id


SILENCE = "UPDATE worker SET seen_at = now() - interval '20 seconds'"
AGE = "UPDATE run SET ended_at = now() - interval '1 minute'"


@pytest.mark.parametrize("since", [SILENCE, AGE])
def test_an_owner_that_lives_may_hold_the_last_events_for_a_while(
    api: Api, thread_id: str, owner: str, since: str
) -> None:
    actor = Actor(start(api, thread_id), owner)
    actor.finish({"a": 1}, dies=True, unsent=1)

    assert is_held(actor, last=1)
    assert not is_held(actor, last=2), "nothing is missing"
    assert not is_held(actor, last=1, end_alone=True)
    execute(since)
    assert not is_held(actor, last=1)


def test_so_may_that_of_a_run_whose_row_has_gone(api: Api, owner: str) -> None:
    unwritten = UUID(api.post("/runs", {"assistant_id": "agent"}).json["run_id"])
    actor = Actor(api.post("/runs", {"assistant_id": "agent"}).json["run_id"], owner)
    actor.finish({"a": 1}, dies=True)

    assert is_held(actor, last=1)
    with connection() as conn:
        conn.execute(text(SILENCE))
        conn.execute(text("DELETE FROM run WHERE run_id = :id"), {"id": unwritten})
    assert not is_held(actor, last=1)
    actor.run = dataclasses.replace(actor.run, run_id=unwritten)
    assert is_held(actor, last=0), "its log does not say whose it is"


def is_held(actor: Actor, *, last: int, end_alone: bool = False) -> bool:
    """Return whether, by the run's row, a reader of the events up to `last` must wait for more."""
    end = end_event.end_of_lost(actor.run.deployment_id, actor.run.run_id, last, end_alone=end_alone)
    assert end is not None
    return end.is_held


@pytest.mark.parametrize("failed", [False, True])
def test_what_was_not_written_before_the_end_is_said_to_be_missing(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    monkeypatch.setattr(follow, "SETTLE_SECONDS", 0.0)
    run_id = start(api, thread_id, stream_resumable=True)
    actor = Actor(run_id)
    monkeypatch.setattr(events, "append", lambda _, batches, **more: [events.OK] * len(batches))
    if failed:
        actor.finish(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=FAILURE)
    else:
        actor.emit("values", {"a": 1})
        actor.finish({"a": 1})

    assert text_of(join(api, run_id, "1")) == EXPIRED + (sse("error", FAILURE) if failed else "")


def test_an_id_beyond_the_numbers_reserved_is_known_once_the_run_has_ended(api: Api, thread_id: str) -> None:
    """Events that an ended run has not sent yet may exceed the reserved numbers."""
    run_id = start(api, thread_id, stream_resumable=True)
    actor = Actor(run_id)
    for number in range(2, RESERVED + 6):
        actor.emit("custom", number)
    actor.finish({})

    assert names(join(api, run_id, str(RESERVED + 3))) == [("custom", RESERVED + 4), ("custom", RESERVED + 5)]


def test_a_log_that_begins_late_says_so(api: Api, ended: str) -> None:
    redis.client().xtrim(f"{redis.PREFIX}{{{ended}}}:log", minid="0-3", approximate=False)
    assert text_of(join(api, ended, "0")) == EXPIRED + sse("updates", {"n": {"a": 1}}, 3)
    assert names(join(api, ended, "2")) == [("updates", 3)]


def test_an_id_from_before_redis_lost_everything_still_counts(api: Api, thread_id: str) -> None:
    run_id = start(api, thread_id, stream_resumable=True)
    Actor(run_id)
    redis.client().flushall()
    response = join(api, run_id, "120")
    execute("UPDATE run SET status = 'pending', owner = NULL")
    Actor(run_id, owner="another").finish({})
    assert text_of(response) == EXPIRED + first(run_id, attempt=2, id=501)


def test_only_the_modes_asked_for_come(api: Api, ended: str) -> None:
    for query, seen in (
        ("", ALL),
        ("?stream_mode=", ALL),
        ("?stream_mode=values", ALL[1:2]),
        ("?stream_mode=values&stream_mode=updates", ALL[1:]),
        ('?stream_mode=["values","updates"]', ALL[1:]),
        ("?stream_mode=values,updates", ALL[1:]),
        ("?stream_mode=metadata", ALL[:1]),
        ("?stream_mode=nonsense", []),
        ("?checkpoint_id=x", ALL),
    ):
        assert (query, names(join(api, ended, "-1", query))) == (query, seen)
    for query in ("?cancel_on_disconnect=perhaps", "?namespace=[1]"):
        assert (query, api.get(f"/runs/{ended}/stream{query}").status_code) == (query, 422)


def test_a_mode_s_events_of_subgraphs_belong_to_it(api: Api, thread_id: str) -> None:
    run_id = start(api, thread_id, stream_resumable=True)
    actor = Actor(run_id)
    for name in (
        "messages/metadata", "messages/partial|child:1", "messages/complete", "messages", "values|child:1",
    ):  # fmt: skip
        actor.emit(name, [])
    actor.finish({})
    of_messages = ["messages/metadata", "messages/partial", "messages/complete", "messages"]
    for query, seen in (
        ("stream_mode=messages", of_messages),
        ("stream_mode=messages&namespace=child", ["messages/partial"]),
        ("stream_mode=messages&namespace=", ["messages/metadata", "messages/complete", "messages"]),
        ("stream_mode=messages-tuple", ["messages"]),
        ("stream_mode=values", ["values|child:1"]),
    ):
        found = [name for name, _ in names(join(api, run_id, "0", f"?{query}"))]
        assert (query, found) == (query, seen)


def test_a_retention_that_ends_takes_the_log(api: Api, ended: str) -> None:
    for key in redis.client().keys(f"{redis.PREFIX}{{{ended}}}:*"):
        assert 0 < redis.client().ttl(key) <= 900


@pytest.mark.parametrize("end", ["stream", "join"])
def test_an_answer_breaks_off_when_the_process_stops(api: Api, thread_id: str, end: str) -> None:
    response = api.get(f"/runs/{start(api, thread_id)}/{end}", buffered=False)
    body = response.iter_encoded()
    next(body)
    for reader in hub()._all():
        reader.close()
    with pytest.raises(ConnectionResetError):  # clients read a proper end as the run's
        list(body)
    response.close()


def test_a_run_without_a_thread_can_be_read_after_it_has_gone(api: Api) -> None:
    made = api.post(
        "/runs", {"assistant_id": "agent", "stream_resumable": True, "stream_mode": ["updates"]}
    ).json
    actor = Actor(made["run_id"])
    actor.emit("updates", {"n": 1})
    actor.finish({"a": 1}, output={"a": 1})
    place, alone = f"/threads/{made['thread_id']}/runs/{made['run_id']}", f"/runs/{made['run_id']}"
    assert api.get(place).status_code == 404, "it has gone"

    for path in (place, alone):
        assert api.get(f"{path}/join").json == {"a": 1}
        replayed = api.get(f"{path}/stream", headers={"Last-Event-ID": "-1"})
        assert text_of(replayed) == first(made["run_id"], id=1) + sse("updates", {"n": 1}, 2)
        assert text_of(api.get(f"{path}/stream")) == ""
    assert api.get(f"/threads/{uuid4()}/runs/{made['run_id']}/join").status_code == 404
    assert end_event.row_in_log(uuid4(), UUID(made["run_id"])) is None, "of another deployment"
    for key in redis.client().keys(f"{redis.PREFIX}{{{made['run_id']}}}:*"):
        redis.client().delete(key)
    assert api.get(f"{alone}/join").status_code == 404


def test_a_run_that_has_gone_is_filtered_by_what_its_readers_had_added(api: Api) -> None:
    body = {"assistant_id": "agent", "stream_resumable": True, "stream_mode": ["messages-tuple"]}
    run_id = api.post("/runs", body).json["run_id"]
    join = f"/runs/{run_id}/stream?stream_mode=messages"
    joiner = api.get(join, buffered=False)
    actor = Actor(run_id)
    for name in ("messages", "messages/partial"):
        actor.emit(name, [])
    actor.finish({})

    assert names(joiner) == [("messages/partial", 3)]
    assert names(api.get(join, headers={"Last-Event-ID": "-1"})) == [("messages/partial", 3)]


def test_a_wait_breaks_off_when_nothing_is_left_that_knows_the_output(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SETTLE_SECONDS", "HELD_SECONDS", "SELF_CHECK_SECONDS", "ROW_CHECK_SECONDS"):
        monkeypatch.setattr(follow, name, 0.0)
    made = api.post("/runs", {"assistant_id": "agent"}).json
    response = api.get(f"/runs/{made['run_id']}/join", buffered=False)
    body = response.iter_encoded()
    next(body)
    execute("DELETE FROM thread WHERE thread_id = :id", id=made["thread_id"])
    with pytest.raises(ConnectionResetError):  # `{}` would look like the run's output
        list(body)
    response.close()


@pytest.mark.parametrize("ending", ["join", "stream"])
def test_a_run_that_ends_while_redis_is_away_answers_who_waits_for_its_output(
    api: Api, thread_id: str, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """A reader of the events waits for Redis, which may have events that were not sent yet."""
    monkeypatch.setattr(follow, "AWAY_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(follow, "SELF_CHECK_SECONDS", 0.1)
    run_id = start(api, thread_id)
    actor = Actor(run_id)
    response = api.get(f"/threads/{thread_id}/runs/{run_id}/{ending}", buffered=False)
    chunks = response.iter_encoded()
    next(chunks)
    redis.use(redis.make_client("redis://127.0.0.1:1/0", timeout_seconds=0.2))
    with pytest.raises(RedisError):
        actor.finish({"a": 1})  # first its row, then its log

    if ending == "join":
        assert orjson.loads(b"".join(chunks)) == {"a": 1}
    else:
        assert [next(chunks) for _ in range(20)] == [HEARTBEAT.encode()] * 20
    response.close()
