"""Nested runs: runs created by the code of another run, and the separate capacity that prevents deadlocks among them.

The SDK client in a graph host sends the id of the calling run in the header HEADER. A run that no run created has depth
0. A nested run's depth is one more than its caller's. A run of depth MAX_DEPTH cannot create runs.

**Why nested runs cannot deadlock.** Every resource that a run can wait for without a timeout has separate capacity for
each depth, and runs of other depths never use it:

- a runner's slots: `RUNYARD_RUNNER_SLOTS` for each depth (`workers/runner/runner.py`);
- limits of deployments and keys, which count runs of the same depth (`shared/runs/limits.py`);
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
from shared.sql import statement

HEADER = "X-Runyard-Parent-Run"
MAX_DEPTH = 10

DEPTH = "SELECT depth + 1 AS depth FROM run WHERE run_id = %(id)s AND status = 'running'"


def depth_below(conn: Connection | Driver, caller: UUID | None) -> int:
    """Return the depth of a run that the run `caller` creates, or 0 if there is no such run or it is not running.

    Raises Conflict if the caller has depth MAX_DEPTH.
    """
    if caller is None:
        return 0
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


_NESTED = statement("backlog.nested")


def waiting(conn: Driver, pool: str) -> list[WaitingDepth]:
    """Return the depths at which nested runs of a pool wait, deepest first."""
    return [WaitingDepth(**row) for row in _NESTED.rows(conn, pool=pool)]
