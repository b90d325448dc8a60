"""Limits of a deployment: concurrent runs, hosts, run timeout, memory, token budgets; and its pool."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared.deployments.shares import takes_traffic
from shared.figures import budgets
from shared.records import COUNT_OR_NULL, Record, RecordField

MOVED_AT_ONCE = 2_000  # one statement for 100 000 runs would exceed a request's time limit
RECORD = Record(
    "DeploymentLimits",
    {
        "max_concurrent_runs": RecordField(COUNT_OR_NULL),
        "hosts_per_runner": RecordField(COUNT_OR_NULL),
        "run_timeout_seconds": RecordField({"type": ["number", "null"], "minimum": 0}),
        "memory_mb": RecordField(COUNT_OR_NULL),
        "max_tokens_per_day": RecordField(COUNT_OR_NULL),
        "max_run_tokens": RecordField(COUNT_OR_NULL),
    },
)
NAMES = RECORD.columns


def change(conn: Connection, deployment_id: UUID, given: Mapping[str, Any]) -> None:
    """Set the limits that are not None; 0 removes a limit."""
    wanted = {name: given[name] or None for name in NAMES if given.get(name) is not None}
    if wanted:
        columns = ", ".join(f"{name} = :{name}" for name in wanted)
        conn.execute(
            text(f"UPDATE deployment SET {columns}, updated_at = now() WHERE id = :id"),
            {**wanted, "id": deployment_id},
        )
    if wanted.get("max_tokens_per_day"):
        budgets.begin(conn, (budgets.DEPLOYMENT, str(deployment_id)))
    budgets.forget()


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Limits of a revision's graph hosts. None: the runner's settings apply."""

    hosts_per_runner: int | None = None
    memory_mb: int | None = None
    is_gone: bool = False  # the revision or its deployment is deleted
    is_replaced: bool = False  # the revision has no traffic and no preview: another revision serves


def of_hosts(conn: Connection, revision_ids: Collection[UUID]) -> dict[UUID, HostLimits]:
    """Return the host limits of these revisions, from their deployments."""
    rows = conn.execute(
        text(
            "SELECT r.id, d.hosts_per_runner, d.memory_mb, d.deleted_at IS NOT NULL,"
            f" d.active_revision_id IS NOT NULL AND {takes_traffic('r', 'd')} IS NOT TRUE"
            " FROM revision r JOIN deployment d ON d.id = r.deployment_id WHERE r.id = ANY(:ids)"
        ),
        {"ids": list(revision_ids)},
    )
    found = {row[0]: HostLimits(*row[1:]) for row in rows}
    return {id: found.get(id, HostLimits(is_gone=True)) for id in revision_ids}


MOVE_WAITING = text("""
UPDATE run SET pool = :pool, notified_at = NULL, notifications = 0 WHERE status = 'pending' AND run_id = ANY(ARRAY(
    SELECT run_id FROM run WHERE deployment_id = :id AND status = 'pending' AND pool <> :pool
    LIMIT :limit FOR UPDATE SKIP LOCKED))
""")


def move_waiting(conn: Connection, deployment_id: UUID, pool: str, *, limit: int = MOVED_AT_ONCE) -> int:
    """Move some of a deployment's pending runs to its new pool. Returns the number of moved runs.

    Upkeep moves the others and notifies the new pool's runners.
    """
    return conn.execute(MOVE_WAITING, {"id": deployment_id, "pool": pool, "limit": limit}).rowcount
