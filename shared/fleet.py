"""The fleet: runners and builders by their heartbeats, and the load of each pool.

A worker process writes its row every few seconds and deletes it when it stops. A worker that misses two heartbeats is
silent: it is shown as such and its slots no longer count. Upkeep removes it after a minute. Rows are for display: only
leases decide which process owns a run.

Leadership is a lease in a row, by the database's clock, that lets one process do a job. An advisory lock would not do:
it ends with its session, and the session of a frozen process lives on. A leader that does not renew its lease for
LEASE_SECONDS is replaced by the next process that tries. It learns of that at its next renewal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text

from shared.errors import Conflict, NotFound
from shared.infra.postgres import Driver, dumps, query
from shared.models import is_silent
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

REMOVED_SECONDS = 60.0  # without a heartbeat
READY, DRAINING, SILENT = "ready", "draining", "silent"
STATES = (READY, DRAINING, SILENT)
UPKEEP = "upkeep"  # the role that one process leads
LEASE_SECONDS = 3.0

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


COLUMNS = tuple(Heartbeat.__dataclass_fields__)
FIXED = ("id", "kind", "pool", "host_name", "pid", "version", "isolation", "bounds_tasks", "bounds_memory")
RECORD_HEARTBEAT = text(
    f"INSERT INTO worker ({', '.join(COLUMNS)}, drain_requested_at) VALUES ("
    + ", ".join("CAST(:hosts AS json)" if name == "hosts" else f":{name}" for name in COLUMNS)
    + ", CASE WHEN :is_drained THEN now() END) ON CONFLICT (id) DO UPDATE SET seen_at = now(), "
    # A worker that drains without an operator's request shuts down: it cannot be resumed.
    + f"drain_requested_at = CASE WHEN :is_drained OR excluded.state <> '{DRAINING}' THEN worker.drain_requested_at END, "
    + ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in (*FIXED, "state"))
    + f", state = CASE WHEN worker.drain_requested_at IS NULL THEN excluded.state ELSE '{DRAINING}' END"
    + " RETURNING drain_requested_at IS NOT NULL"
)


def record_heartbeat(conn: Connection, heartbeat: Heartbeat, *, is_drained: bool = False) -> bool:
    """Store a worker's newest heartbeat. Returns whether an operator has drained the worker.

    `is_drained` is what the worker knows: a row that upkeep removed during a long silence is inserted with it.
    """
    values = {**asdict(heartbeat), "hosts": dumps(list(heartbeat.hosts)), "is_drained": is_drained}
    return bool(conn.execute(RECORD_HEARTBEAT, values).scalar_one())


DRAIN = text(
    f"UPDATE worker SET state = '{DRAINING}', drain_requested_at = coalesce(drain_requested_at, now())"
    " WHERE id = :id"
)
RESUME = text(
    f"UPDATE worker SET state = '{READY}', drain_requested_at = NULL"
    f" WHERE id = :id AND (drain_requested_at IS NOT NULL OR state = '{READY}')"
)


def has_runner(conn: Connection, pool: str) -> bool:
    """Whether the pool has a runner that accepts runs."""
    query = text(
        "SELECT EXISTS (SELECT FROM worker WHERE kind = 'runner' AND pool = :pool AND state = :ready"
        f" AND NOT {is_silent()})"
    )
    return bool(conn.execute(query, {"pool": pool, "ready": READY}).scalar())


def request_drain(conn: Connection, worker: str) -> None:
    """Drain a worker until it ends or is resumed. The worker learns it with its next heartbeat. Raises NotFound."""
    if conn.execute(DRAIN, {"id": worker}).rowcount != 1:
        raise NotFound(f"Worker {worker} not found.")


def resume(conn: Connection, worker: str) -> None:
    """End a worker's drain. Raises NotFound; Conflict if the worker shuts down."""
    if conn.execute(RESUME, {"id": worker}).rowcount == 1:
        return
    if conn.execute(text("SELECT FROM worker WHERE id = :id"), {"id": worker}).first() is None:
        raise NotFound(f"Worker {worker} not found.")
    raise Conflict(f"Worker {worker} shuts down and cannot be resumed.")


def is_heard(conn: Connection, worker: str) -> bool:
    """Whether a worker is alive, by its heartbeats."""
    query = text(f"SELECT EXISTS (SELECT FROM worker WHERE id = :id AND NOT {is_silent()})")
    return bool(conn.execute(query, {"id": worker}).scalar())


def leave(conn: Connection, worker: str) -> None:
    """Remove a worker that stops."""
    conn.execute(text("DELETE FROM worker WHERE id = :id"), {"id": worker})


def sweep(conn: Connection) -> list[str]:
    """Remove workers that have been silent for REMOVED_SECONDS. Returns their ids."""
    gone = conn.execute(
        text("DELETE FROM worker WHERE seen_at < now() - make_interval(secs => :removed) RETURNING id"),
        {"removed": REMOVED_SECONDS},
    )
    return list(gone.scalars())


def all_of(conn: Connection, *, organization_id: UUID | None) -> list[dict[str, Any]]:
    """Return all workers, oldest first, with the graph hosts of the organization's deployments (None: of all)."""
    query = text(
        f"SELECT *, extract(epoch FROM now() - seen_at) AS silent_seconds, {is_silent()} AS is_silent"
        " FROM worker ORDER BY started_at, id"
    )
    rows = [dict(row) for row in conn.execute(query).mappings()]
    hosts = [host for row in rows for host in row["hosts"]]
    names = _names(conn, {host["revision_id"] for host in hosts}, organization_id)
    for row in rows:
        row["state"] = SILENT if row["is_silent"] else row["state"]
        row["silent_seconds"] = round(float(row["silent_seconds"]), 3)
        row["host_count"] = len(row["hosts"])
        row["hosts"] = [
            {**host, **names[host["revision_id"]]} for host in row["hosts"] if host["revision_id"] in names
        ]
    return rows


def _names(
    conn: Connection, revision_ids: Iterable[str], organization_id: UUID | None
) -> dict[str, dict[str, Any]]:
    rows = conn.execute(
        text(
            "SELECT CAST(r.id AS text) AS revision_id, r.number, d.id, d.name FROM revision r"
            " JOIN deployment d ON d.id = r.deployment_id WHERE r.id = ANY(CAST(:ids AS uuid[]))"
            " AND (CAST(:organization_id AS uuid) IS NULL OR d.organization_id = :organization_id)"
        ),
        {"ids": list(revision_ids), "organization_id": organization_id},
    )
    return {
        row.revision_id: {"deployment_id": row.id, "deployment": row.name, "revision_number": row.number}
        for row in rows
    }


POOLS = text(f"""
WITH live AS (
    SELECT pool, count(*) FILTER (WHERE status = 'running') AS running,
        count(*) FILTER (WHERE status = 'pending' AND waiting_since(run.not_before, run.created_at) <= now()) AS pending,
        extract(epoch FROM now() - min(waiting_since(run.not_before, run.created_at))
            FILTER (WHERE status = 'pending' AND waiting_since(run.not_before, run.created_at) <= now())) AS oldest
    FROM run WHERE is_live(status) GROUP BY pool
), serving AS (
    SELECT pool, count(*) FILTER (WHERE NOT is_silent) AS runners, count(*) FILTER (WHERE is_silent) AS silent,
        count(*) FILTER (WHERE state = 'draining' AND NOT is_silent) AS draining,
        sum(slots) FILTER (WHERE state = 'ready' AND NOT is_silent) AS slots,
        sum(ended_a_minute) FILTER (WHERE NOT is_silent) AS ended,
        sum(json_array_length(hosts)) FILTER (WHERE NOT is_silent) AS hosts
    FROM (SELECT *, {is_silent()} AS is_silent FROM worker WHERE kind = 'runner') AS runner GROUP BY pool
), known AS (
    SELECT pool FROM live UNION SELECT pool FROM serving
    UNION SELECT pool FROM deployment WHERE deleted_at IS NULL
)
SELECT k.pool AS name, coalesce(s.runners, 0) AS runners, coalesce(s.draining, 0) AS draining,
    coalesce(s.silent, 0) AS silent,
    CAST(coalesce(s.slots, 0) AS bigint) AS slots, CAST(coalesce(s.hosts, 0) AS bigint) AS hosts,
    coalesce(l.running, 0) AS running, coalesce(l.pending, 0) AS pending,
    CAST(coalesce(l.oldest, 0) AS double precision) AS oldest_wait_seconds,
    CAST(coalesce(s.ended, 0) AS bigint) AS ended_a_minute
FROM known k LEFT JOIN live l ON l.pool = k.pool LEFT JOIN serving s ON s.pool = k.pool
ORDER BY k.pool
""")


def pools(conn: Connection) -> list[dict[str, Any]]:
    """Return every pool that has runners, runs or deployments, with its capacity and its backlog.

    A silent runner counts only as `silent`: not among the `runners`, and without slots and hosts.
    """
    return [dict(row) for row in conn.execute(POOLS).mappings()]


# Nested runs do not use the slots that a runner reports (`shared/runs/nesting.py`).
COUNTED = text(f"""
WITH nested AS (SELECT owner, count(*) AS runs FROM run WHERE status = 'running' AND depth > 0 GROUP BY owner),
known AS (
    SELECT id, kind, pool, state, slots, running, ended_a_minute, json_array_length(hosts) AS hosts
    FROM worker WHERE NOT {is_silent()}
    UNION ALL
    SELECT id, kind, pool, '{SILENT}', 0, 0, 0, 0 FROM worker WHERE {is_silent()}
)
SELECT kind, pool, state, count(*) AS workers, CAST(sum(slots) AS bigint) AS slots,
    CAST(sum(running) AS bigint) AS running, CAST(sum(ended_a_minute) AS bigint) AS ended,
    CAST(sum(CASE state WHEN 'ready' THEN
        greatest(slots - greatest(running - coalesce(n.runs, 0), 0), 0) ELSE 0 END) AS bigint) AS available,
    CAST(sum(hosts) AS bigint) AS hosts
FROM known LEFT JOIN nested n ON n.owner = known.id GROUP BY kind, pool, state ORDER BY kind, pool, state
""")


def counted(conn: Connection) -> list[RowMapping]:
    """Return the sums of workers by kind, pool and state. Silent workers have no slots, runs or hosts."""
    return list(conn.execute(COUNTED).mappings())


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


# While another process leads, the statement locks and writes nothing. A lease that ends later than any lease can was
# written before the database's clock was put back, and is ignored.
HOLD = """
INSERT INTO leader AS held (role, owner, lease_until)
SELECT %(role)s, %(owner)s, now() + make_interval(secs => %(lease)s)
WHERE NOT EXISTS (SELECT FROM leader WHERE role = %(role)s AND owner <> %(owner)s
    AND lease_until > now() AND lease_until <= now() + make_interval(secs => 2 * %(lease)s))
ON CONFLICT (role) DO UPDATE SET owner = excluded.owner, lease_until = excluded.lease_until
WHERE held.owner = excluded.owner OR held.lease_until <= now()
   OR held.lease_until > now() + make_interval(secs => 2 * %(lease)s)
RETURNING owner
"""


def claim_leadership(conn: Driver, role: str, owner: str) -> bool:
    """Claim or renew the lease. Returns False while another process holds it."""
    values = {"role": role, "owner": owner, "lease": LEASE_SECONDS}
    return query(conn, HOLD, values).fetchone() is not None


def release_leadership(conn: Driver, role: str, owner: str) -> None:
    """Release the lease, so that another process can lead at once."""
    query(
        conn,
        "DELETE FROM leader WHERE role = %(role)s AND owner = %(owner)s",
        {"role": role, "owner": owner},
    )
