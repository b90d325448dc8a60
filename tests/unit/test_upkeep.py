"""Upkeep: one leader, bells rung again, abandoned runs taken over and their logs ended."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import gevent
import orjson
import pytest
from redis import Redis
from sqlalchemy import text

from shared import claims, events, queues, stops, threads
from shared.claims import Terms
from shared.database import connection, driver, engine
from shared.deployments import DeploymentRef
from shared.errors import Unavailable
from shared.settings import Settings
from tests import factories
from tests.waiting import until
from workers import upkeep as module
from workers.upkeep import LOCK, Upkeep

pytestmark = pytest.mark.usefixtures("db", "redis")

KWARGS = {"config": {"configurable": {}}}
Rung = list[tuple[str, str, str]]


@pytest.fixture
def rung(monkeypatch: pytest.MonkeyPatch) -> Rung:
    """What was rung, instead of ringing."""
    heard: Rung = []
    monkeypatch.setattr(queues.bell, "ring", lambda task, queue, id: heard.append((task, queue, str(id))))
    return heard


@pytest.fixture
def deployment() -> DeploymentRef:
    return factories.deployment()


@pytest.fixture
def upkeep(settings: Settings, rung: Rung) -> Upkeep:
    return Upkeep(dataclasses.replace(settings, worker="upkeep"))


def abandoned(deployment: DeploymentRef, assignments: str = "deaths = deaths", **columns: Any) -> UUID:
    """A run whose owner has not been heard of for too long."""
    run_id = factories.run(deployment, **{"kwargs": KWARGS, **columns})
    with driver() as conn:
        claims.claim(conn, [run_id], Terms("dead", 30, 3600))
    with connection() as conn:
        conn.execute(
            text(
                f"UPDATE run SET lease_until = now() - interval '1 second', {assignments} WHERE run_id = :id"
            ),
            {"id": run_id},
        )
    return run_id


def row(run_id: UUID) -> Any:
    with connection() as conn:
        return conn.execute(text("SELECT * FROM run WHERE run_id = :id"), {"id": run_id}).mappings().first()


def thread_of(deployment: DeploymentRef, run_id: UUID) -> dict[str, Any]:
    with connection() as conn:
        return dict(threads.get(conn, deployment.id, row(run_id)["thread_id"]))


def log_of(redis: Redis, run_id: UUID) -> list[tuple[int, str, Any]]:
    return [(event.seq, event.name, orjson.loads(event.data)) for event in events.logged(redis, run_id, 0)]


def test_runs_nobody_heard_of_are_rung_again(upkeep: Upkeep, rung: Rung) -> None:
    run_id = factories.run(factories.deployment("far", pool="gpu"))
    upkeep.tick()
    upkeep.tick()

    assert rung == [(queues.EXECUTE_RUNS, "runs.gpu", str(run_id))]


def test_a_queue_that_nobody_reads_does_not_grow(upkeep: Upkeep, rung: Rung, redis: Redis) -> None:
    factories.run(factories.deployment("far", pool="gpu"))
    near = factories.run(factories.deployment("near"))
    redis.lpush(f"{queues.CELERY_PREFIX}runs.gpu", *["unread"] * queues.ENOUGH)
    upkeep.tick()

    assert rung == [(queues.EXECUTE_RUNS, "runs.default", str(near))]


def test_a_run_that_missed_its_deployments_move_is_sent_after_it(
    upkeep: Upkeep, rung: Rung, deployment: DeploymentRef
) -> None:
    run_id = factories.run(deployment, pool="gpu")
    upkeep.tick()
    upkeep.tick()

    assert (queues.EXECUTE_RUNS, "runs.default", str(run_id)) in rung


def test_an_abandoned_run_goes_back_to_the_queue_and_waits_for_its_turn(
    upkeep: Upkeep, redis: Redis, deployment: DeploymentRef
) -> None:
    run_id = abandoned(deployment)
    upkeep.tick()

    found = row(run_id)
    assert (found["status"], found["owner"], found["deaths"], found["attempt"]) == ("pending", None, 1, 1)
    assert log_of(redis, run_id) == []


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
    assert seq > events.RESERVED  # in a block of its own


def test_a_cancelled_run_whose_owner_died_is_interrupted(
    upkeep: Upkeep, redis: Redis, deployment: DeploymentRef
) -> None:
    run_id = abandoned(deployment, "cancel_requested = 'interrupt'")
    upkeep.tick()

    assert row(run_id)["status"] == "interrupted"
    assert [name for _, name, _ in log_of(redis, run_id)] == ["end"]


def test_a_rollback_whose_owner_died_is_carried_out(
    upkeep: Upkeep, redis: Redis, rung: Rung, deployment: DeploymentRef
) -> None:
    thread_id = factories.thread(deployment.id)
    run_id = abandoned(deployment, "cancel_requested = 'rollback'", thread_id=thread_id)
    behind = factories.run(deployment, thread_id)
    upkeep.tick()

    assert row(run_id) is None
    assert log_of(redis, run_id)[-1][2]["status"] == "rollback"
    assert (queues.EXECUTE_RUNS, "runs.default", str(behind)) in rung


def test_a_run_past_its_deadline_times_out(upkeep: Upkeep, redis: Redis, deployment: DeploymentRef) -> None:
    run_id = abandoned(deployment, "deadline_at = now() - interval '1 second'")
    upkeep.tick()

    assert row(run_id)["status"] == "timeout"
    assert [name for _, name, _ in log_of(redis, run_id)] == ["error", "end"]


def test_a_temporary_run_that_must_end_goes(upkeep: Upkeep, redis: Redis, deployment: DeploymentRef) -> None:
    run_id = abandoned(deployment, "deaths = 2", temporary=True)
    upkeep.tick()

    assert row(run_id) is None
    assert log_of(redis, run_id)[-1][1] == "end"


def test_the_next_run_of_the_thread_is_rung(upkeep: Upkeep, rung: Rung, deployment: DeploymentRef) -> None:
    thread_id = factories.thread(deployment.id)
    abandoned(deployment, "deaths = 2", thread_id=thread_id)
    behind = factories.run(deployment, thread_id)
    upkeep.tick()

    assert (queues.EXECUTE_RUNS, "runs.default", str(behind)) in rung
    assert thread_of(deployment, behind)["status"] == "busy"


def test_a_zombie_finds_the_log_fenced(upkeep: Upkeep, redis: Redis, deployment: DeploymentRef) -> None:
    run_id = abandoned(deployment, "deaths = 2")
    opened = events.Batch(run_id, 1, "dead", 1, [b"values\n1"], floor=0)
    assert events.append(redis, [opened], retention_seconds=900) == [events.OK]
    upkeep.tick()

    late = events.Batch(run_id, 1, "dead", 2, [b"values\n2"])
    assert events.append(redis, [late], retention_seconds=900) == [events.FENCED]
    assert [name for _, name, _ in log_of(redis, run_id)] == ["values", "error", "end"]


def test_held_runs_are_left_alone(upkeep: Upkeep, deployment: DeploymentRef) -> None:
    run_id = factories.run(deployment, kwargs=KWARGS)
    with driver() as conn:
        claims.claim(conn, [run_id], Terms("alive", 30, 3600))
    upkeep.tick()

    assert (row(run_id)["status"], row(run_id)["owner"]) == ("running", "alive")


def test_a_run_deleted_meanwhile_is_no_trouble(
    upkeep: Upkeep, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = abandoned(deployment, "deaths = 2")
    look = claims.abandoned

    def look_and_lose(conn: Any, **options: Any) -> Any:
        found = look(conn, **options)
        with connection() as other:
            stops.delete(other, deployment.id, row(run_id)["thread_id"], run_id)
        return found

    monkeypatch.setattr(claims, "abandoned", look_and_lose)
    upkeep.tick()

    assert row(run_id) is None


def test_one_step_that_fails_does_not_stop_the_others(
    upkeep: Upkeep, rung: Rung, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = factories.run(deployment)

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(claims, "abandoned", fail)
    upkeep.tick()

    assert [id for _, _, id in rung] == [str(run_id)]


def test_a_database_that_is_away_ends_the_round(upkeep: Upkeep, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise Unavailable

    monkeypatch.setattr(claims, "abandoned", away)
    with pytest.raises(Unavailable):
        upkeep.tick()


def test_redis_is_not_needed(
    upkeep: Upkeep, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = abandoned(deployment, "deaths = 2")
    monkeypatch.setattr(events.bus, "client", lambda: events.bus.make_client("redis://127.0.0.1:1/0"))
    upkeep.tick()

    assert row(run_id)["status"] == "error"


class Counting(Upkeep):
    """Counts its rounds instead of doing anything."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.rounds = 0

    def tick(self) -> None:
        self.rounds += 1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_SECONDS", 0.02)


def test_one_process_leads(settings: Settings, quick: None) -> None:
    crowd = [Counting(settings) for _ in range(3)]
    loops = [gevent.spawn(upkeep._run) for upkeep in crowd]
    until(lambda: max(upkeep.rounds for upkeep in crowd) >= 5)
    try:
        assert sorted(upkeep.rounds > 0 for upkeep in crowd) == [False, False, True]
    finally:
        gevent.killall(loops)


def test_another_leads_when_the_leader_is_gone(settings: Settings, quick: None) -> None:
    first, second = Counting(settings), Counting(settings)
    loop = gevent.spawn(first._run)
    until(lambda: first.rounds)
    heir = gevent.spawn(second._run)
    loop.kill()
    until(lambda: second.rounds)
    heir.kill()


def test_the_lead_is_lost_with_the_connection_and_found_again(settings: Settings, quick: None) -> None:
    upkeep = Counting(settings)
    loop = gevent.spawn(upkeep._run)
    until(lambda: upkeep.rounds)
    with connection() as conn:
        leaders = conn.execute(
            text("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = :lock"), {"lock": LOCK}
        )
        conn.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": leaders.scalar_one()})
    before = upkeep.rounds
    until(lambda: upkeep.rounds > before + 1)
    loop.kill()


def test_a_process_that_does_not_lead_does_nothing(settings: Settings, quick: None) -> None:
    upkeep = Counting(settings)
    with leading_elsewhere():
        upkeep._lead()

    assert upkeep.rounds == 0


@contextmanager
def leading_elsewhere() -> Iterator[None]:
    with engine().connect() as conn:
        conn.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": LOCK})
        yield
        conn.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": LOCK})


def test_beat_may_wake_it(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_SECONDS", 60)
    upkeep = Counting(settings)
    loop = gevent.spawn(upkeep._run)
    gevent.sleep(0)
    upkeep.wake()
    until(lambda: upkeep.rounds == 1)
    upkeep.wake()
    until(lambda: upkeep.rounds == 2)
    loop.kill()


def test_two_rounds_at_once_end_a_run_once(
    settings: Settings, rung: Rung, redis: Redis, deployment: DeploymentRef
) -> None:
    """A leader that was paused and its heir: the rows decide, not the lock."""
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
