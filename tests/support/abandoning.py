"""Fixtures for runs that lost their owner: an upkeep process that has not started, and its leadership."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

import orjson
import pytest
from redis import Redis
from sqlalchemy import text

from shared import fleet
from shared.deployments.deployments import DeploymentRef
from shared.eventlog import events
from shared.infra import broker
from shared.infra.postgres import connection, driver
from shared.runs import claims
from shared.runs.claims import Terms
from shared.settings import Settings
from shared.threads import records
from tests.support import factories
from workers.upkeep.upkeep import Upkeep

KWARGS = {"config": {"configurable": {}}}
Notified = list[tuple[str, str, str]]


@pytest.fixture
def notified(monkeypatch: pytest.MonkeyPatch) -> Notified:
    """Record notifications instead of sending them. Returns the list of `(task, queue, id)`."""
    heard: Notified = []
    monkeypatch.setattr(
        broker.notifier, "notify", lambda task, queue, id: heard.append((task, queue, str(id)))
    )
    return heard


@pytest.fixture
def upkeep(settings: Settings, notified: Notified) -> Upkeep:
    return Upkeep(dataclasses.replace(settings, worker="upkeep"))


def abandoned(deployment: DeploymentRef, assignments: str = "deaths = deaths", **columns: Any) -> UUID:
    """Insert a claimed run whose lease has run out. Returns its id."""
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
        return dict(records.get(conn, deployment.id, row(run_id)["thread_id"]))


def log_of(redis: Redis, run_id: UUID) -> list[tuple[int, str, Any]]:
    return [(event.seq, event.name, orjson.loads(event.data)) for event in events.logged(redis, run_id, 0)]


def lead(name: str) -> bool:
    with driver() as conn:
        return fleet.claim_leadership(conn, fleet.UPKEEP, name)


def end_leadership(at: str = "now()") -> None:
    """Let the upkeep lease end at this SQL expression, as if the leader had stopped renewing it then."""
    with connection() as conn:
        conn.execute(text(f"UPDATE leader SET lease_until = {at}"))
