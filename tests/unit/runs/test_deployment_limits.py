"""Concurrency and time limits of deployments: set, cleared, and exact under concurrent claims."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, text

from shared.deployments import deployments, limits
from shared.deployments.deployments import DeploymentRef
from shared.deployments.next_revision import Change
from shared.infra.postgres import connection, driver
from shared.models import RunStatus
from shared.runs import backlog, claims, queue_position
from shared.runs import limits as run_limits
from shared.runs.claims import Claimed, Terms
from shared.runs.drafts import RunRequest
from tests.support import factories
from tests.support.creating import insert_run
from tests.support.waiting import wait_until

TERMS = Terms("w", 30, 3600, "default")


@pytest.fixture(autouse=True)
def _database(db: Engine) -> None:
    """Run every test on empty tables."""


def limited(number: int | None = 2, **columns: Any) -> DeploymentRef:
    ref = factories.deployment(f"app-{uuid4().hex[:6]}", **columns)
    change(ref, limits={"max_concurrent_runs": number})
    return ref


def change(ref: DeploymentRef, **fields: Any) -> None:
    with connection() as conn:
        deployments.change(conn, ref.organization_id, ref.id, Change(**fields))


def waiting(ref: DeploymentRef, count: int = 1, *, thread: UUID | None = None) -> list[UUID]:
    """Create pending runs, each on a new thread unless one is named."""
    request = RunRequest(assistant_id="agent", if_not_exists="create")
    made = []
    with connection() as conn:
        for _ in range(count):
            made.append(insert_run(conn, ref, request, thread_id=thread or uuid4()).run_id)
    return made


def row(run_id: UUID) -> Any:
    with connection() as conn:
        return conn.execute(text("SELECT * FROM run WHERE run_id = :id"), {"id": run_id}).one()


def claim(ref: DeploymentRef, *, most: int = 100) -> list[Claimed]:
    with driver() as conn:
        return [run for run, _ in run_limits.claim_of_deployment(conn, ref.id, "default", TERMS, most=most)]


def finish(run: Claimed) -> None:
    with connection() as conn:
        conn.execute(
            text("UPDATE run SET status = 'success', ended_at = now() WHERE run_id = :id"), {"id": run.run_id}
        )


def test_a_limit_is_exact_under_many_claimers_and_the_oldest_runs_go_first() -> None:
    ref = limited(3)
    made = waiting(ref, 12)
    with ThreadPoolExecutor(8) as pool:
        claimed = [run for found in pool.map(lambda _: claim(ref), range(16)) for run in found]

    assert sorted(run.run_id for run in claimed) == made[:3]
    assert all(run.limited for run in claimed)
    finish(claimed[0])
    assert [run.run_id for run in claim(ref)] == [made[3]]
    change(ref, limits={"max_concurrent_runs": 5})
    assert [run.run_id for run in claim(ref)] == made[4:6], "a change holds for the next claim"


def test_a_run_starts_after_the_end_of_the_one_it_waited_for() -> None:
    ref = limited(1)
    waiting(ref, 2)
    (first,) = claim(ref)
    with ThreadPoolExecutor() as pool, connection() as conn:
        conn.execute(text("SELECT FROM deployment WHERE id = :id FOR UPDATE"), {"id": ref.id})
        later = pool.submit(claim, ref)
        wait_until(lambda: blocked() == 1, what="a claim to wait for the deployment")
        finish(first)
        conn.rollback()
    (second,) = later.result()

    assert row(first.run_id).ended_at < row(second.run_id).started_at


def blocked() -> int:
    """Count the transactions of this database that wait for a lock."""
    with connection() as conn:
        found = conn.execute(
            text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )
        return found.scalar_one()


def test_it_claims_only_what_there_is_a_slot_for_in_the_order_of_a_thread() -> None:
    ref = limited(3)
    made = waiting(ref, 3)
    assert [run.run_id for run in claim(ref, most=1)] == made[:1]
    assert claim(ref, most=0) == []

    ref = limited(5)
    first, second = waiting(ref, 2, thread=uuid4())
    assert [run.run_id for run in claim(ref)] == [first]
    assert claim(ref) == []
    with connection() as conn:
        assert run_limits.mark_notified(conn, ref.id) == []
    assert row(second).status == "pending"


def test_a_limited_deployments_runs_are_in_nobodys_way() -> None:
    ref, free = limited(1), factories.deployment("free")
    first, *rest = waiting(ref, 300)
    with connection() as conn:
        conn.execute(text("UPDATE run SET notified_at = NULL, created_at = now() - interval '1 hour'"))
    other = waiting(free)[0]
    with connection() as conn:
        conn.execute(text("UPDATE run SET notified_at = NULL WHERE run_id = :id"), {"id": other})

    with driver() as conn:
        assert claims.claim(conn, [first, rest[0]], TERMS) == [], "an ordinary claim leaves them alone"
        found = claims.claim_waiting(conn, "default", TERMS, limit=50, waited_seconds=0)
        assert [run.run_id for run, _ in found] == [other]
        assert run_limits.with_capacity(conn, [first, other]) == [ref.id]
    with connection() as conn:
        assert [run.run_id for run in backlog.mark_notified(conn)] == []
        assert [run.run_id for run in run_limits.mark_notified(conn)] == [first], "as many as have room"
        assert run_limits.mark_notified(conn) == [], "and it was just notified of"
        assert [run.run_id for run in run_limits.mark_notified(conn, ref.id)] == [first], (
            "unless somebody knows better"
        )
    claim(ref)
    with driver() as conn:
        assert run_limits.with_capacity(conn, rest) == []
    with connection() as conn:
        assert run_limits.mark_notified(conn, ref.id) == []


def test_a_runner_that_gets_no_notification_finds_them() -> None:
    ref = limited(1)
    elsewhere = limited(1, pool="gpu")
    for each in (ref, elsewhere):
        waiting(each, 2)
    with driver() as conn:
        assert run_limits.overlooked(conn, "default", waited_seconds=60) == []
        assert run_limits.overlooked(conn, "default", waited_seconds=0) == [ref.id]
    claim(ref)
    with driver() as conn:
        assert run_limits.overlooked(conn, "default", waited_seconds=0) == []


def test_a_time_limit_holds_for_runs_created_from_then_on() -> None:
    ref = limited(None)
    (old,) = waiting(ref)
    change(ref, limits={"run_timeout_seconds": 7})
    (new,) = waiting(ref)
    with driver() as conn:
        taken = {run.run_id: run for run, _ in claims.claim(conn, [old, new], TERMS)}

    assert taken[old].timeout_seconds is None
    assert taken[old].seconds_left == pytest.approx(3600)
    assert taken[new].timeout_seconds == 7
    assert taken[new].seconds_left == pytest.approx(7)


def test_waiting_runs_follow_their_deployment_to_another_pool() -> None:
    ref = limited(None)
    running, pending = waiting(ref), waiting(ref)
    with driver() as conn:
        claims.claim(conn, running, TERMS)

    change(ref, pool="gpu")

    assert [row(id).pool for id in (*running, *pending)] == ["default", "gpu"]
    with driver() as conn:
        assert claims.claim(conn, pending, TERMS) == [], "the old pool's runners leave them alone"
    with connection() as conn:
        assert [(run.run_id, run.pool) for run in backlog.mark_notified(conn)] == [(pending[0], "gpu")]
        conn.execute(text("UPDATE run SET status = 'pending' WHERE run_id = :id"), {"id": running[0]})
        assert backlog.move_stragglers(conn) == 1
    with driver() as conn:
        taken = claims.claim(conn, [*running, *pending], Terms("g", 30, 3600, "gpu"))
    assert len(taken) == 2


def test_a_long_queue_moves_in_parts() -> None:
    ref = limited(None)
    ids = waiting(ref) + waiting(ref) + waiting(ref)
    with connection() as conn:
        conn.execute(text("UPDATE deployment SET pool = 'gpu' WHERE id = :id"), {"id": ref.id})
        assert limits.move_waiting(conn, ref.id, "gpu", limit=2) == 2
        assert sorted(row(id).pool for id in ids) == ["default"] * 3, "not committed yet"
    assert sorted(row(id).pool for id in ids) == ["default", "gpu", "gpu"]

    with connection() as conn:
        assert backlog.move_stragglers(conn) == 1
    assert {row(id).pool for id in ids} == {"gpu"}


# Why a run waits


def test_a_run_that_is_claimed_while_its_position_is_counted_has_one(deployment: DeploymentRef) -> None:
    just_claimed = factories.run(deployment, status=RunStatus.RUNNING, key_id="own")
    factories.run(deployment, key_id="own")
    factories.run(deployment, key_id="other")

    with connection() as conn:
        assert queue_position._first_of_thread(conn, deployment.id, just_claimed)[0] == 1


def test_a_run_waits_behind_runs_of_its_own_depth(deployment: DeploymentRef) -> None:
    for depth in (0, 0, 0, 1, 2):
        factories.run(deployment, key_id="own", depth=depth)
    factories.run(deployment, key_id="other")
    nested, root = factories.run(deployment, key_id="own", depth=1), factories.run(deployment, key_id="own")

    with connection() as conn:
        positions = [
            queue_position._first_of_thread(conn, deployment.id, run_id)[0] for run_id in (nested, root)
        ]
    assert positions == [2, 5]


def test_the_queue_of_a_deployment_judges_each_depth_by_what_runs_there(deployment: DeploymentRef) -> None:
    with connection() as conn:
        limits.change(conn, deployment.id, {"max_concurrent_runs": 1})
    factories.run(deployment, status=RunStatus.RUNNING)
    factories.run(deployment, status=RunStatus.RUNNING, depth=2)
    for depth in (0, 0, 1, 2):
        factories.run(deployment, depth=depth)

    with connection() as conn:
        queue = queue_position.of_deployment(conn, deployment)
    assert (queue["running"], queue["pool"]["running"]) == (2, 2)
    assert {said["reason"]: said["runs"] for said in queue["waiting"]} == {
        queue_position.DEPLOYMENT_LIMIT: 3,
        "no runner of pool default": 1,
    }
