"""Eligibility of pending runs, the order in which they are claimed, and repeated notifications.

A run waits for the earlier runs of its thread, for its start time and for capacity: a slot in its pool, its
deployment's limit (`shared/runs/deployment_limits.py`) and its key's limit (`shared/runs/key_limits.py`).
`shared/runs/claims.py` executes the claim statements defined here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from shared.models import is_due, is_live, waiting_since


def has_waited(alias: str) -> str:
    """Return SQL that is true for pending runs that have been waiting for `waited` seconds."""
    return f"{waiting_since(alias)} < now() - make_interval(secs => %(waited)s)"


# OFFSET 0 keeps the planner from turning the subquery into a join, so it stays an index lookup by thread. A join is
# planned by statistics, and with statistics of a quiet hour its plan reads the whole backlog for each pending run.
_ELIGIBLE = """{0}.cancel_requested IS NULL AND {due}
    AND NOT EXISTS (SELECT 1 FROM run e WHERE e.deployment_id = {0}.deployment_id
      AND e.thread_id = {0}.thread_id AND e.created_seq < {0}.created_seq
      AND {live} OFFSET 0)"""


def eligible(alias: str) -> str:
    """Return SQL that is true for pending runs that may start, apart from limits and full runners."""
    return _ELIGIBLE.format(alias, due=is_due(alias), live=is_live("e"))


def notification_lost(alias: str) -> str:
    """Return SQL that is true for pending runs whose last notification has had no effect for a while."""
    return f"is_notification_lost({alias}.notified_at, {alias}.notifications)"


# SET clauses for an UPDATE of runs, if runners are notified of them after the commit.
NOTIFIED_AGAIN = "notified_at = now(), notifications = notifications + 1"
NOTIFIED_FIRST = "notified_at = now(), notifications = 0"

# Runs under a limit are claimed by shared/runs/deployment_limits.py and shared/runs/key_limits.py. In the statements
# here, runs that a limit keeps waiting would take the place of runs that can start.
_FREE_DEPLOYMENT = (
    "{0}.deployment_id NOT IN (SELECT id FROM deployment WHERE max_concurrent_runs IS NOT NULL)"
)
_FREE_KEY = "{0}.key_id NOT IN (SELECT id FROM api_key WHERE max_concurrent_runs IS NOT NULL)"


def free_deployment(alias: str) -> str:
    """Return SQL that is true for runs of deployments without a limit."""
    return _FREE_DEPLOYMENT.format(alias)


def unlimited(alias: str) -> str:
    """Return SQL that is true for runs whose deployment and key both have no limit."""
    return f"{free_deployment(alias)} AND {_FREE_KEY.format(alias)}"


@dataclass(frozen=True, slots=True)
class Next:
    """A pending run that runners are to be notified of, such as the next run of a thread after one has ended."""

    run_id: UUID
    pool: str


def next_of(conn: Connection, deployment_id: UUID, thread_id: UUID) -> Next | None:
    """Return the oldest pending run of a thread, or None."""
    row = conn.execute(
        text(
            "SELECT run_id, pool FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
            " AND status = 'pending' ORDER BY created_seq LIMIT 1"
        ),
        {"deployment_id": deployment_id, "thread_id": thread_id},
    ).one_or_none()
    return None if row is None else Next(row.run_id, row.pool)


def pools(conn: Connection) -> list[str]:
    """Return the pools with pending runs."""
    query = text("SELECT DISTINCT pool FROM waiting_lanes()")
    return list(conn.execute(query).scalars())


# Considers only the oldest runs of each pair of deployment and key, so the cost does not grow with the backlog. Nested
# runs are left out: runners poll for them (`shared/runs/nesting.py`).
TO_NOTIFY = text(f"""
UPDATE run SET {NOTIFIED_AGAIN} WHERE run_id = ANY(ARRAY(
    WITH eligible AS (
        SELECT c.run_id FROM waiting_lanes() l CROSS JOIN LATERAL (
            SELECT w.run_id, w.notified_at, w.notifications FROM run w WHERE w.status = 'pending' AND w.pool = l.pool
              AND w.deployment_id = l.deployment_id AND w.key_id = l.key_id AND w.depth = 0 AND {eligible("w")}
            ORDER BY w.run_id LIMIT 2 * :limit) c
        WHERE l.pool <> ALL(:full_pools) AND {unlimited("l")}
          AND {notification_lost("c")}
        ORDER BY c.run_id LIMIT :limit)
    SELECT r.run_id FROM run r WHERE r.run_id = ANY(ARRAY(SELECT run_id FROM eligible))
    FOR UPDATE SKIP LOCKED))
RETURNING run_id, pool
""")


def to_notify(conn: Connection, *, full_pools: Collection[str] = (), limit: int = 200) -> list[Next]:
    """Mark eligible runs whose last notification had no effect as notified again, and return them.

    Skips the runs of `full_pools`.
    """
    rows = conn.execute(TO_NOTIFY, {"full_pools": list(full_pools), "limit": limit})
    return [Next(row.run_id, row.pool) for row in rows]


# Autovacuum analyzes the table only after a tenth of all stored runs has changed.
IS_OUTDATED = text("""
SELECT n_mod_since_analyze > 5000
    AND coalesce(greatest(last_analyze, last_autoanalyze), '-infinity') < now() - make_interval(secs => :pause)
FROM pg_stat_user_tables WHERE relid = CAST('run' AS regclass)
""")
# A sample of 3,000 rows is enough to estimate the backlog. The default of 30,000 rows takes up to seconds and would
# delay the other steps of upkeep.
COARSELY = text("SET LOCAL default_statistics_target = 10")


def refresh_statistics(conn: Connection, *, pause_seconds: float = 60.0) -> bool:
    """Analyze the run table if its statistics may be outdated. Returns whether it did.

    If the statistics show no pending runs, the plan of each claim reads the whole backlog.
    """
    is_outdated = bool(conn.execute(IS_OUTDATED, {"pause": pause_seconds}).scalar_one())
    if is_outdated:
        conn.execute(COARSELY)
        conn.execute(text("ANALYZE run"))
    return is_outdated
