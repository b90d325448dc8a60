"""Leases on runs: renewal, and fencing of a former owner."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import text

from shared.deployments.deployments import DeploymentRef
from shared.errors import Fenced
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from shared.runs import claims
from shared.runs.cancel import cancel_run, delete_run
from shared.runs.finish import Finish, commit, roll_back
from tests.support import factories
from tests.support.owning import change, claim, claimed, expire, finish, give_back, release, renew, row, store
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("db")


def waits_for_a_lock() -> bool:
    with connection() as conn:
        return bool(conn.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one())


def test_a_renewal_prolongs_the_lease_and_reports_cancels(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    before = row(run.run_id)["lease_until"]
    assert renew(run)[run.run_id] == claims.Hold(1, None, None)
    assert row(run.run_id)["lease_until"] > before

    with connection() as conn:
        cancel_run(conn, deployment.id, run.thread_id, run.run_id, action="rollback", reason="why")
    assert renew(run)[run.run_id] == claims.Hold(1, "rollback", "why")


def test_a_lease_is_renewed_until_its_last_moment(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    change(run.run_id, "lease_until = now() + interval '1 second'")

    assert run.run_id in renew(run)


def test_runs_that_somebody_has_locked_are_left_as_they_are_instead_of_waited_for(
    deployment: DeploymentRef,
) -> None:
    free, locked = claimed(deployment), claimed(deployment)
    before = row(locked.run_id)["lease_until"]
    ids = [free.run_id, locked.run_id]
    with connection() as other, connection() as conn:
        assert claims.hold(other, locked)

        held = claims.renew(conn, ids, owner=free.owner, lease_seconds=60)

        assert held == {
            free.run_id: claims.Hold(1, None, None),
            locked.run_id: claims.Hold(1, None, None, renewed=False),
        }
    assert row(locked.run_id)["lease_until"] == before
    assert renew(locked)[locked.run_id].renewed


def test_a_lease_that_ran_out_is_not_renewed(deployment: DeploymentRef) -> None:
    """The owner was frozen. When it wakes up, it must not renew the lease before upkeep takes the run over."""
    run = claimed(deployment)
    expire(run)

    assert renew(run) == {}
    assert release(run)


def test_a_lease_that_ran_out_is_somebody_elses_to_take(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    assert not release(run)  # the lease has not expired

    expire(run)
    with connection() as conn:
        assert [found["run_id"] for found in claims.abandoned(conn)] == [run.run_id]
    assert release(run)
    stored = row(run.run_id)
    assert (stored["status"], stored["owner"], stored["deaths"]) == ("pending", None, 1)
    assert not release(run)


def test_a_zombie_changes_nothing(deployment: DeploymentRef) -> None:
    zombie = claimed(deployment)
    expire(zombie)
    release(zombie)
    for step in ("pending", "running"):
        assert row(zombie.run_id)["status"] == step
        before = row(zombie.run_id)
        assert finish(zombie, values='{"a":1}') == {}
        assert not give_back(zombie)
        assert renew(zombie) == {}
        with connection() as conn:
            assert not claims.reserve(conn, zombie.run_id, owner="a", attempt=1, upto=9_999)
        assert store(zombie, "0001") == {zombie.run_id}
        with pytest.raises(Fenced), connection() as conn:
            roll_back(conn, zombie, error={})
        assert row(zombie.run_id) == before
        if step == "pending":
            (heir,) = claim(zombie.run_id, owner="b")
    assert store(heir, "0001") == set()

    zombie = claimed(deployment)
    expire(zombie)
    release(zombie)
    (heir,) = claim(zombie.run_id)

    assert finish(zombie) == {}
    assert store(zombie, "0001") == {zombie.run_id}
    assert not give_back(zombie)
    with connection() as conn:
        assert not claims.reserve(conn, zombie.run_id, owner="a", attempt=1, upto=9_999)
    assert list(finish(heir)) == [heir.run_id]


def test_a_run_that_is_gone_fences_its_owner_and_after_an_end_only_its_transaction_stores(
    deployment: DeploymentRef,
) -> None:
    run = claimed(deployment)
    with connection() as conn:
        delete_run(conn, deployment.id, run.thread_id, run.run_id)

    assert store(run, "0001") == {run.run_id}

    run = claimed(deployment)
    finish(run)

    assert store(run, "0001") == {run.run_id}
    end = Finish(run, RunStatus.SUCCESS, ThreadStatus.IDLE)
    with connection() as conn:
        assert commit(conn, [end], [factories.checkpoint(run, "0001")], owner="a", to_disk=False) == (
            {},
            set(),
        )


def test_a_writer_of_checkpoints_and_a_cancel_do_not_deadlock(deployment: DeploymentRef) -> None:
    """The writer has locked the run and refers to the thread; the cancel has locked the thread and needs the run."""
    run = claimed(deployment)
    done: list[str] = []

    def cancel() -> None:
        with connection() as conn:
            cancel_run(conn, deployment.id, run.thread_id, run.run_id)
        done.append("cancelled")

    thread = threading.Thread(target=cancel)
    with connection() as conn:
        conn.execute(text("SELECT 1 FROM run WHERE run_id = :id FOR SHARE"), {"id": run.run_id})
        thread.start()
        wait_until(lambda: waits_for_a_lock())
        conn.execute(
            text(
                "INSERT INTO checkpoint (deployment_id, thread_id, checkpoint_ns, checkpoint_id, type, data)"
                " VALUES (:deployment, :thread, '', '0001', 'x', '')"
            ),
            {"deployment": deployment.id, "thread": run.thread_id},
        )
    thread.join()

    assert done == ["cancelled"]
