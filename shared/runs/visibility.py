"""Which threads are not for whom a filter is: those that are there and hidden, unlike those that are not there yet."""

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
    """Whether the thread is there, but not for this filter, or lacks this metadata.

    `lock`: it stays as it is until the transaction ends.
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
    """The same of the metadata of a thread that is gone."""
    if not filter:
        return True
    condition, values = filters.condition(filter, "CAST(:metadata AS jsonb)")
    return bool(conn.execute(text(f"SELECT {condition}"), {**values, "metadata": dumps(metadata)}).scalar())


def of_visible_threads(
    filter: Filter | None, owner: str, metadata: Mapping[str, Any] = NO_METADATA
) -> tuple[str, dict[str, Any]]:
    """SQL that holds for the rows of a table whose threads are for this filter and have this metadata, and its values."""
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
    """The same for rows that outlive their threads: `thread_id` and what was `said` of a thread are SQL."""
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
