"""Lost attempts: runs handed back or taken over, and the record kept of each lost attempt."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from shared.deployments.deployments import DeploymentRef
from shared.eventlog.events import RESERVED
from shared.infra.postgres import connection
from shared.models import RunStatus
from shared.runs import claims
from shared.runs.cancel import cancel_run
from shared.threads import records
from tests.support.owning import change, claim, claimed, expire, finish, give_back, release, row, store

pytestmark = pytest.mark.usefixtures("db")

MOST_ATTEMPTS = 50  # newest attempts that a run's row records


def attempts(run_id: UUID) -> Any:
    """Return the lost attempts without their times. Asserts that each began before it ended."""
    found = row(run_id)["attempts"]
    for attempt in found or ():
        began, ended = (datetime.fromisoformat(attempt.pop(name)) for name in ("started_at", "ended_at"))
        assert began < ended
    return found


def test_a_run_given_back_waits_and_counts_its_deaths(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    assert give_back(run, delay_seconds=60, death="was killed by SIGSEGV")

    stored = row(run.run_id)
    assert (stored["status"], stored["owner"], stored["deaths"]) == ("pending", None, 1)
    assert stored["last_death"] == "was killed by SIGSEGV"
    assert claim(run.run_id) == []
    change(run.run_id, "not_before = now()")
    (again,) = claim(run.run_id)
    assert (again.attempt, again.deaths, again.last_death) == (2, 1, "was killed by SIGSEGV")


def test_the_next_attempt_knows_whether_there_is_a_checkpoint_to_go_on_from(
    deployment: DeploymentRef,
) -> None:
    begun, unbegun = claimed(deployment), claimed(deployment)
    store(begun, "0001")
    assert not begun.has_checkpoint
    assert give_back(begun)
    assert give_back(unbegun)

    (begun,), (unbegun,) = claim(begun.run_id), claim(unbegun.run_id)
    assert (begun.attempt, begun.has_checkpoint) == (2, True)
    assert (unbegun.attempt, unbegun.has_checkpoint) == (2, False)


def test_a_run_remembers_how_its_attempts_were_lost(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    assert attempts(run.run_id) is None  # an attempt is recorded only once it is lost
    give_back(run, death="was killed by SIGSEGV")
    (run,) = claim(run.run_id, owner="b")
    give_back(run, refund=True)
    (run,) = claim(run.run_id, owner="c")
    expire(run)
    assert release(run)
    (run,) = claim(run.run_id, owner="d")
    change(run.run_id, "updated_at = now() - interval '1 minute'")
    with connection() as conn:
        claims.give_back_unknown(conn, owner="d", known=[])
    (run,) = claim(run.run_id, owner="e")
    expire(run)
    with connection() as conn:
        records.lock(conn, run.deployment_id, run.thread_id)
        claims.take_over(conn, run.run_id, owner="upkeep")

    reasons = (
        "was killed by SIGSEGV",
        claims.HANDED_OVER,
        claims.LEASE_RAN_OUT,
        claims.ANSWER_LOST,
        claims.LEASE_RAN_OUT,
    )
    workers = ("a", "b", "c", "d", "e")
    assert attempts(run.run_id) == [
        {"attempt": n, "worker": worker, "reason": reason}
        for n, (worker, reason) in enumerate(zip(workers, reasons, strict=True), 1)
    ]


def test_of_very_many_lost_attempts_the_newest_are_remembered(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    change(run.run_id, f"attempts = to_jsonb(CAST(array_fill(1, ARRAY[{MOST_ATTEMPTS}]) AS int[]))")
    give_back(run, refund=True)
    found = row(run.run_id)["attempts"]
    assert (len(found), found[0], found[-1]["attempt"]) == (MOST_ATTEMPTS, 1, 1)


def test_a_hand_over_is_no_death(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    assert give_back(run, refund=True)

    assert row(run.run_id)["deaths"] == 0
    assert len(claim(run.run_id, owner="b")) == 1

    run = claimed(deployment)
    with connection() as conn:
        assert claims.take_over(conn, run.run_id, owner="upkeep") is None


def test_a_run_to_be_stopped_is_not_given_back(deployment: DeploymentRef) -> None:
    """The run would stay pending forever, because a cancelled run is never claimed."""
    run = claimed(deployment)
    with connection() as conn:
        cancel_run(conn, deployment.id, run.thread_id, run.run_id)

    assert not give_back(run)
    assert row(run.run_id)["status"] == "running"


@pytest.mark.parametrize(
    "circumstance",
    ["deaths = 2", "cancel_requested = 'interrupt'", "deadline_at = now() - interval '1 second'"],
)
def test_some_abandoned_runs_must_end(deployment: DeploymentRef, circumstance: str) -> None:
    run = claimed(deployment)
    expire(run)
    change(run.run_id, circumstance)
    assert not release(run)

    with connection() as conn:
        records.lock(conn, run.deployment_id, run.thread_id)
        taken = claims.take_over(conn, run.run_id, owner="upkeep")
    assert taken is not None
    assert (taken.attempt, taken.owner, taken.floor) == (2, "upkeep", RESERVED)
    assert finish(run) == {}  # the former owner is fenced
    assert list(finish(taken, RunStatus.ERROR)) == [run.run_id]
