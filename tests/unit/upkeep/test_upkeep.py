"""Upkeep: repeated notifications, and abandoned runs that are taken over and whose logs are ended."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import text

from shared import fleet
from shared.deployments.deployments import DeploymentRef
from shared.errors import Unavailable
from shared.eventlog import events
from shared.infra import broker
from shared.infra.postgres import connection, driver
from shared.infra.redis import make_client
from shared.runs import cancel, claims, webhooks
from shared.runs.claims import Terms
from shared.settings import Settings
from tests.support import factories
from tests.support.abandoning import (
    KWARGS,
    Notified,
    abandoned,
    lead,
    log_of,
    notified,
    row,
    thread_of,
    upkeep,
)
from workers.upkeep.upkeep import Upkeep

__all__ = ["notified", "upkeep"]

pytestmark = pytest.mark.usefixtures("db", "redis")


def test_runs_whose_notification_was_lost_are_notified_of_again(upkeep: Upkeep, notified: Notified) -> None:
    run_id = factories.run(factories.deployment("far", pool="gpu"))
    upkeep.tick()
    upkeep.tick()

    assert notified == [(broker.EXECUTE_RUNS, "runs.gpu", str(run_id))]


def test_a_queue_that_nobody_reads_does_not_grow(upkeep: Upkeep, notified: Notified, redis: Redis) -> None:
    factories.run(factories.deployment("far", pool="gpu"))
    near = factories.run(factories.deployment("near"))
    redis.lpush(f"{broker.CELERY_PREFIX}runs.gpu", *["unread"] * broker.FULL_QUEUE)
    upkeep.tick()

    assert notified == [(broker.EXECUTE_RUNS, "runs.default", str(near))]


def test_a_run_that_missed_its_deployments_move_is_sent_after_it(
    upkeep: Upkeep, notified: Notified, deployment: DeploymentRef
) -> None:
    run_id = factories.run(deployment, pool="gpu")
    upkeep.tick()
    upkeep.tick()

    assert (broker.EXECUTE_RUNS, "runs.default", str(run_id)) in notified


def test_an_abandoned_run_goes_back_to_the_queue_and_waits_and_a_held_one_is_left_alone(
    upkeep: Upkeep, redis: Redis, deployment: DeploymentRef
) -> None:
    run_id = abandoned(deployment)
    upkeep.tick()

    found = row(run_id)
    assert (found["status"], found["owner"], found["deaths"], found["attempt"]) == ("pending", None, 1, 1)
    assert log_of(redis, run_id) == []

    run_id = factories.run(deployment, kwargs=KWARGS)
    with driver() as conn:
        claims.claim(conn, [run_id], Terms("alive", 30, 3600))
    upkeep.tick()

    assert (row(run_id)["status"], row(run_id)["owner"]) == ("running", "alive")


def test_a_run_that_was_lost_too_often_ends_as_an_error(
    upkeep: Upkeep, redis: Redis, deployment: DeploymentRef
) -> None:
    run_id = abandoned(deployment, "deaths = 2, last_death = 'was killed by SIGSEGV'")
    upkeep.tick()

    found = row(run_id)
    assert (found["status"], found["error"]["error"]) == ("error", "RunAbandoned")
    assert "SIGSEGV" in found["error"]["message"]
    assert thread_of(deployment, run_id)["status"] == "error"
    (_, first, error), (seq, last, end) = log_of(redis, run_id)
    assert (first, error) == ("error", found["error"])
    assert (last, end["status"], end["output"]) == ("end", "error", {"__error__": error})
    assert seq > events.RESERVED  # in a newly reserved block of numbers


def test_a_run_whose_owner_died_is_interrupted_when_cancelled_times_out_or_goes(
    upkeep: Upkeep, redis: Redis, deployment: DeploymentRef
) -> None:
    run_id = abandoned(deployment, "cancel_requested = 'interrupt'")
    upkeep.tick()

    assert row(run_id)["status"] == "interrupted"
    assert [name for _, name, _ in log_of(redis, run_id)] == ["end"]

    run_id = abandoned(deployment, "deadline_at = now() - interval '1 second'")
    upkeep.tick()

    assert row(run_id)["status"] == "timeout"
    assert [name for _, name, _ in log_of(redis, run_id)] == ["error", "end"]

    run_id = abandoned(deployment, "deaths = 2", temporary=True)
    upkeep.tick()

    assert row(run_id) is None
    assert log_of(redis, run_id)[-1][1] == "end"


def test_a_rollback_whose_owner_died_is_carried_out_and_the_next_run_of_the_thread_notified(
    upkeep: Upkeep, redis: Redis, notified: Notified, deployment: DeploymentRef
) -> None:
    thread_id = factories.thread(deployment.id)
    run_id = abandoned(deployment, "cancel_requested = 'rollback'", thread_id=thread_id)
    behind = factories.run(deployment, thread_id)
    upkeep.tick()

    assert row(run_id) is None
    assert log_of(redis, run_id)[-1][2]["status"] == "rollback"
    assert (broker.EXECUTE_RUNS, "runs.default", str(behind)) in notified

    thread_id = factories.thread(deployment.id)
    abandoned(deployment, "deaths = 2", thread_id=thread_id)
    behind = factories.run(deployment, thread_id)
    upkeep.tick()

    assert (broker.EXECUTE_RUNS, "runs.default", str(behind)) in notified
    assert thread_of(deployment, behind)["status"] == "busy"


def test_a_zombie_finds_the_log_fenced(upkeep: Upkeep, redis: Redis, deployment: DeploymentRef) -> None:
    run_id = abandoned(deployment, "deaths = 2")
    opened = events.Batch(run_id, 1, "dead", 1, [b"values\n1"], floor=0)
    assert events.append(redis, [opened], retention_seconds=900) == [events.OK]
    upkeep.tick()

    late = events.Batch(run_id, 1, "dead", 2, [b"values\n2"])
    assert events.append(redis, [late], retention_seconds=900) == [events.FENCED]
    assert [name for _, name, _ in log_of(redis, run_id)] == ["values", "error", "end"]


def test_a_run_deleted_meanwhile_is_no_trouble(
    upkeep: Upkeep, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = abandoned(deployment, "deaths = 2")
    look = claims.abandoned

    def look_and_lose(conn: Any, **options: Any) -> Any:
        found = look(conn, **options)
        with connection() as other:
            cancel.delete_run(other, deployment.id, row(run_id)["thread_id"], run_id)
        return found

    monkeypatch.setattr(claims, "abandoned", look_and_lose)
    upkeep.tick()

    assert row(run_id) is None


def test_one_step_that_fails_does_not_stop_the_others(
    upkeep: Upkeep, notified: Notified, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = factories.run(deployment)

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(claims, "abandoned", fail)
    upkeep.tick()

    assert [id for _, _, id in notified] == [str(run_id)]


def test_redis_is_not_needed_and_a_database_that_is_away_ends_the_round(
    upkeep: Upkeep, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = abandoned(deployment, "deaths = 2")
    monkeypatch.setattr("shared.infra.redis._client", make_client("redis://127.0.0.1:1/0"))
    upkeep.tick()

    assert row(run_id)["status"] == "error"

    def away(*_: Any, **__: Any) -> None:
        raise Unavailable

    monkeypatch.setattr(claims, "abandoned", away)
    with pytest.raises(Unavailable):
        upkeep.tick()


def test_two_rounds_at_once_end_a_run_once(
    settings: Settings,
    notified: Notified,
    redis: Redis,
    deployment: DeploymentRef,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader that was frozen within a step and its successor both act: the rows decide, not the lease."""
    monkeypatch.setattr(fleet, "LEASE_SECONDS", 0)
    ids = [abandoned(deployment, "deaths = 2") for _ in range(5)]
    rounds = [
        threading.Thread(target=Upkeep(dataclasses.replace(settings, worker=name)).tick)
        for name in ("one", "two")
    ]
    for round in rounds:
        round.start()
    for round in rounds:
        round.join()

    for run_id in ids:
        assert (row(run_id)["status"], row(run_id)["attempt"]) == ("error", 2)
        assert [name for _, name, _ in log_of(redis, run_id)] == ["error", "end"]


# The database's clock moves


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
    """Shift all stored times. This has the effect of moving the database's clock the opposite way."""
    with connection() as conn:
        for table, columns in TIMES.items():
            moved = ", ".join(f"{column} = {column} {by}" for column in columns)
            conn.execute(text(f"UPDATE {table} SET {moved}"))


@pytest.mark.parametrize("by", [HOUR_AGO, IN_AN_HOUR])
def test_nothing_is_stuck_when_the_databases_clock_moves_by_an_hour(
    settings: Settings, notified: Notified, deployment: DeploymentRef, by: str
) -> None:
    """Covers a pending run, a run whose owner is gone, and a run that waits for its next attempt."""
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
