"""The database's clock moves, and nothing waits for the time it has left."""

from __future__ import annotations

import dataclasses

import pytest
from sqlalchemy import text

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection, driver
from shared.runs import claims, webhooks
from shared.runs.claims import Terms
from shared.settings import Settings
from tests.support import factories
from tests.support.abandoning import KWARGS, Notified, deployment, lead, notified, row, upkeep
from workers.upkeep.upkeep import Upkeep

__all__ = ["deployment", "notified", "upkeep"]

pytestmark = pytest.mark.usefixtures("db", "redis")


HOUR_AGO, IN_AN_HOUR = "- interval '1 hour'", "+ interval '1 hour'"
TIMES = {
    "run": (
        "created_at",
        "updated_at",
        "started_at",
        "lease_until",
        "deadline_at",
        "not_before",
        "notified_at",
    ),
    "leader": ("lease_until",),
    "worker": ("started_at", "seen_at"),
}


def move_stored_times(by: str) -> None:
    """What a clock that moves the other way does to them."""
    with connection() as conn:
        for table, columns in TIMES.items():
            moved = ", ".join(f"{column} = {column} {by}" for column in columns)
            conn.execute(text(f"UPDATE {table} SET {moved}"))


@pytest.mark.parametrize("by", [HOUR_AGO, IN_AN_HOUR])
def test_nothing_is_stuck_when_the_databases_clock_moves_by_an_hour(
    settings: Settings, notified: Notified, deployment: DeploymentRef, by: str
) -> None:
    """A run that waits, one whose owner is gone, and one that waits for its next attempt."""
    waiting, again = factories.run(deployment), factories.run(deployment)
    owned = factories.run(deployment, kwargs=KWARGS)
    lead("an earlier leader")
    with driver() as conn:
        claims.claim(conn, [owned], Terms("gone", 30, 7200))
        [(retried, _)] = claims.claim(conn, [again], Terms("gone", 30, 7200))
    with connection() as conn:
        claims.give_back(conn, [claims.Requeue(retried, delay_seconds=5, death="died")])
    move_stored_times(by)

    upkeep = Upkeep(dataclasses.replace(settings, worker="upkeep"))
    upkeep.tick()

    with connection() as conn:
        late = conn.execute(
            text(
                "SELECT count(*) FROM run WHERE lease_until > now() + interval '30 seconds'"
                " OR not_before > now() + interval '5 seconds'"
            )
        )
        assert late.scalar_one() == 0
        conn.execute(text("UPDATE run SET lease_until = lease_until - interval '31 seconds'"))
    upkeep.tick()
    upkeep.tick()

    assert {row(id)["status"] for id in (waiting, again, owned)} == {"pending"}
    assert {id for _, _, id in notified} >= {str(waiting), str(again)}


@pytest.mark.parametrize(
    ("attempts", "is_under_way", "seconds"), [(0, False, 0), (1, False, 10), (2, True, 30)]
)
def test_no_webhook_waits_for_a_clock_that_was_put_back(
    upkeep: Upkeep, deployment: DeploymentRef, attempts: int, is_under_way: bool, seconds: float
) -> None:
    run_id = factories.run(deployment, webhook="https://hooks.example")
    with connection() as conn:
        webhooks.record(conn, [run_id])
        conn.execute(
            text(
                "UPDATE webhook_delivery SET attempt = :attempts, due_at = now() + interval '20 minutes',"
                " owner = CASE WHEN :is_under_way THEN 'gone' END"
            ),
            {"attempts": attempts, "is_under_way": is_under_way},
        )
    upkeep.tick()

    assert seconds_to_webhook() <= seconds


def test_the_pauses_between_attempts_of_a_webhook_are_left_alone(
    upkeep: Upkeep, deployment: DeploymentRef
) -> None:
    run_id = factories.run(deployment, webhook="https://hooks.example")
    with connection() as conn:
        webhooks.record(conn, [run_id])
        longest = "UPDATE webhook_delivery SET attempt = 4, due_at = now() + interval '44 minutes'"
        conn.execute(text(longest))
    upkeep.tick()

    assert seconds_to_webhook() > 43 * 60


def seconds_to_webhook() -> float:
    with connection() as conn:
        query = text("SELECT extract(epoch FROM due_at - now()) FROM webhook_delivery")
        return float(conn.execute(query).scalar_one())


@pytest.mark.parametrize("by", [HOUR_AGO, IN_AN_HOUR])
def test_a_runner_finds_what_waits_also_after_the_databases_clock_has_moved(
    deployment: DeploymentRef, by: str
) -> None:
    run_id = factories.run(deployment)
    move_stored_times(by)

    with driver() as conn:
        taken = claims.claim_waiting(conn, "default", Terms("me", 30, 60), limit=9, waited_seconds=2)
    assert [run.run_id for run, _ in taken] == [run_id]
