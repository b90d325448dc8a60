"""Folding rows of ended runs into the sums by time step and by day, and removing old sums."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from shared.figures.histograms import added
from shared.figures.sums import COLUMNS, COUNTS, KINDS, SECONDS, TOKENS, summed, used
from shared.infra import clock
from shared.infra.arrays import uuids
from shared.models import RunStatus
from shared.sql import Conn, statement

MINUTE, HOUR, DAY, EVER = 60, 3_600, 86_400, 0
KEPT = {MINUTE: timedelta(days=2), HOUR: timedelta(days=60), DAY: timedelta(days=730)}
FOLDED_AT_ONCE = 5_000
REMOVED_AT_ONCE = 5_000

_SET = ", ".join(
    [f"{name} = figure.{name} + excluded.{name}" for name in (*COUNTS, *SECONDS)]
    + [f"{name} = {added(f'figure.{name}', f'excluded.{name}')}" for name in KINDS.values()]
)

# One statement: rows are either removed and added, or neither. Two leaders take different rows.
FOLD = text(f"""
WITH taken AS (
    DELETE FROM ended_run WHERE id = ANY(ARRAY(
        SELECT id FROM ended_run ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED))
    RETURNING *
), ended AS (
    SELECT d.organization_id, t.* FROM taken t JOIN deployment d ON d.id = t.deployment_id
), folded AS (
    INSERT INTO figure (organization_id, step_seconds, at, deployment_id, key_id, {", ".join(COLUMNS)})
    {summed("ended", f"ARRAY[{MINUTE}, {HOUR}, {DAY}, {EVER}]")}
    ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (organization_id, step_seconds, at, deployment_id, key_id) DO UPDATE SET {_SET}
), counted AS (
    INSERT INTO daily_usage (organization_id, day, deployment_id, key_id, model, runs, {", ".join(TOKENS)})
    SELECT organization_id, day, deployment_id, key_id, model, sum(runs), {", ".join(f"sum({name})" for name in TOKENS)}
    FROM ({used("ended")}) AS used GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (organization_id, day, deployment_id, key_id, model) DO UPDATE SET
        {", ".join(f"{name} = daily_usage.{name} + excluded.{name}" for name in ("runs", *TOKENS))}
)
SELECT count(*) FROM taken
""")


def fold(conn: Connection, *, limit: int = FOLDED_AT_ONCE) -> int:
    """Fold up to `limit` ended runs into the sums. Returns how many were folded."""
    if not conn.execute(text("SELECT EXISTS (SELECT FROM ended_run)")).scalar_one():
        return 0  # planning FOLD takes longer than most other statements run
    return conn.execute(FOLD, {"limit": limit}).scalar_one()


REMOVE = text("""
DELETE FROM figure WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM figure WHERE step_seconds = :step AND at < :before LIMIT :limit))
""")
REMOVE_USAGE = text("""
DELETE FROM daily_usage WHERE ctid = ANY(ARRAY(SELECT ctid FROM daily_usage WHERE day < :before LIMIT :limit))
""")


def remove_old(conn: Connection, *, now: datetime | None = None) -> int:
    """Remove some sums older than their retention. Returns the number of removed rows."""
    now = now or clock.now()
    removed = 0
    for step, kept in KEPT.items():
        values = {"step": step, "before": now - kept, "limit": REMOVED_AT_ONCE}
        removed += conn.execute(REMOVE, values).rowcount
    values = {"before": (now - KEPT[DAY]).date(), "limit": REMOVED_AT_ONCE}
    return removed + conn.execute(REMOVE_USAGE, values).rowcount


_RECORD_ENDED = statement("figures.record_ended")


def record(
    conn: Conn,
    run_ids: Sequence[UUID],
    *,
    usage: str | None = None,
    first_token_ago: float | None = None,
) -> None:
    """Count live runs as interrupted, in the transaction that stops them. Call it while their rows exist."""
    _RECORD_ENDED.count(
        conn,
        run_ids=uuids(run_ids),
        status=str(RunStatus.INTERRUPTED),
        usage=usage,
        first_token_ago=first_token_ago,
    )
