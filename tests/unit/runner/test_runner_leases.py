"""Runs that a runner hands over, loses or takes over, and its behaviour without the database."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import gevent
import orjson
import pytest
from sqlalchemy import text

from shared import fleet
from shared.errors import OutcomeUnknown, Unavailable
from shared.eventlog.events import EXPIRED
from shared.infra import redis
from shared.infra.postgres import Driver, connection, driver
from shared.runs import cancel, claims, end_event, signals
from shared.runs.claims import Claimed
from tests.support.greened import within
from tests.support.log_records import logged_by
from tests.support.runner_bench import Bench, bench, shared_hosts
from tests.support.waiting import until
from workers.runner import claiming, host_requests
from workers.upkeep.upkeep import Upkeep


@within(bench, drain_seconds=0.1)
def test_a_runner_that_drains_hands_its_runs_over(b: Bench) -> None:
    notes = b.settings.data_dir / "notes"
    run_id = b.start("counts", {"n": 8, "file": str(notes), "seconds": 0.15}, stream_mode=["custom"])
    until(lambda: notes.exists() and len(notes.read_text().split()) >= 3)
    b.runner.drain()
    until(lambda: b.status(run_id) == "pending")
    row = b.row(run_id)
    assert (row["attempt"], row["deaths"], row["owner"]) == (1, 0, None)

    heir = b.new_runner(dataclasses.replace(b.settings, worker="heir"))
    try:
        gevent.spawn(heir.notify, [run_id])
        found = b.wait(run_id)
        assert b.status(run_id) == "success"
        assert b.thread(run_id)["values"]["log"] == list(range(8))
        steps = [orjson.loads(event.data)["step"] for event in found if event.name == "custom"]
        assert sorted(set(steps)) == list(range(8))
    finally:
        heir.close()


@within(bench, runner_slots=2, drain_seconds=60.0)
def test_a_draining_runner_waits_for_runs_that_it_claimed_from_the_backlog(b: Bench) -> None:
    ids = [b.create("counts", {"n": 4, "seconds": 0.1}) for _ in range(8)]
    task = gevent.spawn(b.runner.notify, ids)
    until(task.ready)  # the runs in flight now were claimed from the backlog, outside a task
    until(lambda: len(b.runner.executions) == 2)
    b.runner.drain()
    in_flight = set(b.runner.executions)
    b.runner.close()

    rows = {run_id: b.row(run_id) for run_id in ids}
    succeeded = {run_id for run_id, row in rows.items() if row["status"] == "success"}
    assert in_flight <= succeeded
    assert all(rows[run_id]["attempt"] == 1 for run_id in succeeded)
    waiting = [row for run_id, row in rows.items() if run_id not in succeeded]
    assert waiting
    assert all((row["status"], row["attempt"]) == ("pending", 0) for row in waiting)


@within(bench, runner_slots=1, drain_seconds=0.5)
def test_a_draining_runner_waits_no_longer_than_its_limit(b: Bench) -> None:
    ids = [b.create("echo"), b.create("sleeps", stream_mode=["custom"])]
    until(gevent.spawn(b.runner.notify, ids).ready)
    b.wait_for_event(ids[1], b"asleep")
    b.runner.drain()
    b.runner.close()

    row = b.row(ids[1])
    assert (row["status"], row["owner"], row["deaths"]) == ("pending", None, 0)


@within(bench, drain_seconds=60.0)
def test_a_draining_runner_executes_the_nested_runs_that_its_runs_may_wait_for(b: Bench) -> None:
    caller = b.start_asleep()
    b.runner.drain()
    ids = [b.create("echo", depth=depth) for depth in (0, 2, 1)]
    b.wait(ids[2])
    assert [b.status(run_id) for run_id in ids] == ["pending", "pending", "success"]

    b.cancel(caller, "interrupt")
    b.wait(caller)
    until(lambda: not b.runner.executions)
    late = b.create("echo", depth=1)
    b.runner.claim_nested()
    assert b.status(late) == "pending"


@within(bench, drain_seconds=0.0)
def test_a_runner_whose_time_to_drain_is_over_claims_no_runs(b: Bench) -> None:
    b.start_asleep()
    b.runner.drain()
    run_id, nested = b.create("echo"), b.create("echo", depth=1)
    b.runner.notify([run_id])
    b.runner.claim_nested()
    assert (b.status(run_id), b.status(nested)) == ("pending", "pending")


@within(bench)
def test_a_runner_that_an_operator_drained_finishes_what_it_has_and_takes_nothing_until_resumed(
    b: Bench,
) -> None:
    running = b.start_asleep()
    b.runner.set_drained(True)
    waiting, nested = b.create("echo"), b.create("echo", depth=1)
    b.runner.notify([waiting])
    b.wait(nested)
    b.runner.claim_unnotified()
    assert [b.status(run_id) for run_id in (running, nested, waiting)] == ["running", "success", "pending"]
    assert str(waiting) in [id for _, _, id in b.notified], "other runners are notified of it"

    b.runner.set_drained(False)
    gevent.spawn(b.runner.notify, [waiting])
    b.wait(waiting)
    assert (b.status(waiting), b.row(waiting)["attempt"]) == ("success", 1)


@within(bench)
def test_a_runner_that_closes_gives_its_runs_back(b: Bench) -> None:
    run_id = b.start_asleep()
    b.runner.close()

    assert b.status(run_id) == "pending"


@within(bench, lease_seconds=2.0)
def test_a_zombie_stops_and_writes_nothing(b: Bench) -> None:
    with logged_by("workers.runner.execution") as records:
        run_id = b.start_asleep({"seconds": 60})
        with connection() as conn:  # upkeep meanwhile gave it to another runner
            conn.execute(
                text("UPDATE run SET owner = 'other', attempt = attempt + 1 WHERE run_id = :id"),
                {"id": run_id},
            )
        until(lambda: not b.runner.executions)

        row = b.row(run_id)
        assert (row["status"], row["owner"]) == ("running", "other")
        assert [record.levelname for record in records] == ["WARNING"]


@within(bench, lease_seconds=2.0)
def test_a_run_deleted_under_its_runner_stops_and_nothing_is_wrong(b: Bench) -> None:
    with logged_by("workers.runner.execution") as records:
        for is_hinted in (True, False):
            run_id = b.start_asleep({"seconds": 60})
            with connection() as conn:
                stopped = cancel.delete_thread(conn, b.deployment.id, b.thread(run_id)["thread_id"])
            if is_hinted:
                signals.publish_cancels(stopped, 60)
            until(lambda: not b.runner.executions)

            assert [(record.levelname, record.getMessage()) for record in records] == [
                ("INFO", f"run {run_id}: deleted, attempt 1 is dropped")
            ]
            records.clear()


@within(bench, lease_seconds=4.0)
def test_a_lease_that_cannot_be_renewed_is_given_up(b: Bench) -> None:
    b.runner._loops[0].kill()  # simulates a renewal that hangs
    run_id = b.start_asleep({"seconds": 60})

    until(lambda: not b.runner.executions)
    assert b.status(run_id) == "running"  # left for upkeep to take over


@within(bench)
def test_a_run_whose_runner_died_is_taken_up_by_another(b: Bench) -> None:
    run_id = b.create("echo", {"text": "hi"})
    with connection() as conn:  # simulates a runner that was killed right after the claim
        conn.execute(
            text(
                "UPDATE run SET status = 'running', owner = 'dead', attempt = 1, seq_reserved = 500,"
                " deadline_at = now() + interval '1 hour', lease_until = now() - interval '1 second'"
                " WHERE run_id = :id"
            ),
            {"id": run_id},
        )
    Upkeep(b.settings).tick()
    assert b.status(run_id) == "pending"
    found = b.wait(run_id)

    row = b.row(run_id)
    assert (row["status"], row["attempt"], row["deaths"]) == ("success", 2, 1)
    assert found[0].seq == 501


@contextmanager
def deaf() -> Iterator[Driver]:
    """A connection that is lost after its statement has been executed."""
    with driver() as conn:
        yield conn
    raise OutcomeUnknown("the connection was lost")


@within(bench, lease_seconds=60.0)
def test_a_run_whose_claim_got_no_answer_does_not_wait_for_its_lease(b: Bench) -> None:
    run_id = b.create("echo", {"text": "hi"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claiming, "driver", deaf)
        b.runner.notify([run_id])
    assert b.status(run_id) == "running"

    b.wait(run_id)
    row = b.row(run_id)
    assert (row["status"], row["attempt"], row["deaths"]) == ("success", 2, 0)


@within(bench)
def test_runs_that_are_executed_are_not_taken_for_such(b: Bench) -> None:
    run_id = b.start_asleep({"seconds": 60})
    with connection() as conn:
        conn.execute(text("UPDATE run SET updated_at = now() - interval '1 minute'"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claiming, "driver", deaf)
        b.runner.notify([b.create("echo")])
    b.runner.claims.give_back_unanswered(b.runner.executions.keys())

    assert b.status(run_id) == "running"


@within(bench, lease_seconds=60.0)
def test_a_run_that_cannot_start_without_the_database_starts_when_it_is_back(b: Bench) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_hosts[0], "acquire", away)
        run_id = b.start("echo", {"text": "hi"})
        until(lambda: (row := b.row(run_id)) and (row["status"], row["attempt"]) == ("pending", 1))

    b.wait(run_id)
    row = b.row(run_id)
    assert (row["status"], row["deaths"]) == ("success", 0)


def away(*_: Any, **__: Any) -> Any:
    raise Unavailable("The database is unavailable.")


@within(bench)
def test_what_a_graph_asks_of_a_database_that_is_away_is_asked_again(b: Bench) -> None:
    asked: list[None] = []
    answer_run = host_requests.answer_run

    def away_at_first(run: Any, ask: Any) -> Any:
        asked.append(None)
        return away() if len(asked) < 3 else answer_run(run, ask)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_requests, "answer_run", away_at_first)
        run_id = b.start("remembers", {"text": "x"})
        b.wait(run_id)

    assert len(asked) >= 3
    assert b.status(run_id) == "success"


@within(bench)
def test_a_run_whose_lookup_gets_no_answer_before_its_lease_is_lost_is_dropped(b: Bench) -> None:
    lost: list[UUID] = []

    def away_until_lost(run: Claimed, ask: Any) -> Any:
        b.runner.executions[run.run_id].hosted.lease.renewed_at = -math.inf
        lost.append(run.run_id)
        return away()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_requests, "answer_run", away_until_lost)
        run_id = b.start("remembers", {"text": "x"})
        until(lambda: run_id in lost and run_id not in b.runner.executions)

    assert b.status(run_id) == "running"


@within(bench, lease_seconds=600.0)
def test_a_renewal_waits_for_no_commit_and_renews_what_one_had_locked_afterwards(b: Bench) -> None:
    """A commit locks many runs in any order. A renewal that waits for it while holding some of them would deadlock."""
    # With a lease this long, the runner's own renewals do not happen during the test.
    runs = [b.start("sleeps", {"seconds": 60}, stream_mode=["custom"]) for _ in range(2)]
    for run_id in runs:
        b.wait_for_event(run_id, b"asleep")
    claimed = [b.runner.executions[run_id].run for run_id in runs]
    for first, second in (claimed, claimed[::-1]):
        before = {run_id: b.row(run_id)["lease_until"] for run_id in runs}
        with connection() as commit:
            assert claims.hold(commit, first)
            renewing = gevent.spawn(b.runner.renew)
            until(lambda id=second.run_id, old=before: b.row(id)["lease_until"] > old[id])
            assert b.row(first.run_id)["lease_until"] == before[first.run_id]
            assert claims.hold(commit, second)
        renewing.get()
        assert all(b.row(run_id)["lease_until"] > before[run_id] for run_id in runs)
    assert all(b.status(run_id) == "running" for run_id in runs)


@within(bench)
def test_a_runner_says_whether_it_has_unsent_events_of_a_run(b: Bench) -> None:
    owner = b.settings.worker
    until(lambda: redis.broker().pubsub_numsub(redis.control_channel(owner))[0][1])
    run_id = b.start_asleep()
    assert end_event.may_have_unsent(owner, run_id)

    b.cancel(run_id, "interrupt")
    b.wait(run_id)
    until(lambda: not b.runner.executions)
    assert not end_event.may_have_unsent(owner, run_id)
    assert not end_event.may_have_unsent(owner, uuid4())
    assert end_event.may_have_unsent("a runner that has gone", run_id)


@within(bench)
def test_who_joins_after_the_log_was_lost_gets_the_end_from_the_row(b: Bench) -> None:
    until(lambda: redis.broker().pubsub_numsub(redis.control_channel(b.settings.worker))[0][1])
    run_id = b.start("echo")
    b.wait(run_id)
    until(lambda: not b.runner.executions)
    with connection() as conn:
        fleet.record_heartbeat(conn, heartbeat(b))
        conn.execute(text("UPDATE run SET ended_at = ended_at - interval '2 seconds'"))
    redis.client().flushall()

    end = end_event.end_of_lost(b.deployment.id, run_id, 0)
    assert end is not None
    assert (end.is_held, end.is_settled) == (False, True)
    assert end.events == [EXPIRED, end_event.END_OF_LOG]


def heartbeat(b: Bench) -> fleet.Heartbeat:
    """Return a heartbeat of the bench's runner."""
    return fleet.Heartbeat(
        id=b.settings.worker, kind="runner", pool="default", host_name="h", pid=1, version="1", isolation=2
    )
