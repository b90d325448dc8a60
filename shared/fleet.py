"""The fleet: runners and builders by their heartbeats, and the load of each pool.

A worker process writes its row every few seconds and deletes it when it stops. A worker that misses two heartbeats is
silent: it is shown as such and its slots no longer count. Upkeep removes it after a minute. Rows are for display: only
leases decide which process owns a run.

Leadership is a lease in a row, by the database's clock, that lets one process do a job. An advisory lock would not do:
it ends with its session, and the session of a frozen process lives on. A leader that does not renew its lease for
LEASE_SECONDS is replaced by the next process that tries. It learns of that at its next renewal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared.errors import Conflict, NotFound
from shared.infra.postgres import Driver, dumps, query
from shared.models import SILENT_SECONDS
from shared.records import (
    BOOLEAN,
    COUNT,
    ID,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    JsonSchema,
    Record,
    RecordField,
    listed,
    one_of,
    record,
)
from shared.sql import statement

REMOVED_SECONDS = 60.0  # without a heartbeat
READY, DRAINING, SILENT = "ready", "draining", "silent"
STATES = (READY, DRAINING, SILENT)
UPKEEP = "upkeep"  # the role that one process leads
LEASE_SECONDS = 3.0

_RECORD_HEARTBEAT = statement("fleet.record_heartbeat")
_HAS_RUNNER = statement("fleet.has_runner")
_ALL = statement("fleet.all")
_NAMES_OF_REVISIONS = statement("fleet.names_of_revisions")
_POOLS = statement("fleet.pools")
_COUNTED = statement("fleet.counted")
_CLAIM_LEADERSHIP = statement("fleet.claim_leadership")

SECONDS: JsonSchema = {"type": "number", "minimum": 0}
GRAPH_HOST = record(
    "GraphHost",
    revision_id=ID,
    revision_number=COUNT,
    deployment_id=ID,
    deployment=TEXT,
    pid=COUNT,
    runs=COUNT,
    memory_mb=COUNT,
    memory_limit_mb=COUNT,
    age_seconds=SECONDS,
    idle_seconds=SECONDS,
    is_healthy=BOOLEAN,
)
RECORD = Record(
    "Worker",
    {
        "id": RecordField(TEXT),
        "kind": RecordField(one_of("runner", "builder")),
        "pool": RecordField(TEXT_OR_NULL),
        "host_name": RecordField(TEXT),
        "pid": RecordField(COUNT),
        "version": RecordField(TEXT),
        "isolation": RecordField({"type": "integer", "enum": [0, 1, 2]}),
        "bounds_tasks": RecordField(BOOLEAN),
        "bounds_memory": RecordField(BOOLEAN),
        "state": RecordField(one_of(*STATES)),
        "slots": RecordField(COUNT),
        "running": RecordField(COUNT),
        "ended_a_minute": RecordField(COUNT),
        "heard_seconds": RecordField(SECONDS),
        "silent_seconds": RecordField(SECONDS),
        "host_count": RecordField(COUNT),
        "hosts": RecordField(listed(GRAPH_HOST)),
        "started_at": RecordField(TIME),
        "seen_at": RecordField(TIME),
    },
)


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The state that a worker reports. `hosts` are a runner's graph hosts, by revision."""

    id: str
    kind: str
    pool: str | None
    host_name: str
    pid: int
    version: str
    isolation: int
    bounds_tasks: bool = False
    bounds_memory: bool = False
    state: str = READY
    slots: int = 0
    running: int = 0
    ended_a_minute: int = 0
    heard_seconds: float = 0.0
    hosts: Sequence[Mapping[str, Any]] = field(default_factory=list)


def record_heartbeat(conn: Connection, heartbeat: Heartbeat, *, is_drained: bool = False) -> bool:
    """Store a worker's newest heartbeat. Returns whether an operator has drained the worker.

    `is_drained` is what the worker knows: a row that upkeep removed during a long silence is inserted with it.
    """
    values = {**asdict(heartbeat), "hosts": dumps(list(heartbeat.hosts))}
    (row,) = _RECORD_HEARTBEAT.rows(conn, **values, is_drained=is_drained)
    return row["is_drained"]


def has_runner(conn: Connection, pool: str) -> bool:
    """Whether the pool has a runner that accepts runs."""
    (row,) = _HAS_RUNNER.rows(conn, pool=pool, silent_seconds=SILENT_SECONDS)
    return row["has_runner"]


def request_drain(conn: Connection, worker: str) -> None:
    """Drain a worker until it ends or is resumed. The worker learns it with its next heartbeat. Raises NotFound."""
    query = text(
        "UPDATE worker SET state = 'draining', drain_requested_at = coalesce(drain_requested_at, now())"
        " WHERE id = :id"
    )
    if conn.execute(query, {"id": worker}).rowcount != 1:
        raise NotFound(f"Worker {worker} not found.")


def resume(conn: Connection, worker: str) -> None:
    """End a worker's drain. Raises NotFound; Conflict if the worker shuts down."""
    query = text(
        "UPDATE worker SET state = 'ready', drain_requested_at = NULL"
        " WHERE id = :id AND (drain_requested_at IS NOT NULL OR state = 'ready')"
    )
    if conn.execute(query, {"id": worker}).rowcount == 1:
        return
    if conn.execute(text("SELECT FROM worker WHERE id = :id"), {"id": worker}).first() is None:
        raise NotFound(f"Worker {worker} not found.")
    raise Conflict(f"Worker {worker} shuts down and cannot be resumed.")


def is_heard(conn: Connection, worker: str) -> bool:
    """Whether a worker is alive, by its heartbeats."""
    query = text(
        "SELECT EXISTS (SELECT FROM worker WHERE id = :id AND seen_at >= now() - make_interval(secs => :silent))"
    )
    return bool(conn.execute(query, {"id": worker, "silent": SILENT_SECONDS}).scalar())


def leave(conn: Connection, worker: str) -> None:
    """Remove a worker that stops."""
    conn.execute(text("DELETE FROM worker WHERE id = :id"), {"id": worker})


def sweep(conn: Connection) -> list[str]:
    """Remove workers that have been silent for REMOVED_SECONDS. Returns their ids."""
    query = text("DELETE FROM worker WHERE seen_at < now() - make_interval(secs => :removed) RETURNING id")
    return list(conn.execute(query, {"removed": REMOVED_SECONDS}).scalars())


def all_of(conn: Connection, *, organization_id: UUID | None) -> list[dict[str, Any]]:
    """Return all workers, oldest first, with the graph hosts of the organization's deployments (None: of all)."""
    rows = _ALL.rows(conn, silent_seconds=SILENT_SECONDS)
    hosts = [host for row in rows for host in row["hosts"]]
    revisions = {
        row.pop("revision_id"): row
        for row in _NAMES_OF_REVISIONS.rows(
            conn, ids=[host["revision_id"] for host in hosts], organization_id=organization_id
        )
    }
    for row in rows:
        row["state"] = SILENT if row["is_silent"] else row["state"]
        row["silent_seconds"] = round(float(row["silent_seconds"]), 3)
        row["host_count"] = len(row["hosts"])
        row["hosts"] = [
            {**host, **revisions[host["revision_id"]]}
            for host in row["hosts"]
            if host["revision_id"] in revisions
        ]
    return rows


def pools(conn: Connection) -> list[dict[str, Any]]:
    """Return every pool that has runners, runs or deployments, with its capacity and its backlog.

    A silent runner counts only as `silent`: not among the `runners`, and without slots and hosts.
    """
    return _POOLS.rows(conn, silent_seconds=SILENT_SECONDS)


def counted(conn: Connection) -> list[dict[str, Any]]:
    """Return the sums of workers by kind, pool and state. Silent workers have no slots, runs or hosts."""
    return _COUNTED.rows(conn, silent_seconds=SILENT_SECONDS)


@dataclass(frozen=True)
class Weakest:
    """The weakest isolation among all workers. All fields are None if there is no worker."""

    isolation: int | None
    bounds_tasks: bool | None
    bounds_memory: bool | None


def weakest(conn: Connection) -> Weakest:
    """Return the weakest isolation among all workers."""
    row = conn.execute(
        text("SELECT min(isolation), bool_and(bounds_tasks), bool_and(bounds_memory) FROM worker")
    ).one()
    return Weakest(*row)


def claim_leadership(conn: Driver, role: str, owner: str) -> bool:
    """Claim or renew the lease. Returns False while another process holds it."""
    return _CLAIM_LEADERSHIP.count(conn, role=role, owner=owner, lease_seconds=LEASE_SECONDS) == 1


def release_leadership(conn: Driver, role: str, owner: str) -> None:
    """Release the lease, so that another process can lead at once."""
    query(
        conn, "DELETE FROM leader WHERE role = %(role)s AND owner = %(owner)s", {"role": role, "owner": owner}
    )
