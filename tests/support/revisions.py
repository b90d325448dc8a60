"""Revisions in the state in which a builder leaves them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from shared.infra.postgres import connection


def set_status(revision_id: str, status: str) -> None:
    """Set a revision's status, as a builder does."""
    with connection() as conn:
        conn.execute(text("UPDATE revision SET status = :s WHERE id = :id"), {"s": status, "id": revision_id})


def set_serving(deployment: Any, revision_id: str) -> None:
    set_status(revision_id, "DEPLOYED")
    with connection() as conn:
        conn.execute(
            text("UPDATE deployment SET active_revision_id = :rid WHERE id = :id"),
            {"rid": revision_id, "id": deployment["id"]},
        )
