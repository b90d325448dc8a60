"""The backlog of pending runs: the next run of a thread, repeated notifications, and statistics of the table.

A run waits for the earlier runs of its thread, for its start time and for capacity: a slot in its pool, its
deployment's limit and its key's limit (`shared/runs/limits.py`). The rules are in `shared/sql/rules.sql`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from shared.deployments.limits import move_waiting
from shared.infra.arrays import texts
from shared.infra.postgres import Driver, query
from shared.sql import statement

_NOTIFY = statement("backlog.notify")


@dataclass(frozen=True, slots=True)
class NextRun:
    """A pending run that runners are to be notified of, such as the next run of a thread after one has ended."""

    run_id: UUID
    pool: str


def next_of(conn: Connection, deployment_id: UUID, thread_id: UUID) -> NextRun | None:
    """Return the oldest pending run of a thread, or None."""
    row = conn.execute(
        text(
            "SELECT run_id, pool FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
            " AND status = 'pending' ORDER BY created_seq LIMIT 1"
        ),
        {"deployment_id": deployment_id, "thread_id": thread_id},
    ).one_or_none()
    return None if row is None else NextRun(row.run_id, row.pool)


def pools(conn: Connection) -> list[str]:
    """Return the pools with pending runs."""
    return list(conn.execute(text("SELECT DISTINCT pool FROM waiting_lanes()")).scalars())


def mark_notified(conn: Connection, *, full_pools: Collection[str] = (), limit: int = 200) -> list[NextRun]:
    """Mark eligible runs whose last notification had no effect as notified again, and return them.

    Skips the runs of `full_pools`.
    """
    rows = _NOTIFY.rows(conn, full_pools=texts(list(full_pools)), limit=limit)
    return [NextRun(row["run_id"], row["pool"]) for row in rows]


def move_stragglers(conn: Connection) -> int:
    """Move pending runs whose pool is not their deployment's pool. Returns how many.

    Such runs were created or returned to the queue while the deployment moved to another pool.
    """
    stragglers = text(
        "SELECT DISTINCT d.id, d.pool FROM waiting_lanes() lane"
        " JOIN deployment d ON d.id = lane.deployment_id AND d.pool <> lane.pool"
    )
    return sum(move_waiting(conn, row.id, row.pool) for row in conn.execute(stragglers).all())


# Autovacuum analyzes the table only after a tenth of all stored runs has changed.
IS_OUTDATED = text("""
SELECT n_mod_since_analyze > 5000
    AND coalesce(greatest(last_analyze, last_autoanalyze), '-infinity') < now() - make_interval(secs => :pause)
FROM pg_stat_user_tables WHERE relid = CAST('run' AS regclass)
""")
# A sample of 3,000 rows is enough to estimate the backlog. The default of 30,000 rows takes up to seconds and would
# delay the other steps of upkeep.
SMALL_SAMPLE = text("SET LOCAL default_statistics_target = 10")


def refresh_statistics(conn: Connection, *, pause_seconds: float = 60.0) -> bool:
    """Analyze the run table if its statistics may be outdated. Returns whether it did.

    If the statistics show no pending runs, the plan of each claim reads the whole backlog.
    """
    is_outdated = bool(conn.execute(IS_OUTDATED, {"pause": pause_seconds}).scalar_one())
    if is_outdated:
        conn.execute(SMALL_SAMPLE)
        conn.execute(text("ANALYZE run"))
    return is_outdated


def count_pending(conn: Connection | Driver, deployment_id: UUID, *, most: int) -> int:
    """Return the number of a deployment's pending runs, counted up to `most`."""
    counted = (
        "SELECT count(*) AS n FROM (SELECT FROM run WHERE deployment_id = %(deployment_id)s"
        " AND status = 'pending' LIMIT %(most)s) AS waiting"
    )
    row = query(conn, counted, {"deployment_id": deployment_id, "most": most}).fetchone()
    return 0 if row is None else row["n"]
