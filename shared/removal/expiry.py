"""Expiry of threads: their time to live after the last change, and their removal."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared import thread_copies
from shared.models.threads import EXPIRES, EXPIRES_AT
from shared.threads import checkpoints, records

SWEPT_AT_ONCE = 20  # each may have thousands of checkpoints

SET = text(
    "UPDATE thread SET ttl_minutes = :minutes, ttl_strategy = :strategy, swept_at = NULL"
    " WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
)


def set_ttl(conn: Connection, deployment_id: UUID, thread_id: UUID, ttl: Mapping[str, Any]) -> None:
    """Let the thread expire `ttl["ttl"]` minutes after its last change."""
    conn.execute(
        SET,
        {
            "deployment_id": deployment_id,
            "thread_id": thread_id,
            "minutes": ttl["ttl"],
            "strategy": ttl.get("strategy") or "delete",
        },
    )


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
        "expires_at": _end(row.updated_at, row.ttl_minutes),
    }


def _end(updated_at: datetime, minutes: float) -> datetime:
    try:
        return updated_at + timedelta(minutes=minutes)
    except OverflowError:
        return datetime.max.replace(tzinfo=updated_at.tzinfo)


SWEPT = text(
    "UPDATE thread SET swept_at = clock_timestamp()"
    " WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
)

# The condition of the index: threads that have not expired or were already reduced are not scanned.
IS_OVER = f"{EXPIRES} AND {EXPIRES_AT} < now() AT TIME ZONE 'UTC'"

EXPIRED = text(f"""
SELECT deployment_id, thread_id FROM thread AS t
WHERE {IS_OVER}
  AND NOT EXISTS (SELECT FROM run AS r WHERE r.deployment_id = t.deployment_id
                  AND r.thread_id = t.thread_id AND is_live(r.status))
ORDER BY {EXPIRES_AT} LIMIT :limit
""")

# Checked again after locking the thread: a run may have been created and ended before.
STRATEGY = text(
    "SELECT ttl_strategy FROM thread"
    f" WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND {IS_OVER}"
)


def sweep(conn: Connection) -> int:
    """Delete some expired threads, or reduce them to their latest checkpoint. Returns how many."""
    swept = 0
    for row in conn.execute(EXPIRED, {"limit": SWEPT_AT_ONCE}).all():
        key = (row.deployment_id, row.thread_id)
        if not thread_copies.hold_quiet(conn, *key):
            continue
        strategy = conn.execute(STRATEGY, row._asdict()).scalar()
        if strategy is None:
            continue
        if strategy == "delete":
            records.remove(conn, *key)
        else:
            checkpoints.keep_latest(conn, row.deployment_id, [row.thread_id])
            conn.execute(SWEPT, row._asdict())
        swept += 1
    return swept
