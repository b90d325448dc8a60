"""Steps of tests about run ownership, each in its own transaction."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import text

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection, driver
from shared.models import RunStatus, ThreadStatus
from shared.runs import claims
from shared.runs.backlog import NextRun
from shared.runs.claims import Claimed, Terms
from shared.runs.finish import Finish, finish_runs
from shared.threads import records
from tests.support import factories

KWARGS = {"config": {"configurable": {"a": 1}, "recursion_limit": 25}}


def pending(deployment: DeploymentRef, thread_id: UUID | None = None, **columns: Any) -> UUID:
    return factories.run(deployment, thread_id, **{"kwargs": KWARGS, **columns})


def terms(owner: str = "a") -> Terms:
    return Terms(owner, 30.0, 3600.0)


def claim(*run_ids: UUID, owner: str = "a") -> list[Claimed]:
    with driver() as conn:
        return [run for run, _ in claims.claim(conn, run_ids, terms(owner))]


def claimed(deployment: DeploymentRef, thread_id: UUID | None = None, **columns: Any) -> Claimed:
    (run,) = claim(pending(deployment, thread_id, **columns))
    return run


def row(run_id: UUID) -> dict[str, Any]:
    with connection() as conn:
        found = conn.execute(text("SELECT * FROM run WHERE run_id = :id"), {"id": run_id})
        return dict(found.mappings().one())


def change(run_id: UUID, assignments: str) -> None:
    with connection() as conn:
        conn.execute(text(f"UPDATE run SET {assignments} WHERE run_id = :id"), {"id": run_id})


def expire(run: Claimed) -> None:
    change(run.run_id, "lease_until = now() - interval '1 second'")


def finish(run: Claimed, status: RunStatus = RunStatus.SUCCESS, **fields: Any) -> dict[UUID, NextRun | None]:
    end = Finish(run, status, fields.pop("thread_status", ThreadStatus.IDLE), **fields)
    with driver() as conn, conn.transaction():
        return finish_runs(conn, [end], owner=run.owner)


def thread_of(run: Claimed) -> dict[str, Any]:
    with connection() as conn:
        return dict(records.get(conn, run.deployment_id, run.thread_id))


def renew(run: Claimed, owner: str | None = None) -> dict[UUID, claims.Hold]:
    with connection() as conn:
        return claims.renew(conn, [run.run_id], owner=owner or run.owner, lease_seconds=60)


def release(run: Claimed, max_attempts: int = 3) -> bool:
    with connection() as conn:
        records.lock(conn, run.deployment_id, run.thread_id)
        return claims.release_abandoned(conn, run.run_id, max_attempts=max_attempts)


def give_back(run: Claimed, **fields: Any) -> bool:
    with connection() as conn:
        return run.run_id in claims.give_back(conn, [claims.Requeue(run, **fields)])


def store(run: Claimed, id: str) -> set[UUID]:
    return factories.store(factories.checkpoint(run, id))
