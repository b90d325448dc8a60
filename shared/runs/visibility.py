"""Visibility of threads under a caller's filter. A hidden thread exists, in contrast to a thread not created yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared.infra.postgres import dumps
from shared.user_code import filters
from shared.user_code.filters import Filter

NO_METADATA: Mapping[str, Any] = {}


def is_hidden(
    conn: Connection,
    deployment_id: UUID,
    thread_id: UUID,
    filter: Filter | None,
    metadata: Mapping[str, Any] = NO_METADATA,
    *,
    lock: bool = False,
) -> bool:
    """Return whether the thread exists, but the filter hides it or it lacks `metadata`.

    `lock`: lock the thread until the transaction ends.
    """
    if not filter and not metadata:
        return False
    condition, values = _condition(filter, metadata, "metadata")
    statement = (
        f"SELECT {condition} FROM thread WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
    )
    key = {"deployment_id": deployment_id, "thread_id": thread_id}
    held = " FOR NO KEY UPDATE" if lock else ""
    row = conn.execute(text(statement + held), {**values, **key}).one_or_none()
    return row is not None and not row[0]


def is_let_through(conn: Connection, metadata: Mapping[str, Any], filter: Filter | None) -> bool:
    """Return whether the filter lets through the metadata of a thread that was deleted."""
    if not filter:
        return True
    condition, values = filters.condition(filter, "CAST(:metadata AS jsonb)")
    return bool(conn.execute(text(f"SELECT {condition}"), {**values, "metadata": dumps(metadata)}).scalar())


def of_visible_threads(
    filter: Filter | None, owner: str, metadata: Mapping[str, Any] = NO_METADATA
) -> tuple[str, dict[str, Any]]:
    """Return SQL, and its values, that is true for rows whose threads are visible and have `metadata`.

    `owner` is the alias of the table with these rows.
    """
    if not filter and not metadata:
        return "true", {}
    condition, values = _condition(filter, metadata, "visible.metadata")
    exists = (
        f"EXISTS (SELECT FROM thread AS visible WHERE visible.deployment_id = {owner}.deployment_id"
        f" AND visible.thread_id = {owner}.thread_id AND {condition})"
    )
    return exists, values


def of_threads_or_what_they_were(
    filter: Filter | None, metadata: Mapping[str, Any], *, owner: str, thread_id: str, said: str
) -> tuple[str, dict[str, Any]]:
    """Return SQL, and its values, that is true for rows with visible threads, where rows may outlive their threads.

    `thread_id` and `said` are SQL expressions: the thread's id, and the metadata to use once the thread is deleted.
    """
    if not filter and not metadata:
        return "true", {}
    condition, values = _condition(filter, metadata, "visible.metadata")
    lasting, _ = _condition(filter, metadata, said)
    own = (
        f"FROM thread AS visible WHERE visible.deployment_id = {owner}.deployment_id"
        f" AND visible.thread_id = {thread_id}"
    )
    return f"(EXISTS (SELECT {own} AND {condition}) OR (NOT EXISTS (SELECT {own}) AND {lasting}))", values


def _condition(filter: Filter | None, metadata: Mapping[str, Any], column: str) -> tuple[str, dict[str, Any]]:
    condition, values = filters.condition(filter, column)
    if not metadata:
        return condition, values
    return f"{condition} AND {column} @> CAST(:wanted AS jsonb)", {**values, "wanted": dumps(metadata)}
