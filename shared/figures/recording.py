"""Counting ended runs. Each statement that ends runs appends their rows to `ended_run`, so no run ends uncounted."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, text

from shared.models import RunStatus

# The columns of a run that its row is made of.
_COLUMNS = "{0}.key_id, {0}.created_at, {0}.not_before, {0}.started_at, {0}.attempt"
# A run that waits for another attempt gets a new `not_before`. Before its first attempt it waits since its creation.
_WAIT = "started_at - CASE WHEN not_before <= started_at THEN not_before ELSE created_at END"
# A deployment's own authorization may have any number of users. Their runs are counted without a key.
USER_PREFIX = "user:"
# The time of the first token comes from a graph host's clock or from user code. Times outside the run are dropped.
_BETWEEN = "CASE WHEN {ago} BETWEEN 0 AND {total} THEN {total} - {ago} END"
_APPEND = """
INSERT INTO ended_run (deployment_id, key_id, status, created_at, attempts, wait_seconds, duration_seconds,
    first_token_seconds, usage)
SELECT deployment_id, CASE WHEN starts_with(key_id, '{user}') THEN '' ELSE key_id END, {status}, created_at,
    attempt, {wait}, {duration}, {first_token}, {usage}
FROM {source}
"""


def columns(alias: str) -> str:
    """Return the columns that a statement must provide of a run that it ends, besides `deployment_id`."""
    return _COLUMNS.format(alias)


def append(
    source: str, *, status: str = "status", usage: str = "usage", first_token_ago: str = "first_token_ago"
) -> str:
    """Return SQL that appends the rows of the runs in `source`, which must have these columns."""
    return _APPEND.format(
        source=source,
        user=USER_PREFIX,
        status=status,
        wait=_seconds(_WAIT),
        duration=_seconds("now() - started_at"),
        first_token=_BETWEEN.format(total=_seconds("now() - created_at"), ago=first_token_ago),
        usage=usage,
    )


def _seconds(interval: str) -> str:
    return f"date_part('epoch', {interval})"


ENDING = text(
    append(
        "run WHERE run_id = ANY(:run_ids)",
        status=":status",
        usage="CAST(:usage AS jsonb)",
        first_token_ago="CAST(:first_token_ago AS double precision)",
    )
)


def record(
    conn: Connection,
    run_ids: Sequence[UUID],
    *,
    usage: str | None = None,
    first_token_ago: float | None = None,
) -> None:
    """Count live runs as interrupted, in the transaction that stops them. Call it while their rows exist."""
    values = {
        "run_ids": list(run_ids),
        "status": RunStatus.INTERRUPTED,
        "usage": usage,
        "first_token_ago": first_token_ago,
    }
    conn.execute(ENDING, values)
