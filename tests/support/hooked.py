"""Runs with a webhook, and the outbox where their ends insert deliveries."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import text

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection
from shared.models import RunStatus
from shared.removal import deletion
from shared.runs.claims import Claimed
from tests.support import factories, owning

SERVICE = "http://127.0.0.1:1"
URL = "https://hooks.example/run?token=x"
KWARGS = {"config": {"configurable": {"nul": "\0"}}, "webhook": URL}


def pending(deployment: DeploymentRef, url: str | None = URL, **columns: Any) -> UUID:
    values = {"kwargs": {**KWARGS, "webhook": url}, "webhook": url, "input": {"a": 1}, **columns}
    return factories.run(deployment, **values)


def claimed(deployment: DeploymentRef, url: str | None = URL, **columns: Any) -> Claimed:
    [run] = owning.claim(pending(deployment, url, **columns))
    return run


def finish(run: Claimed, status: RunStatus = RunStatus.SUCCESS, **fields: Any) -> None:
    assert owning.finish(run, status, **fields).keys() == {run.run_id}


def outbox() -> list[Any]:
    with connection() as conn:
        query = text("SELECT * FROM webhook_delivery ORDER BY created_at, delivery_id")
        return list(conn.execute(query).mappings())


def loses_its_deployment(deployment: DeploymentRef) -> None:
    pending(deployment)
    with connection() as conn:
        deletion.delete(conn, deployment.organization_id, deployment.id)
        deletion.stop_runs(conn, deployment.id)
