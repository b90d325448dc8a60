"""Runs with a webhook, and the outbox that their ends leave a delivery in."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import text

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection, driver
from shared.models import RunStatus, ThreadStatus
from shared.removal import deletion
from shared.runs import claims
from shared.runs.claims import Claimed, Terms
from shared.runs.finish import Finish, finish_runs
from shared.threads import records
from tests.support import factories

SERVICE = "http://127.0.0.1:1"
URL = "https://hooks.example/run?token=x"
KWARGS = {"config": {"configurable": {"nul": "\0"}}, "webhook": URL}


def pending(deployment: DeploymentRef, url: str | None = URL, **columns: Any) -> UUID:
    values = {"kwargs": {**KWARGS, "webhook": url}, "webhook": url, "input": {"a": 1}, **columns}
    return factories.run(deployment, **values)


def claimed(deployment: DeploymentRef, url: str | None = URL, **columns: Any) -> Claimed:
    with driver() as conn:
        [(run, _)] = claims.claim(conn, [pending(deployment, url, **columns)], Terms("a", 30.0, 3600.0))
    return run


def finish(run: Claimed, status: RunStatus = RunStatus.SUCCESS, **fields: Any) -> None:
    end = Finish(run, status, ThreadStatus.IDLE, **fields)
    with driver() as conn, conn.transaction():
        records.lock_all(conn, [(run.deployment_id, run.thread_id)])
        assert finish_runs(conn, [end], owner="a").keys() == {run.run_id}


def outbox() -> list[Any]:
    with connection() as conn:
        query = text("SELECT * FROM webhook_delivery ORDER BY created_at, delivery_id")
        return list(conn.execute(query).mappings())


def loses_its_deployment(deployment: DeploymentRef) -> None:
    pending(deployment)
    with connection() as conn:
        deletion.delete(conn, deployment.organization_id, deployment.id)
        deletion.stop_runs(conn, deployment.id)
