"""Nested runs: runs created by the code of another run, and the separate capacity that prevents deadlocks among them.

The SDK client in a graph host sends the id of the calling run in the header HEADER. A run that no run created has depth
0. A nested run's depth is one more than its caller's. A run of depth MAX_DEPTH cannot create runs.

**Why nested runs cannot deadlock.** Every resource that a run can wait for without a timeout has separate capacity for
each depth, and runs of other depths never use it:

- a runner's slots: `RUNYARD_RUNNER_SLOTS` for each depth (`workers/runner/runner.py`);
- limits of deployments and keys, which count runs of the same depth (`deployment_limits.py`, `key_limits.py`);
- graph hosts: one slot for each depth from 1 on, in addition to `RUNYARD_MAX_HOSTS` (`workers/runner/host_pool.py`);
- a graph host's threads: `RUNYARD_HOST_THREADS` for each depth (`workers/graph_host/loop.py`).

A run of depth n therefore holds capacity that only runs of depth n wait for, and it waits only for runs of depth n + 1.
Runs of MAX_DEPTH create no runs. They end and free their capacity, so all runs of MAX_DEPTH end. By induction, the runs
of each lower depth end too. The argument needs at least one runner in the pool. It also holds for several runners,
pools and deployments, because a depth has the same meaning everywhere. A run may wait for a nested run, poll for it or
ignore it.

All other limits (streams, concurrent requests, pending runs) refuse the request, so no run waits for them. The argument
does not cover calls without HEADER, nor a run on the thread of a run that waits for it, because runs of a thread are
executed one after the other. In both cases the run's timeout ends the wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from shared.errors import Conflict
from shared.infra.postgres import Driver, query
from shared.runs.eligibility import eligible, free_deployment, unlimited

HEADER = "X-Runyard-Parent-Run"
MAX_DEPTH = 10

DEPTH = "SELECT depth + 1 AS depth FROM run WHERE run_id = %(id)s AND status = 'running'"


def depth_below(conn: Connection | Driver, caller: UUID) -> int:
    """Return the depth of a run that the run `caller` creates, or 0 if `caller` is not running.

    Raises Conflict if the caller has depth MAX_DEPTH.
    """
    row = query(conn, DEPTH, {"id": caller}).fetchone()
    depth: int = 0 if row is None else row["depth"]
    if depth > MAX_DEPTH:
        raise Conflict(
            f"Run {caller} is nested {MAX_DEPTH} deep and cannot create another run ({HEADER}). "
            "Does a graph call itself without end?"
        )
    return depth


@dataclass(frozen=True, slots=True)
class WaitingDepth:
    """A depth of a pool with eligible nested runs, and the limits that apply to them."""

    depth: int
    has_unlimited: bool
    deployments: Sequence[UUID]  # limited deployments
    keys: Sequence[str]  # limited keys of runs in unlimited deployments


# A loose index scan: one index lookup for each triple of depth, deployment and key, however many runs wait in it. A
# long queue of a limited deployment or key therefore does not hide the runs of others.
_LANES = """
    (SELECT l.depth, l.deployment_id, l.key_id FROM run l
     WHERE l.status = 'pending' AND l.depth > 0 AND l.pool = %(pool)s
     ORDER BY l.depth, l.deployment_id, l.key_id LIMIT 1)
    UNION ALL
    SELECT n.depth, n.deployment_id, n.key_id FROM lane l CROSS JOIN LATERAL (
        SELECT m.depth, m.deployment_id, m.key_id FROM run m
        WHERE m.status = 'pending' AND m.depth > 0 AND m.pool = %(pool)s
          AND (m.depth, m.deployment_id, m.key_id) > (l.depth, l.deployment_id, l.key_id)
        ORDER BY m.depth, m.deployment_id, m.key_id LIMIT 1) n
"""
WAITING = f"""
WITH RECURSIVE lane AS ({_LANES})
SELECT w.depth, coalesce(bool_or({unlimited("w")}), false) AS has_unlimited,
    coalesce(array_agg(DISTINCT w.deployment_id) FILTER (WHERE NOT ({free_deployment("w")})), '{{}}') AS deployments,
    coalesce(array_agg(DISTINCT w.key_id)
        FILTER (WHERE {free_deployment("w")} AND NOT ({unlimited("w")})), '{{}}') AS keys
FROM lane w
WHERE EXISTS (
    SELECT FROM run r WHERE r.status = 'pending' AND r.pool = %(pool)s AND r.deployment_id = w.deployment_id
      AND r.key_id = w.key_id AND r.depth = w.depth AND {eligible("r")} OFFSET 0)
GROUP BY w.depth ORDER BY w.depth DESC
"""


def waiting(conn: Driver, pool: str) -> list[WaitingDepth]:
    """Return the depths at which nested runs of a pool wait, deepest first."""
    return [WaitingDepth(**row) for row in query(conn, WAITING, {"pool": pool})]
