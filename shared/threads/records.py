"""Records of threads: metadata, status and newest state.

The newest state is stored with the thread when a run ends, so that reading it needs no user code.

Searches and updates are built from SQLAlchemy expressions, because the caller chooses filters, order and columns. Fixed
statements are SQL text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    RowMapping,
    Text,
    cast,
    func,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy import update as update_table
from sqlalchemy.dialects.postgresql import JSONB
from uuid_utils.compat import uuid7

from shared.errors import Conflict, NotFound
from shared.infra.postgres import Row, dumps, query
from shared.models import THREAD, ThreadStatus
from shared.records import (
    ANYTHING,
    FAILURE,
    ID,
    INTERRUPT,
    OBJECT,
    TIME,
    TIME_OR_NULL,
    Record,
    RecordField,
    listed,
    mapped,
    one_of,
    or_null,
    record,
)
from shared.sql import Conn, pages, statement

SORTABLE = {
    "thread_id": [THREAD.c.thread_id],
    "status": [THREAD.c.status, THREAD.c.updated_at],  # the order of an index
    "created_at": [THREAD.c.created_at],
    "updated_at": [THREAD.c.updated_at],
    "state_updated_at": [THREAD.c.state_updated_at],
}
TTL_STRATEGIES = ("delete", "keep_latest")  # what happens to a thread at the end of its time to live
TTL = record(
    "ThreadTtl",
    strategy=one_of(*TTL_STRATEGIES),
    ttl_minutes={"type": "number", "minimum": 0},
    expires_at=TIME_OR_NULL,
)
AFTER_FIRST_RUN = ("interrupts", "error")  # both are NULL until a run of the thread has ended
RECORD = Record(
    "Thread",
    {
        "thread_id": RecordField(ID),
        "created_at": RecordField(TIME),
        "updated_at": RecordField(TIME),
        "state_updated_at": RecordField(TIME),
        "metadata": RecordField(OBJECT),
        "status": RecordField(one_of(*ThreadStatus)),
        "config": RecordField(OBJECT),
        "values": RecordField(ANYTHING),
        "error": RecordField(or_null(FAILURE), shown=AFTER_FIRST_RUN),
        "interrupts": RecordField(
            mapped(listed(INTERRUPT)), value=lambda row: row["interrupts"] or {}, shown=AFTER_FIRST_RUN
        ),
        "ttl": RecordField(TTL, shown="requested"),
        "title": RecordField({"type": "string"}, shown="requested"),
        "extracted": RecordField(OBJECT, shown="requested"),
    },
)
COLUMNS = tuple(THREAD.c[name] for name in RECORD.columns)


@dataclass(frozen=True, slots=True)
class CreatedThread:
    """A thread that was created, or that existed before (`is_new` is False)."""

    record: Row
    is_new: bool


def missing(thread_id: UUID) -> NotFound:
    return NotFound(f"Thread with ID {thread_id} not found")


def missing_for_update() -> NotFound:
    """Return the error for updating a thread that does not exist."""
    return NotFound("Not Found")


def already_exists(thread_id: UUID) -> Conflict:
    return Conflict(f"Thread with ID {thread_id} already exists")


_RECORD = ", ".join(f'"{name}"' for name in RECORD.columns)
_CREATE = statement("create.thread", columns=_RECORD)
_GET = statement("threads.get", columns=_RECORD)
_LOCKED = statement("threads.locked", columns=_RECORD)
_TITLES = statement("threads.titles")
_SETTLE = statement("threads.settle")
_RESTORE_METADATA = statement("threads.restore_metadata")


def create(
    conn: Conn,
    deployment_id: UUID,
    *,
    thread_id: UUID | None = None,
    metadata: Mapping[str, Any] | None = None,
    if_exists: str = "raise",
) -> CreatedThread:
    """Insert a thread. If the id exists, returns that thread with `do_nothing`, else raises Conflict."""
    key = {"deployment_id": deployment_id, "thread_id": thread_id or uuid7()}
    row = _CREATE.row(conn, **key, metadata=dumps(metadata or {}))
    if row is not None:
        return CreatedThread(row, is_new=True)
    if if_exists == "do_nothing":
        return CreatedThread(get(conn, **key), is_new=False)
    raise already_exists(key["thread_id"])


def get(conn: Conn, deployment_id: UUID, thread_id: UUID) -> Row:
    """Return a thread's row. Raises NotFound."""
    row = _GET.row(conn, deployment_id=deployment_id, thread_id=thread_id)
    if row is None:
        raise missing(thread_id)
    return row


def titles(conn: Conn, deployment_id: UUID, thread_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Return the title of each thread: `metadata.title`, else the text of its first message by a person, else ''."""
    rows = _TITLES.rows(conn, deployment_id=deployment_id, thread_ids=list(thread_ids))
    return {row["thread_id"]: row["title"] for row in rows}


def require(conn: Conn, deployment_id: UUID, thread_id: UUID) -> None:
    """Raise NotFound if the thread does not exist."""
    exists = "SELECT 1 FROM thread WHERE deployment_id = %(deployment_id)s AND thread_id = %(thread_id)s"
    key = {"deployment_id": deployment_id, "thread_id": thread_id}
    if query(conn, exists, key).fetchone() is None:
        raise missing(thread_id)


def lock(conn: Connection, deployment_id: UUID, thread_id: UUID) -> bool:
    """Lock the thread until the transaction ends. Returns False if it does not exist.

    Uses FOR NO KEY UPDATE. A transaction that writes checkpoints locks the run first, then the thread's key for the
    foreign key check. It would deadlock with a full FOR UPDATE on the thread whose holder waits for the run.
    """
    is_thread = (THREAD.c.deployment_id == deployment_id) & (THREAD.c.thread_id == thread_id)
    locked = select(THREAD.c.thread_id).where(is_thread).with_for_update(key_share=True)
    return conn.execute(locked).one_or_none() is not None


def locked(conn: Connection, deployment_id: UUID, thread_id: UUID) -> Row | None:
    """Lock the thread as `lock` does, and return its row. Returns None if it does not exist."""
    return _LOCKED.row(conn, deployment_id=deployment_id, thread_id=thread_id)


def interrupt_list(stored: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the open interrupts of a thread. `stored` is the thread's column, which is grouped by task."""
    return [interrupt for of_task in (stored or {}).values() for interrupt in of_task]


def update(
    conn: Connection, deployment_id: UUID, thread_id: UUID, *, metadata: Mapping[str, Any]
) -> RowMapping:
    """Merge metadata at the top level. Raises NotFound."""
    row = (
        conn.execute(
            update_table(THREAD)
            .where(THREAD.c.deployment_id == deployment_id, THREAD.c.thread_id == thread_id)
            .values(metadata=THREAD.c.metadata.op("||")(metadata), updated_at=func.now())
            .returning(*COLUMNS)
        )
        .mappings()
        .one_or_none()
    )
    if row is None:
        raise missing_for_update()
    return row


def remove(conn: Connection, deployment_id: UUID, thread_id: UUID) -> None:
    """Delete a thread. Its runs, checkpoints and crons are deleted with it."""
    conn.execute(
        text("DELETE FROM thread WHERE deployment_id = :deployment_id AND thread_id = :thread_id"),
        {"deployment_id": deployment_id, "thread_id": thread_id},
    )


def _matching(deployment_id: UUID, filters: Mapping[str, Any]) -> list[Any]:
    where = [THREAD.c.deployment_id == deployment_id, THREAD.c.is_listed]
    if filters.get("ids"):
        where.append(THREAD.c.thread_id.in_(filters["ids"]))
    if filters.get("metadata"):
        where.append(THREAD.c.metadata.contains(filters["metadata"]))
    if filters.get("status"):
        where.append(THREAD.c.status == filters["status"])
    if filters.get("since"):
        where.append(THREAD.c.updated_at >= filters["since"])
    if filters.get("until"):
        where.append(THREAD.c.updated_at < filters["until"])
    where += filters.get("visible") or ()
    where += [_holds(path, expected) for path, expected in _leaves(filters.get("values") or {})]
    return where


JSON_NULL = text("CAST('null' AS jsonb)")


def _leaves(expected: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield `(path, value)` for each leaf of a filter of values. Lists and empty objects are leaves."""
    for key, value in expected.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _holds(path: tuple[str, ...], expected: Any) -> ColumnElement[bool]:
    """Return the condition that the thread's values contain `expected` at `path`.

    Only the value at the path is converted to jsonb, not the thread's whole values.
    """
    stored: Any = literal_column("readable(thread.values)", JSON())
    for key in path:
        stored = stored.op("->", return_type=JSON())(literal(key, Text))
    return cast(stored, JSONB).op("=", is_comparison=True)(
        literal(expected, JSONB) if expected is not None else JSON_NULL
    )


def search(
    conn: Connection,
    deployment_id: UUID,
    *,
    limit: int,
    offset: int,
    sort_by: str = "updated_at",
    sort_order: str = "desc",
    **filters: Any,
) -> tuple[Sequence[RowMapping], int]:
    """Return a page of the threads that match all filters, and the number of matches as `pages` counts them.

    Filters: `ids`, `metadata`, `status`, `values`, `since`, `until` and `visible`. `since` and `until` limit the time of
    the last update. `visible` is a list of SQL conditions.
    """
    order = [column.asc() if sort_order == "asc" else column.desc() for column in SORTABLE[sort_by]]
    matching = _matching(deployment_id, filters)
    found = select(*COLUMNS).where(*matching).order_by(*order, THREAD.c.thread_id.desc())
    counted = select(THREAD.c.thread_id).where(*matching)
    return pages.select_page(conn, found, counted, limit=limit, offset=offset)


def count(conn: Connection, deployment_id: UUID, **filters: Any) -> int:
    """Return the number of threads that match all filters."""
    return pages.count(conn, select(THREAD.c.thread_id).where(*_matching(deployment_id, filters)))


def settle(
    conn: Connection, deployment_id: UUID, thread_id: UUID, *, error: Mapping[str, Any] | None = None
) -> None:
    """Recompute the thread's status and error from its remaining runs. `error` is the default if they left none."""
    _SETTLE.count(
        conn,
        deployment_id=deployment_id,
        thread_id=thread_id,
        error=None if error is None else dumps(error),
    )


def restore_metadata(conn: Connection, run_id: UUID) -> None:
    """Undo the changes that a run's creation made to its thread's metadata and config. Call before deleting the run.

    If a later run exists, this run's saved metadata is moved to the next run, and undoing that run restores it.
    """
    _RESTORE_METADATA.count(conn, run_id=run_id)
