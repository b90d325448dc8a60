"""Limits of deployments: claiming runs of deployments with `max_concurrent_runs`.

Deployments without a limit cost nothing extra: ordinary claims exclude the limited deployments by a list that is
usually empty. Runs of limited deployments are claimed here, one deployment at a time. The claim locks the deployment's
row while it counts the running runs, so the count is exact with any number of runners. Keys are served round robin, and
the oldest pending run of each key comes first. A runner that ends a run of a limited deployment claims the next. Runs
of each depth are counted separately (`shared/runs/nesting.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, text

from shared.deployments.limits import move_waiting
from shared.infra.postgres import Driver, query
from shared.runs import claims, key_limits
from shared.runs.claims import Claimed, Stored, Terms
from shared.runs.eligibility import (
    NOTIFIED_AGAIN,
    Next,
    eligible,
    has_waited,
    notification_lost,
)

STRAGGLERS = text("""
SELECT DISTINCT d.id, d.pool FROM waiting_lanes() l JOIN deployment d ON d.id = l.deployment_id AND d.pool <> l.pool
""")


def move_stragglers(conn: Connection) -> int:
    """Move pending runs whose pool is not their deployment's pool. Returns how many.

    Such runs were created or returned to the queue while the deployment moved to another pool.
    """
    return sum(move_waiting(conn, row.id, row.pool) for row in conn.execute(STRAGGLERS).all())


WITH_CAPACITY = """
SELECT d.id FROM deployment d
WHERE d.id IN (SELECT deployment_id FROM run WHERE run_id = ANY(%(ids)s) AND status = 'pending' AND depth = 0)
  AND d.max_concurrent_runs
      > (SELECT count(*) FROM run e WHERE e.deployment_id = d.id AND e.status = 'running' AND e.depth = 0)
"""


def with_capacity(conn: Driver, run_ids: Sequence[UUID]) -> list[UUID]:
    """Return the limited deployments of these pending runs that are below their limit. Takes no locks."""
    return [row["id"] for row in query(conn, WITH_CAPACITY, {"ids": list(run_ids)})]


OVERLOOKED = f"""
SELECT d.id FROM deployment d
WHERE d.max_concurrent_runs
      > (SELECT count(*) FROM run e WHERE e.deployment_id = d.id AND e.status = 'running' AND e.depth = 0)
  AND EXISTS (SELECT FROM run w WHERE w.pool = %(pool)s AND w.deployment_id = d.id AND w.status = 'pending'
      AND w.depth = 0
      AND {has_waited("w")})
"""


def overlooked(conn: Driver, pool: str, *, waited_seconds: float) -> list[UUID]:
    """Return limited deployments below their limit with a run that has waited `waited_seconds`.

    Their notifications may have been lost.
    """
    return [row["id"] for row in query(conn, OVERLOOKED, {"pool": pool, "waited": waited_seconds})]


LOCKED = "SELECT max_concurrent_runs FROM deployment WHERE id = %(id)s FOR NO KEY UPDATE"
RUNNING = """
SELECT count(*) AS n FROM run WHERE deployment_id = %(id)s AND status = 'running' AND depth = %(depth)s
"""


def claim(
    conn: Driver,
    deployment_id: UUID,
    pool: str,
    terms: Terms,
    *,
    most: int,
    served: Sequence[str] = (),
    depth: int = 0,
) -> list[tuple[Claimed, Stored]]:
    """Claim pending runs of one depth of a limited deployment, up to `most`, its limit and the limits of the keys.

    Raises UniqueViolation like `claims.claim`.
    """
    with conn.transaction():
        row = query(conn, LOCKED, {"id": deployment_id}).fetchone()
        if row is None or row["max_concurrent_runs"] is None:
            return []  # deleted, or unlimited meanwhile: an ordinary claim finds its runs
        counted = query(conn, RUNNING, {"id": deployment_id, "depth": depth}).fetchone()
        capacity = row["max_concurrent_runs"] - (counted["n"] if counted else 0)
        if min(capacity, most) <= 0:
            return []
        keys = key_limits.capacities_within(conn, deployment_id, depth=depth)
        claimed = claims.claim_round_robin(
            conn,
            pool,
            terms,
            limit=min(capacity, most),
            served=served,
            depth=depth,
            deployment_id=deployment_id,
            capacities=keys,
        )
    return [
        (dataclasses.replace(run, limited=True, key_limited=run.key_id in keys), stored)
        for run, stored in claimed
    ]


TO_NOTIFY = f"""
UPDATE run SET {NOTIFIED_AGAIN} WHERE run_id IN (
    SELECT w.run_id FROM deployment d
    CROSS JOIN LATERAL (
        SELECT d.max_concurrent_runs - count(*) AS n FROM run e
        WHERE e.deployment_id = d.id AND e.status = 'running' AND e.depth = 0) free
    CROSS JOIN LATERAL (
        SELECT r.run_id, r.notified_at, r.notifications FROM run r
        WHERE r.deployment_id = d.id AND r.pool = d.pool AND r.status = 'pending' AND r.depth = 0
          AND {eligible("r")}
        ORDER BY r.run_id LIMIT greatest(least(free.n, 50), 0)) w
    WHERE d.max_concurrent_runs IS NOT NULL
      AND (d.id = :id OR CAST(:id AS uuid) IS NULL AND {notification_lost("w")})
    LIMIT :limit)
RETURNING run_id, pool
"""


def to_notify(conn: Connection, deployment_id: UUID | None = None, *, limit: int = 200) -> list[Next]:
    """Mark eligible runs of limited deployments with capacity as notified, and return them.

    With `deployment_id`, covers that deployment only, whether or not the last notification was lost.
    """
    rows = conn.execute(text(TO_NOTIFY), {"id": deployment_id, "limit": limit})
    return [Next(row.run_id, row.pool) for row in rows]
