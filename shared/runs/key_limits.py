"""Limits of API keys: claiming runs of keys with `max_concurrent_runs`, which counts runs of all deployments.

Keys without a limit cost nothing extra: runners check every few seconds whether any limited key exists. A claim locks
the limited key's row while it counts the running runs, as `shared/runs/deployment_limits.py` does with deployments.
Runs of a deployment that is limited too are claimed by that module, within the limits of their keys. Runs of crons
belong to no key. Runs of each depth are counted separately (`shared/runs/nesting.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, text

from shared.infra.postgres import Driver, query
from shared.runs import claims
from shared.runs.claims import Claimed, Stored, Terms
from shared.runs.eligibility import (
    NOTIFIED_AGAIN,
    Next,
    eligible,
    free_deployment,
    has_waited,
    notification_lost,
)

RUNNING = """
SELECT key_id, count(*) AS n FROM run
WHERE status = 'running' AND key_id = ANY(%(ids)s) AND depth = %(depth)s GROUP BY key_id
"""
LOCKED = "SELECT max_concurrent_runs FROM api_key WHERE id = %(id)s FOR NO KEY UPDATE"
LOCKED_WITHIN = """
SELECT id, max_concurrent_runs FROM api_key
WHERE max_concurrent_runs IS NOT NULL
  AND id IN (SELECT key_id FROM run WHERE deployment_id = %(id)s AND status = 'pending' AND depth = %(depth)s)
ORDER BY id FOR NO KEY UPDATE
"""
# Selects the limited keys below their limit. Counts running runs without a lock.
_WITH_CAPACITY = """
SELECT k.id FROM api_key k
WHERE k.max_concurrent_runs IS NOT NULL AND k.id IN (SELECT w.key_id FROM run w WHERE {which}
      AND w.status = 'pending' AND w.depth = 0 AND {free})
  AND k.max_concurrent_runs
      > (SELECT count(*) FROM run e WHERE e.key_id = k.id AND e.status = 'running' AND e.depth = 0)
"""
WITH_CAPACITY = _WITH_CAPACITY.format(which="w.run_id = ANY(%(ids)s)", free=free_deployment("w"))
OVERLOOKED = _WITH_CAPACITY.format(
    which=f"w.pool = %(pool)s AND {has_waited('w')}",
    free=free_deployment("w"),
)


def are_there(conn: Connection) -> bool:
    """Return whether any key has a limit."""
    found = conn.execute(text("SELECT EXISTS (SELECT FROM api_key WHERE max_concurrent_runs IS NOT NULL)"))
    return bool(found.scalar_one())


def _running(conn: Driver, ids: Sequence[str], depth: int) -> dict[str, int]:
    if not ids:
        return {}
    rows = query(conn, RUNNING, {"ids": list(ids), "depth": depth})
    return {row["key_id"]: row["n"] for row in rows}


def capacities_within(conn: Driver, deployment_id: UUID, *, depth: int = 0) -> dict[str, int]:
    """Return how many runs each limited key with pending runs in a deployment may start. Locks these keys.

    Counts runs of this depth only.
    """
    rows = query(conn, LOCKED_WITHIN, {"id": deployment_id, "depth": depth})
    limits = {row["id"]: row["max_concurrent_runs"] for row in rows}
    running = _running(conn, list(limits), depth)
    return {id: max(most - running.get(id, 0), 0) for id, most in limits.items()}


def with_capacity(conn: Driver, run_ids: Sequence[UUID]) -> list[str]:
    """Return the limited keys of these pending runs that are below their limit. Takes no locks."""
    return [row["id"] for row in query(conn, WITH_CAPACITY, {"ids": list(run_ids)})]


def overlooked(conn: Driver, pool: str, *, waited_seconds: float) -> list[str]:
    """Return limited keys below their limit with a run in this pool that has waited `waited_seconds`."""
    return [row["id"] for row in query(conn, OVERLOOKED, {"pool": pool, "waited": waited_seconds})]


def claim(
    conn: Driver, key_id: str, pool: str, terms: Terms, *, most: int, depth: int = 0
) -> list[tuple[Claimed, Stored]]:
    """Claim the oldest pending runs of one depth of a limited key, up to `most` and its limit.

    Raises UniqueViolation like `claims.claim`.
    """
    with conn.transaction():
        row = query(conn, LOCKED, {"id": key_id}).fetchone()
        if row is None or row["max_concurrent_runs"] is None:
            return []  # deleted, or unlimited meanwhile: an ordinary claim finds its runs
        capacity = min(row["max_concurrent_runs"] - _running(conn, [key_id], depth).get(key_id, 0), most)
        if capacity <= 0:
            return []
        claimed = claims.claim_round_robin(
            conn,
            pool,
            terms,
            limit=capacity,
            served=[],
            depth=depth,
            key_id=key_id,
            capacities={key_id: capacity},
        )
    return [(dataclasses.replace(run, key_limited=True), stored) for run, stored in claimed]


TO_NOTIFY = text(f"""
UPDATE run SET {NOTIFIED_AGAIN} WHERE run_id = ANY(ARRAY(
    SELECT w.run_id FROM (
        SELECT c.run_id, c.notified_at, c.notifications, l.key_id,
            row_number() OVER (PARTITION BY l.key_id ORDER BY c.run_id) AS round
        FROM waiting_lanes() l CROSS JOIN LATERAL (
            SELECT r.run_id, r.notified_at, r.notifications FROM run r
            WHERE r.status = 'pending' AND r.pool = l.pool AND r.deployment_id = l.deployment_id
              AND r.key_id = l.key_id AND r.depth = 0 AND {eligible("r")}
            ORDER BY r.run_id LIMIT 50) c
        WHERE (CAST(:id AS text) IS NULL OR l.key_id = :id)
          AND l.key_id IN (SELECT id FROM api_key WHERE max_concurrent_runs IS NOT NULL)
          AND {free_deployment("l")}) w
    JOIN api_key k ON k.id = w.key_id
    LEFT JOIN (
        SELECT key_id, count(*) AS n FROM run WHERE status = 'running' AND depth = 0 GROUP BY key_id) busy
        ON busy.key_id = k.id
    WHERE w.round <= least(k.max_concurrent_runs - coalesce(busy.n, 0), 50)
      AND (CAST(:id AS text) IS NOT NULL OR {notification_lost("w")})
    LIMIT :limit))
RETURNING run_id, pool
""")


def to_notify(conn: Connection, key_id: str | None = None, *, limit: int = 200) -> list[Next]:
    """Mark eligible runs of limited keys with capacity as notified, and return them.

    With `key_id`, covers that key only, whether or not the last notification was lost.
    """
    rows = conn.execute(TO_NOTIFY, {"id": key_id, "limit": limit})
    return [Next(row.run_id, row.pool) for row in rows]
