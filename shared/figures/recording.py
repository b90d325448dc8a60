"""Counting ended runs. Each statement that ends runs appends their rows to `ended_run`, so no run ends uncounted."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from shared.infra.arrays import uuids
from shared.models import RunStatus
from shared.sql import Conn, statement

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
