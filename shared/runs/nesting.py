"""Nested runs: runs that the code of another run creates, and capacity that keeps them from waiting for each other.

The client of the SDK in a graph host names the run that calls in the header HEADER. A run's depth is 0 when no run
called it, else one more than its caller's. A call by a run of depth MAX_DEPTH is refused.

**Why nested runs cannot deadlock.** Whatever a run can wait for without a timeout has capacity for each depth, and runs
of other depths never take it:

- a runner's slots: `RUNYARD_RUNNER_SLOTS` for each depth (`workers/runner/runner.py`);
- limits of deployments and keys, which count runs of the same depth (`deployment_limits.py`, `key_limits.py`);
- graph hosts: one slot for each depth from 1 on beside `RUNYARD_MAX_HOSTS` (`workers/runner/host_pool.py`);
- a graph host's threads: `RUNYARD_HOST_THREADS` for each depth (`workers/graph_host/threads.py`).

So a run of depth n holds what runs of depth n wait for, and waits for runs of depth n + 1 alone. Runs of MAX_DEPTH call
no run: they end and free what others of that depth wait for, so all runs of MAX_DEPTH end. By induction the same holds
for each depth above. The argument needs one runner of the pool, and holds for several runners, pools and deployments: a
depth is the same everywhere. It does not matter whether a run waits for a nested run, polls for it or never looks.

All else that a run needs on the way (streams, requests at once, pending runs) is refused at its limit, so nothing
waits for it. Outside of the argument are calls without HEADER, and a run on the thread of a run that waits for it:
runs of a thread follow each other by contract. Both end with the run's timeout.
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
    """The depth of a run that this run creates; 0 when the caller does not run.

    Raises Conflict for a caller of MAX_DEPTH.
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
    """What waits at one depth of a pool."""

    depth: int
    has_unlimited: bool
    deployments: Sequence[UUID]  # limited ones
    keys: Sequence[str]  # limited ones, of runs in deployments without limit


# Each triple of depth, deployment and key is found by one leap over the index, however many runs wait in it. So the
# runs of a limited deployment or key hide nobody else's.
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
    """The depths at which nested runs of a pool wait, the deepest first."""
    return [WaitingDepth(**row) for row in query(conn, WAITING, {"pool": pool})]
