"""Filters that authorization handlers return, compiled to SQL conditions on a record's metadata.

A filter says which records a caller may see: `{"owner": "ann"}`, `{"tags": {"$contains": "open"}}`, and several of them
under `$or` and `$and`. Anything else is refused before a row is read, because an omitted condition would show every
record.

Equality is two conditions: `->` with `=` compares as the contract requires, lists as a whole and in order. `@>` follows
from it and uses the indexes on metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, TextClause, text

from shared.errors import Denied, NotFound
from shared.infra.json_text import document_holds_nul
from shared.infra.postgres import dumps
from shared.sql import Conn, Statement, statement
from shared.threads import records

Filter = Mapping[str, Any]

MAX_DEPTH = 8  # of $or and $and
MAX_ENTRIES = 100
MAX_BYTES = 64 * 1024
LOCK = "FOR NO KEY UPDATE"
LEAST_PARTS = 2  # of $or and $and
JOINED = {"$or": " OR ", "$and": " AND "}


class BadFilter(Denied):
    """A handler returned a filter that this service cannot apply; `reason` is for the deployment's log."""

    def __init__(self, reason: str) -> None:
        super().__init__(500)
        self.reason = reason


def check(filter: Any) -> None:
    """Raise BadFilter for an invalid filter. None is valid and matches everything."""
    if filter is not None:
        _Condition("metadata", "f").of(filter)


def condition(filter: Filter | None, column: str, *, prefix: str = "f") -> tuple[str, dict[str, Any]]:
    """Return an SQL condition for the records that a filter matches, with `:name` parameters, and their values.

    `column` is a JSONB column as it is written in the statement. Raises BadFilter for an invalid filter.
    """
    if not filter:
        return "true", {}
    compiled = _Condition(column, prefix)
    return compiled.of(filter), compiled.values


def clause(filter: Filter | None, column: str) -> list[TextClause]:
    """Return the condition as a list for a composed statement, empty without a filter."""
    if not filter:
        return []
    sql, values = condition(filter, column)
    return [text(sql).bindparams(**values)]


class _Condition:
    """A filter being compiled to SQL: the values of its parameters, and the number of its entries."""

    def __init__(self, column: str, prefix: str) -> None:
        self.values: dict[str, Any] = {}
        self._column, self._prefix = column, prefix
        self._entries = 0

    def of(self, filter: Any) -> str:
        if isinstance(filter, Mapping):
            written = dumps(filter)
            if len(written) > MAX_BYTES:
                raise BadFilter(f"filter has more than {MAX_BYTES} bytes")
            if document_holds_nul(written):
                raise BadFilter("filter holds NUL characters")
        return self._all(filter, 1)

    def _all(self, filter: Any, depth: int) -> str:
        if not isinstance(filter, Mapping):
            raise BadFilter("filter is not an object")
        if depth > MAX_DEPTH:
            raise BadFilter(f"filter is deeper than {MAX_DEPTH}")
        parts = [part for key, operand in filter.items() for part in self._entry(key, operand, depth)]
        return f"({' AND '.join(parts)})" if parts else "true"

    def _count(self) -> None:
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise BadFilter(f"filter has more than {MAX_ENTRIES} entries")

    def _entry(self, key: str, operand: Any, depth: int) -> Iterator[str]:
        self._count()
        if key in JOINED:
            yield self._joined(key, operand, depth)
        elif key.startswith("$"):
            raise _unsupported(key)
        elif isinstance(operand, Mapping):
            yield from self._operators(key, operand)
        else:
            yield self._equal(key, operand)

    def _joined(self, operator: str, filters: Any, depth: int) -> str:
        if not isinstance(filters, Sequence) or isinstance(filters, str) or len(filters) < LEAST_PARTS:
            raise BadFilter(f"{operator} takes a list of at least {LEAST_PARTS} filters")
        return f"({JOINED[operator].join(self._all(filter, depth + 1) for filter in filters)})"

    def _operators(self, key: str, operand: Mapping[str, Any]) -> Iterator[str]:
        if not operand:
            raise _unsupported("{}")
        for operator, value in operand.items():
            if operator == "$eq":
                yield self._equal(key, value)
            elif operator == "$contains":
                yield self._contains(key, value)
            else:
                raise _unsupported(operator)

    def _equal(self, key: str, operand: Any) -> str:
        implied = f"{self._column} @> {self._bind(dumps({key: operand}), 'jsonb')}"
        return f"({implied} AND {self._stored_value(key)} = {self._bind(dumps(operand), 'jsonb')})"

    def _contains(self, key: str, operand: Any) -> str:
        """Match arrays that contain all members. Members that are arrays or objects must be equal as a whole."""
        members = operand if isinstance(operand, list) else [operand]
        parts = [
            f"{self._column} @> {self._bind(dumps({key: members}), 'jsonb')}",
            f"jsonb_typeof({self._stored_value(key)}) = 'array'",
        ]
        for member in members:
            if isinstance(member, list | dict):
                self._count()  # each is a subquery
                # unnested in a subquery, which yields no rows and no error for a value that is not an array
                stored = f"CASE WHEN {parts[1]} THEN {self._stored_value(key)} ELSE '[]' END"
                member_sql = self._bind(dumps(member), "jsonb")
                parts.append(f"{member_sql} IN (SELECT jsonb_array_elements({stored}))")
        return f"({' AND '.join(parts)})"

    def _stored_value(self, key: str) -> str:
        return f"({self._column} -> {self._bind(key, 'text')})"

    def _bind(self, value: Any, kind: str) -> str:
        name = f"{self._prefix}{len(self.values)}"
        self.values[name] = value
        return f"CAST(:{name} AS {kind})"


def _unsupported(operator: str) -> BadFilter:
    return BadFilter(f"filter uses an operator that is not supported: {operator[:50]}")


@dataclass(frozen=True)
class _Kind:
    """A kind of record that filters hide. A hidden record counts as missing."""

    find: Callable[..., Statement]  # finds the record `id` of a deployment; `visible` and `lock` complete it
    metadata: str  # the column that filters match
    lock: str  # clause that keeps the row unchanged until the transaction ends
    missing: Callable[[UUID], NotFound] = lambda _: NotFound("Not Found")

    def is_visible(
        self,
        conn: Conn,
        deployment_id: UUID,
        id: UUID,
        filter: Filter | None,
        *,
        lock: bool = False,
    ) -> bool:
        """Whether the record exists and the filter matches it. `lock` locks its row."""
        visible, values = condition(filter, self.metadata)
        search = self.find(visible=visible, lock=self.lock if lock else "")
        return search.count(conn, **values, deployment_id=deployment_id, id=id) > 0

    def require(
        self,
        conn: Conn,
        deployment_id: UUID,
        id: UUID,
        filter: Filter | None,
        *,
        lock: bool = False,
        error: NotFound | None = None,
    ) -> None:
        """Raise `error`, or the NotFound of an unknown id, if the record is missing or hidden.

        Without a filter nothing is checked.
        """
        if filter and not self.is_visible(conn, deployment_id, id, filter, lock=lock):
            raise error or self.missing(id)


_THREAD = _Kind(partial(statement, "threads.visible"), "metadata", LOCK, records.missing)
_ASSISTANT = _Kind(partial(statement, "assistants.visible"), "v.metadata", "FOR UPDATE OF a")
_CRON = _Kind(partial(statement, "crons.visible"), "metadata", LOCK)
is_thread_visible, require_thread = _THREAD.is_visible, _THREAD.require
is_assistant_visible, require_assistant = _ASSISTANT.is_visible, _ASSISTANT.require
require_cron = _CRON.require


# Visibility of threads. A hidden thread exists, in contrast to a thread that is not created yet.

NO_METADATA: Mapping[str, Any] = {}


def is_thread_hidden(
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
    visible, values = with_metadata(filter, metadata, "metadata")
    query = statement("threads.visibility", visible=visible, lock=LOCK if lock else "")
    row = query.row(conn, **values, deployment_id=deployment_id, thread_id=thread_id)
    return row is not None and not row["is_visible"]  # NULL: the metadata lacks a key of the filter


def matches(conn: Connection, metadata: Mapping[str, Any], filter: Filter | None) -> bool:
    """Return whether the filter lets through the metadata of a thread that was deleted."""
    if not filter:
        return True
    is_visible, values = condition(filter, "CAST(:metadata AS jsonb)")
    (row,) = statement("threads.is_visible", visible=is_visible).rows(
        conn, **values, metadata=dumps(metadata)
    )
    return bool(row["is_visible"])  # NULL: the metadata lacks a key of the filter


def of_visible_threads(
    filter: Filter | None, table: str, metadata: Mapping[str, Any] = NO_METADATA
) -> tuple[str, dict[str, Any]]:
    """Return SQL, and its values, that is true for rows whose threads are visible and have `metadata`.

    `table` is the alias of the table with these rows.
    """
    if not filter and not metadata:
        return "true", {}
    is_visible, values = with_metadata(filter, metadata, "visible.metadata")
    return f"EXISTS ({_threads_of(table, f'{table}.thread_id')} AND {is_visible})", values


def of_visible_or_deleted_threads(
    filter: Filter | None, metadata: Mapping[str, Any], *, table: str, thread_id: str, last_metadata: str
) -> tuple[str, dict[str, Any]]:
    """Return SQL, and its values, that is true for rows with visible threads, where rows may outlive their threads.

    `thread_id` and `last_metadata` are SQL: the thread's id, and the metadata to use once the thread is deleted.
    """
    if not filter and not metadata:
        return "true", {}
    is_visible, values = with_metadata(filter, metadata, "visible.metadata")
    was_visible, _ = with_metadata(filter, metadata, last_metadata)
    threads = _threads_of(table, thread_id)
    return f"(EXISTS ({threads} AND {is_visible}) OR (NOT EXISTS ({threads}) AND {was_visible}))", values


def _threads_of(table: str, thread_id: str) -> str:
    return (
        f"SELECT FROM thread AS visible WHERE visible.deployment_id = {table}.deployment_id"
        f" AND visible.thread_id = {thread_id}"
    )


def with_metadata(
    filter: Filter | None, metadata: Mapping[str, Any], column: str
) -> tuple[str, dict[str, Any]]:
    """Return SQL, and its values, that is true if the filter lets a record through and the record has `metadata`."""
    sql, values = condition(filter, column)
    if not metadata:
        return sql, values
    return f"{sql} AND {column} @> CAST(:wanted AS jsonb)", {**values, "wanted": dumps(metadata)}
