"""Counting ended runs and builds, folding the rows of ended runs into sums, and removing old sums.

Each statement that ends runs appends their rows to `ended_run`, so no run ends uncounted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection

from shared.infra.arrays import bigints, uuids
from shared.infra.postgres import database_time
from shared.models import RunStatus
from shared.sql import Conn, statement

MINUTE, HOUR, DAY, EVER = 60, 3_600, 86_400, 0
KEPT = {MINUTE: timedelta(days=2), HOUR: timedelta(days=60), DAY: timedelta(days=730)}
FOLDED_AT_ONCE = 5_000
REMOVED_AT_ONCE = 5_000
MOST_NAMES = 10_000  # users, and nodes, of a deployment that are counted by name on a day

_RECORD_ENDED = statement("figures.record_ended")
_RECORD_BUILD = statement("figures.record_build")
_UNFOLDED = statement("figures.unfolded")
_FOLD = statement("figures.fold")
_REMOVE = statement("figures.remove")
_REMOVE_USAGE = statement("figures.remove_usage")
_REMOVE_DETAIL = statement("figures.remove_detail")


def record(
    conn: Conn,
    run_ids: Sequence[UUID],
    *,
    usage: str | None = None,
    node_usage: str | None = None,
    first_token_ago: float | None = None,
) -> None:
    """Count live runs as interrupted, in the transaction that stops them. Call it while their rows exist."""
    _RECORD_ENDED.count(
        conn,
        run_ids=uuids(run_ids),
        status=str(RunStatus.INTERRUPTED),
        usage=usage,
        node_usage=node_usage,
        first_token_ago=first_token_ago,
    )


def record_build(conn: Connection, status: str, seconds: float) -> None:
    """Count a build in the transaction that ends it."""
    _RECORD_BUILD.count(conn, status=str(status), seconds=seconds)


def fold(conn: Connection, *, limit: int = FOLDED_AT_ONCE) -> int:
    """Fold up to `limit` ended runs into the sums, in the caller's transaction. Returns how many were folded."""
    ids = [row["id"] for row in _UNFOLDED.rows(conn, limit=limit)]
    if ids:
        steps = bigints([MINUTE, HOUR, DAY, EVER])
        _FOLD.count(conn, ids=bigints(ids), steps=steps, most_names=MOST_NAMES)
    return len(ids)


def remove_old(conn: Connection, *, now: datetime | None = None) -> int:
    """Remove some sums older than their retention. Returns the number of removed rows."""
    now = now or database_time()
    removed = sum(
        _REMOVE.count(conn, step=step, before=now - kept, limit=REMOVED_AT_ONCE)
        for step, kept in KEPT.items()
    )
    before = (now - KEPT[DAY]).date()
    return removed + sum(
        table.count(conn, before=before, limit=REMOVED_AT_ONCE) for table in (_REMOVE_USAGE, _REMOVE_DETAIL)
    )
