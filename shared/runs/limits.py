"""Limits on concurrent runs: claiming runs of deployments and API keys with `max_concurrent_runs`.

Deployments and keys without a limit cost nothing extra: ordinary claims exclude the limited ones by lists that are
usually empty, and runners check every few seconds whether any limited key exists. Runs under a limit are claimed here,
one deployment or key at a time. The claim locks its row while it counts the running runs, so the count is exact with
any number of runners. A runner that ends a run under a limit claims the next.

Runs of a limited deployment are claimed by deployment, round robin between keys and within the limits of these keys. The
oldest pending run of each key comes first. The limit of a key counts runs of all deployments; runs of crons belong to no
key. Runs of each depth are counted separately (`shared/runs/nesting.py`).

The bench of a replay (`shared/replays/benches.py`) is a limited deployment. Its runs have the lowest priority: they are
claimed only while no other run of the pool waits that could start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from uuid import UUID

from sqlalchemy import Connection, text

from shared.infra.arrays import texts, uuids
from shared.infra.postgres import Driver, query
from shared.runs import claims
from shared.runs.backlog import NextRun
from shared.runs.claims import Claimed, Stored, Terms
from shared.sql import statement

LimitedQueue = UUID | str  # the waiting runs of a limited deployment, or of a limited key

_LOCK_DEPLOYMENT = (
    "SELECT max_concurrent_runs, replay_of IS NOT NULL AS is_bench FROM deployment WHERE id = %(id)s"
    " FOR NO KEY UPDATE"
)
_LOCK_KEY = "SELECT max_concurrent_runs FROM api_key WHERE id = %(id)s FOR NO KEY UPDATE"
_COUNT_RUNNING = (
    "SELECT count(*) AS n FROM run WHERE deployment_id = %(id)s AND status = 'running' AND depth = %(depth)s"
)
_WITH_CAPACITY = statement("limits.with_capacity")
_OVERLOOKED = statement("limits.overlooked")
_ORDINARY_RUN_WAITS = statement("limits.ordinary_run_waits")
_LOCK_KEYS_WITHIN = statement("limits.lock_keys_within")
_NOTIFY_DEPLOYMENTS = statement("limits.notify_deployments")
_NOTIFY_KEYS = statement("limits.notify_keys")


def any_key_is_limited(conn: Connection) -> bool:
    """Return whether any key has a limit."""
    row = conn.execute(text("SELECT EXISTS (SELECT FROM limited_key)"))
    return bool(row.scalar_one())


def with_capacity(conn: Driver, run_ids: Sequence[UUID]) -> list[LimitedQueue]:
    """Return the limited deployments and keys of these pending runs that are below their limit. Takes no locks."""
    rows = _WITH_CAPACITY.rows(conn, run_ids=uuids(run_ids))
    return [row["deployment_id"] or row["key_id"] for row in rows]


def overlooked(conn: Driver, pool: str, *, waited_seconds: float) -> list[LimitedQueue]:
    """Return limited deployments and keys below their limit with a run that has waited `waited_seconds`.

    Their notifications may have been lost.
    """
    rows = _OVERLOOKED.rows(conn, pool=pool, waited_seconds=waited_seconds)
    return [row["deployment_id"] or row["key_id"] for row in rows]


def claim_of_deployment(
    conn: Driver,
    deployment_id: UUID,
    pool: str,
    terms: Terms,
    *,
    most: int,
    replay_slots: Callable[[int], int] = lambda most: most,
    served: Sequence[str] = (),
    depth: int = 0,
) -> list[tuple[Claimed, Stored]]:
    """Claim pending runs of one depth of a limited deployment, up to `most`, its limit and the limits of the keys.

    Claims runs of a replay only while no other run of the pool waits that could start, as many as
    `replay_slots` allows of a number of them. Raises UniqueViolation like `claims.claim`.
    """
    with conn.transaction():
        deployment = query(conn, _LOCK_DEPLOYMENT, {"id": deployment_id}).fetchone()
        if deployment is None or deployment["max_concurrent_runs"] is None:
            return []  # deleted, or unlimited meanwhile: an ordinary claim finds its runs
        limit, is_bench = deployment["max_concurrent_runs"], deployment["is_bench"]
        if is_bench and _ordinary_run_waits(conn, pool):
            return []
        row = query(conn, _COUNT_RUNNING, {"id": deployment_id, "depth": depth}).fetchone()
        capacity = min(limit - (row["n"] if row else 0), most)
        if is_bench:
            capacity = replay_slots(capacity)
        if capacity <= 0:
            return []
        key_capacities = _lock_keys_within(conn, deployment_id, depth)
        claimed = claims.claim_round_robin(
            conn,
            pool,
            terms,
            limit=capacity,
            served=served,
            depth=depth,
            deployment_id=deployment_id,
            capacities=key_capacities,
        )
    return [
        (
            dataclasses.replace(
                run, limited=True, is_replay=is_bench, key_limited=run.key_id in key_capacities
            ),
            stored,
        )
        for run, stored in claimed
    ]


def claim_of_key(
    conn: Driver, key_id: str, pool: str, terms: Terms, *, most: int, depth: int = 0
) -> list[tuple[Claimed, Stored]]:
    """Claim the oldest pending runs of one depth of a limited key, up to `most` and its limit.

    Raises UniqueViolation like `claims.claim`.
    """
    with conn.transaction():
        key = query(conn, _LOCK_KEY, {"id": key_id}).fetchone()
        limit = None if key is None else key["max_concurrent_runs"]
        if limit is None:
            return []  # deleted, or unlimited meanwhile: an ordinary claim finds its runs
        capacity = min(limit - _running_by_key(conn, [key_id], depth).get(key_id, 0), most)
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


def _ordinary_run_waits(conn: Driver, pool: str) -> bool:
    (row,) = _ORDINARY_RUN_WAITS.rows(conn, pool=pool)
    return row["waits"]


def _lock_keys_within(conn: Driver, deployment_id: UUID, depth: int) -> dict[str, int]:
    """Lock the limited keys with pending runs in a deployment. Returns how many runs of this depth each may start."""
    rows = _LOCK_KEYS_WITHIN.rows(conn, deployment_id=deployment_id, depth=depth)
    limits = {row["id"]: row["max_concurrent_runs"] for row in rows}
    running = _running_by_key(conn, list(limits), depth)
    return {id: max(limit - running.get(id, 0), 0) for id, limit in limits.items()}


def _running_by_key(conn: Driver, key_ids: Sequence[str], depth: int) -> dict[str, int]:
    if not key_ids:
        return {}
    counts = (
        "SELECT key_id, count(*) AS n FROM run WHERE status = 'running' AND key_id = ANY(%(ids)s)"
        " AND depth = %(depth)s GROUP BY key_id"
    )
    rows = query(conn, counts, {"ids": texts(key_ids), "depth": depth})
    return {row["key_id"]: row["n"] for row in rows}


def mark_notified(conn: Connection, of: LimitedQueue | None = None, *, limit: int = 200) -> list[NextRun]:
    """Mark eligible runs of limited deployments and keys with capacity as notified, and return them.

    `of` names one deployment or key. Its runs are returned whether or not the last notification was lost.
    """
    rows = []
    if not isinstance(of, str):
        rows += _NOTIFY_DEPLOYMENTS.rows(conn, deployment_id=of, limit=limit)
    if not isinstance(of, UUID):
        rows += _NOTIFY_KEYS.rows(conn, key_id=of, limit=limit)
    return [NextRun(row["run_id"], row["pool"]) for row in rows]
