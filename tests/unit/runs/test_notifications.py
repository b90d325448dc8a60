"""Runs whose notification was lost: found by who has slots, and notified of again."""

from __future__ import annotations

from uuid import UUID

import pytest

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection, driver
from shared.runs import claims, eligibility
from tests.support import factories
from tests.support.owning import change, claimed, pending, row, terms

pytestmark = pytest.mark.usefixtures("db")


def to_notify() -> list[UUID]:
    with connection() as conn:
        return [found.run_id for found in eligibility.to_notify(conn)]


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
    assert to_notify() == [run_id]
    assert to_notify() == []  # notified just now

    change(run_id, "notified_at = now() - interval '3 seconds'")
    assert to_notify() == []  # the second wait is longer
    change(run_id, "notified_at = now() - interval '5 seconds'")
    assert to_notify() == [run_id]
    change(run_id, "notifications = 1000, notified_at = now() - interval '31 seconds'")
    assert to_notify() == [run_id]


def test_only_eligible_runs_are_notified_of_again(deployment: DeploymentRef) -> None:
    busy = claimed(deployment)
    pending(deployment, busy.thread_id)
    pending(deployment, cancel_requested="interrupt")
    change(pending(deployment), "not_before = now() + interval '1 minute'")

    assert to_notify() == []


def test_one_round_notifies_of_a_bounded_number(deployment: DeploymentRef) -> None:
    for _ in range(5):
        pending(deployment)
    with connection() as conn:
        assert len(eligibility.to_notify(conn, limit=3)) == 3
        assert len(eligibility.to_notify(conn, limit=3)) == 2
