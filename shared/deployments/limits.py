"""Limits of a deployment: concurrent runs, hosts, run timeout, memory, budgets; and its pool."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, update

from shared.figures import budgets
from shared.infra.arrays import uuids
from shared.models import DEPLOYMENT
from shared.records import COUNT_OR_NULL, Record, RecordField
from shared.sql import statement

MOVED_AT_ONCE = 2_000  # one statement for 100 000 runs would exceed a request's time limit
RECORD = Record(
    "DeploymentLimits",
    {
        "max_concurrent_runs": RecordField(COUNT_OR_NULL),
        "hosts_per_runner": RecordField(COUNT_OR_NULL),
        "run_timeout_seconds": RecordField({"type": ["number", "null"], "minimum": 0}),
        "memory_mb": RecordField(COUNT_OR_NULL),
        **budgets.FIELDS,
    },
)
NAMES = RECORD.columns

_OF_HOSTS = statement("revisions.host_limits")
_MOVE_WAITING = statement("deployments.move_waiting")


def change(conn: Connection, deployment_id: UUID, changes: Mapping[str, Any]) -> None:
    """Set the limits that are not None; 0 and an empty text remove one."""
    values = {name: changes[name] or None for name in NAMES if changes.get(name) is not None}
    if values:
        is_deployment = DEPLOYMENT.c.id == deployment_id
        conn.execute(update(DEPLOYMENT).where(is_deployment).values(**values, updated_at=func.now()))
    if any(values.get(name) for name in budgets.DAILY):
        budgets.begin(conn, (budgets.DEPLOYMENT, str(deployment_id)), deployment_id)
    budgets.forget()


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Limits of a revision's graph hosts. None: the runner's settings apply."""

    hosts_per_runner: int | None = None
    memory_mb: int | None = None
    is_deleted: bool = False  # the revision or its deployment is deleted
    is_replaced: bool = False  # the revision has no traffic and no preview: another revision serves


def of_hosts(conn: Connection, revision_ids: Collection[UUID]) -> dict[UUID, HostLimits]:
    """Return the host limits of these revisions, from their deployments."""
    rows = _OF_HOSTS.rows(conn, ids=uuids(list(revision_ids)))
    limits = {row.pop("id"): HostLimits(**row) for row in rows}
    return {id: limits.get(id, HostLimits(is_deleted=True)) for id in revision_ids}


def move_waiting(conn: Connection, deployment_id: UUID, pool: str, *, limit: int = MOVED_AT_ONCE) -> int:
    """Move some of a deployment's pending runs to its new pool. Returns the number of moved runs.

    Upkeep moves the others and notifies the new pool's runners.
    """
    return _MOVE_WAITING.count(conn, id=deployment_id, pool=pool, limit=limit)
