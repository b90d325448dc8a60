"""Claiming runs: eligibility, order, limits and the content of a claim."""

from __future__ import annotations

import threading
from uuid import UUID, uuid4

import pytest
from psycopg.errors import UniqueViolation
from sqlalchemy import text

from shared.deployments.deployments import DeploymentRef
from shared.eventlog.events import RESERVED
from shared.infra.postgres import connection, driver
from shared.runs import backlog, claims
from tests.support import factories
from tests.support.owning import change, claim, claimed, expire, finish, pending, release, row, store, terms

pytestmark = pytest.mark.usefixtures("db")


def test_a_claim_takes_the_run_with_all_it_needs(deployment: DeploymentRef) -> None:
    run_id = pending(deployment, input={"a": 1}, metadata={"m": 1})
    (run,) = claim(run_id)

    assert (run.run_id, run.attempt, run.owner, run.floor) == (run_id, 1, "a", 0)
    assert run.input == b'{"a":1}'
    assert run.metadata == {"m": 1}
    assert 3590 < run.seconds_left <= 3600
    stored = row(run_id)
    assert (stored["status"], stored["seq_reserved"]) == ("running", RESERVED)
    assert stored["lease_until"] > stored["updated_at"]


def test_a_run_is_claimed_once(deployment: DeploymentRef) -> None:
    run_id = pending(deployment)

    assert len(claim(run_id, run_id)) == 1
    assert claim(run_id, owner="b") == []
    assert claim(uuid4()) == []


def test_many_owners_at_once_share_the_runs(deployment: DeploymentRef) -> None:
    ids = [pending(deployment) for _ in range(20)]
    taken: list[UUID] = []
    barrier = threading.Barrier(4)

    def work(owner: str) -> None:
        barrier.wait()
        for run_id in ids:
            taken.extend(run.run_id for run in claim(run_id, owner=owner))

    workers = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert sorted(taken) == sorted(ids)


def test_the_oldest_run_is_first_wherever_its_row_lies(deployment: DeploymentRef) -> None:
    """An updated row moves behind the others in the table, and a query plan may read rows in physical order."""
    ids = [pending(deployment) for _ in range(3)]
    change(ids[0], "notifications = notifications + 1")
    with driver() as conn:
        conn.execute("SET enable_indexscan = off; SET enable_bitmapscan = off")
        claimed = [run.run_id for run, _ in claims.claim(conn, ids, terms())]
        conn.execute("RESET enable_indexscan; RESET enable_bitmapscan")

    assert claimed == ids


def test_runs_of_a_thread_wait_for_those_before(deployment: DeploymentRef) -> None:
    thread_id = factories.thread(deployment.id)
    first, second = pending(deployment, thread_id), pending(deployment, thread_id)

    assert claim(second) == []
    (run,) = claim(second, first)
    assert run.run_id == first
    assert claim(second) == []
    finish(run)
    assert [run.run_id for run in claim(second)] == [second]

    run = claimed(deployment)
    change(run.run_id, "created_seq = 100")  # the order no longer prevents the next claim; the index does
    second = pending(deployment, run.thread_id)

    with pytest.raises(UniqueViolation):
        claim(second)
    assert row(second)["status"] == "pending"


def test_a_run_is_not_claimed_before_its_time_nor_when_it_is_to_be_stopped(deployment: DeploymentRef) -> None:
    run_id = pending(deployment)
    change(run_id, "not_before = now() + interval '1 minute'")
    assert claim(run_id) == []

    change(run_id, "not_before = now() - interval '1 second'")
    assert len(claim(run_id)) == 1

    assert claim(pending(deployment, cancel_requested="interrupt")) == []


def test_a_claim_brings_the_newest_checkpoint_of_the_thread(deployment: DeploymentRef) -> None:
    first = claimed(deployment)
    store(first, "0001")
    store(first, "0002")
    finish(first)

    second = pending(deployment, first.thread_id)
    with driver() as conn:
        ((_, stored),) = claims.claim(conn, [second], terms())
    assert stored is not None
    assert b'"0002"' in stored[0]

    run = claimed(deployment)
    with connection() as conn:
        assert claims.reserve(conn, run.run_id, owner="a", attempt=1, upto=12_000)
    expire(run)
    release(run)
    (again,) = claim(run.run_id, owner="b")

    assert (again.attempt, again.floor) == (2, 12_000)


def test_a_long_queue_on_one_thread_hides_nobody(deployment: DeploymentRef) -> None:
    busy = claimed(deployment)
    for _ in range(5):
        pending(deployment, busy.thread_id)
    free = pending(deployment)
    with connection() as conn:
        conn.execute(text("UPDATE run SET created_at = now() - interval '1 minute'"))

    with driver() as conn:
        found = claims.claim_waiting(conn, "default", terms(), limit=3, waited_seconds=2)
    assert [run.run_id for run, _ in found] == [free]


def test_the_clock_is_the_databases(deployment: DeploymentRef) -> None:
    """Stored times come from the database, so moving this process's clock changes nothing."""
    run = claimed(deployment)
    with connection() as conn:
        left = conn.execute(
            text("SELECT extract(epoch FROM lease_until - now()) FROM run WHERE run_id = :id"),
            {"id": run.run_id},
        )
        assert 0 < left.scalar_one() <= 30


# Runs whose notification was lost


def mark_notified() -> list[UUID]:
    with connection() as conn:
        return [found.run_id for found in backlog.mark_notified(conn)]


def test_runs_nobody_was_notified_of_are_found(deployment: DeploymentRef) -> None:
    thread_id = factories.thread(deployment.id)
    old, behind, young = pending(deployment, thread_id), pending(deployment, thread_id), pending(deployment)
    foreign = pending(deployment, pool="gpu")
    later = pending(deployment)
    for run_id in (old, behind, foreign, later):
        change(run_id, "created_at = now() - interval '1 minute'")
    change(later, "not_before = now() - interval '1 second'")

    with driver() as conn:
        found = claims.claim_waiting(conn, "default", terms(), limit=10, waited_seconds=2)
    assert [run.run_id for run, _ in found] == [old]
    assert row(young)["status"] == "pending"


def test_runs_whose_notification_was_lost_are_notified_of_again_ever_more_rarely(
    deployment: DeploymentRef,
) -> None:
    run_id = pending(deployment)
    assert mark_notified() == [run_id]
    assert mark_notified() == []  # notified just now

    change(run_id, "notified_at = now() - interval '3 seconds'")
    assert mark_notified() == []  # the second wait is longer
    change(run_id, "notified_at = now() - interval '5 seconds'")
    assert mark_notified() == [run_id]
    change(run_id, "notifications = 1000, notified_at = now() - interval '31 seconds'")
    assert mark_notified() == [run_id]


def test_only_eligible_runs_are_notified_of_again(deployment: DeploymentRef) -> None:
    busy = claimed(deployment)
    pending(deployment, busy.thread_id)
    pending(deployment, cancel_requested="interrupt")
    change(pending(deployment), "not_before = now() + interval '1 minute'")

    assert mark_notified() == []


def test_one_round_notifies_of_a_bounded_number(deployment: DeploymentRef) -> None:
    for _ in range(5):
        pending(deployment)
    with connection() as conn:
        assert len(backlog.mark_notified(conn, limit=3)) == 3
        assert len(backlog.mark_notified(conn, limit=3)) == 2
