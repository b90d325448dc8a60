"""Expiry of threads: their time to live after the last change, and their removal."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared import thread_copies
from shared.runs import mcp_calls
from shared.sql import statement
from shared.threads import checkpoints, records

SWEPT_AT_ONCE = 20  # each may have thousands of checkpoints

_EXPIRED_THREADS = statement("removal.expired_threads")
_TTL_STRATEGY = statement("removal.ttl_strategy")


def set_ttl(conn: Connection, deployment_id: UUID, thread_id: UUID, ttl: Mapping[str, Any]) -> None:
    """Let the thread expire `ttl["ttl"]` minutes after its last change."""
    query = text(
        "UPDATE thread SET ttl_minutes = :minutes, ttl_strategy = :strategy, swept_at = NULL"
        " WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
    )
    values = {"minutes": ttl["ttl"], "strategy": ttl.get("strategy") or "delete"}
    conn.execute(query, {**values, "deployment_id": deployment_id, "thread_id": thread_id})


def ttl_of(conn: Connection, deployment_id: UUID, thread_id: UUID) -> dict[str, Any] | None:
    """Return a thread's time to live as in the API, or None if it never expires."""
    query = text(
        "SELECT ttl_minutes, ttl_strategy, updated_at FROM thread"
        " WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND ttl_minutes IS NOT NULL"
    )
    row = conn.execute(query, {"deployment_id": deployment_id, "thread_id": thread_id}).one_or_none()
    if row is None:
        return None
    return {
        "strategy": row.ttl_strategy,
        "ttl_minutes": row.ttl_minutes,
        "expires_at": _expires_at(row.updated_at, row.ttl_minutes),
    }


def _expires_at(updated_at: datetime, minutes: float) -> datetime:
    try:
        return updated_at + timedelta(minutes=minutes)
    except OverflowError:
        return datetime.max.replace(tzinfo=updated_at.tzinfo)


def sweep(conn: Connection) -> int:
    """Delete some expired threads, or reduce them to their latest checkpoint. Returns how many threads were handled.

    The thread of an MCP task that waits for an answer gets a longer time to live.
    """
    swept = 0
    for key in _EXPIRED_THREADS.rows(conn, limit=SWEPT_AT_ONCE):
        if not thread_copies.lock_if_quiet(conn, **key):
            continue
        row = _TTL_STRATEGY.row(conn, **key)
        if row is None or row["ttl_strategy"] is None:
            continue
        swept += 1
        if not row["is_listed"] and mcp_calls.keep_waiting(conn, **key):
            continue
        if row["ttl_strategy"] == "delete":
            records.remove(conn, **key)
        else:
            checkpoints.keep_latest(conn, key["deployment_id"], [key["thread_id"]])
            query = text(
                "UPDATE thread SET swept_at = clock_timestamp()"
                " WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
            )
            conn.execute(query, key)
    return swept
