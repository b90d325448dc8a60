"""Threads: a conversation's record, its status, and its newest state.

The newest state is stored with the thread when a run ends, so that reading it needs no user code.

What searches and changes threads is put together from expressions over the model, since filters, order and changed
columns are the caller's choice; what always is the same statement is text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    RowMapping,
    Select,
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
from shared.infra.json_text import readable
from shared.infra.postgres import Driver, Row, dumps, query
from shared.models import THREAD, is_live
from shared.threads import ttl

SORTABLE = {
    "thread_id": THREAD.c.thread_id,
    "status": THREAD.c.status,
    "created_at": THREAD.c.created_at,
    "updated_at": THREAD.c.updated_at,
    "state_updated_at": THREAD.c.state_updated_at,
}
COUNTED = 10_000
COLUMNS = (
    THREAD.c.thread_id,
    THREAD.c.created_at,
    THREAD.c.updated_at,
    THREAD.c.state_updated_at,
    THREAD.c.metadata,
    THREAD.c.status,
    THREAD.c.config,
    THREAD.c["values"],
    THREAD.c.interrupts,
    THREAD.c.error,
)


@dataclass(frozen=True, slots=True)
class Made:
    """A thread that was asked for; `is_new` False: it was there."""

    record: Row
    is_new: bool


def record(row: Row) -> dict[str, Any]:
    """A thread as the API shows it; `error` and `interrupts` appear with the first run that ends."""
    shown = {
        "thread_id": row["thread_id"],
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
        "state_updated_at": row["state_updated_at"],
        "metadata": row["metadata"],
        "status": row["status"],
        "config": row["config"],
        "values": row["values"],
    }
    if row["interrupts"] is not None or row["error"] is not None:
        shown["error"] = row["error"]
        shown["interrupts"] = row["interrupts"] or {}
    return shown


def missing(thread_id: UUID) -> NotFound:
    return NotFound(f"Thread with ID {thread_id} not found")


def not_updated() -> NotFound:
    """What changing a thread that is not there raises."""
    return NotFound("Not Found")


def taken(thread_id: UUID) -> Conflict:
    return Conflict(f"Thread with ID {thread_id} already exists")


_RECORD = ", ".join(f'"{column.name}"' for column in COLUMNS)
CREATE = f"""
INSERT INTO thread (deployment_id, thread_id, metadata, ttl_minutes, ttl_strategy)
VALUES (%(deployment_id)s, %(thread_id)s, CAST(%(metadata)s AS jsonb), {ttl.default_minutes("%(deployment_id)s")},
    {ttl.default_strategy("%(deployment_id)s")})
ON CONFLICT DO NOTHING
RETURNING {_RECORD}"""
GET = f"SELECT {_RECORD} FROM thread WHERE deployment_id = %(deployment_id)s AND thread_id = %(thread_id)s"


def create(
    conn: Connection | Driver,
    deployment_id: UUID,
    *,
    thread_id: UUID | None = None,
    metadata: Mapping[str, Any] | None = None,
    if_exists: str = "raise",
) -> Made:
    """A new thread, or the existing one with `do_nothing`; raises Conflict when the id is taken."""
    key = {"deployment_id": deployment_id, "thread_id": thread_id or uuid7()}
    row = query(conn, CREATE, {**key, "metadata": dumps(metadata or {})}).fetchone()
    if row is not None:
        return Made(row, is_new=True)
    if if_exists == "do_nothing":
        return Made(get(conn, **key), is_new=False)
    raise taken(key["thread_id"])


def get(conn: Connection | Driver, deployment_id: UUID, thread_id: UUID) -> Row:
    """One thread's row; raises NotFound."""
    row = query(conn, GET, {"deployment_id": deployment_id, "thread_id": thread_id}).fetchone()
    if row is None:
        raise missing(thread_id)
    return row


def _one(deployment_id: UUID, thread_id: UUID, *columns: Any) -> Select[*tuple[Any, ...]]:
    return select(*columns).where(THREAD.c.deployment_id == deployment_id, THREAD.c.thread_id == thread_id)


def require(conn: Connection | Driver, deployment_id: UUID, thread_id: UUID) -> None:
    """Raise NotFound when there is no such thread."""
    statement = "SELECT 1 FROM thread WHERE deployment_id = %(deployment_id)s AND thread_id = %(thread_id)s"
    key = {"deployment_id": deployment_id, "thread_id": thread_id}
    if query(conn, statement, key).fetchone() is None:
        raise missing(thread_id)


def lock(conn: Connection, deployment_id: UUID, thread_id: UUID) -> bool:
    """Hold the thread until the transaction ends; False when it does not exist.

    NO KEY UPDATE, because who writes a run's checkpoints holds the run and then refers to the thread: a
    full FOR UPDATE would stop it there, and wait for its run in turn.
    """
    query = _one(deployment_id, thread_id, THREAD.c.thread_id).with_for_update(key_share=True)
    return conn.execute(query).one_or_none() is not None


LOCK_ALL = (
    "SELECT 1 AS held FROM thread WHERE (deployment_id, thread_id) IN"
    " (SELECT * FROM unnest(CAST(%(deployment_ids)s AS uuid[]), CAST(%(thread_ids)s AS uuid[])))"
    " ORDER BY deployment_id, thread_id FOR NO KEY UPDATE"
)


def lock_all(driver: Connection | Driver, keys: Sequence[tuple[UUID, UUID]]) -> None:
    """Hold several threads, always in the same order."""
    ids = {"deployment_ids": [key[0] for key in keys], "thread_ids": [key[1] for key in keys]}
    query(driver, LOCK_ALL, ids)


def update(
    conn: Connection, deployment_id: UUID, thread_id: UUID, *, metadata: Mapping[str, Any]
) -> RowMapping:
    """Merge metadata at the top level; raises NotFound."""
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
        raise not_updated()
    return row


def remove(conn: Connection, deployment_id: UUID, thread_id: UUID) -> None:
    """Take a thread away; what belongs to it goes with it."""
    conn.execute(
        text("DELETE FROM thread WHERE deployment_id = :deployment_id AND thread_id = :thread_id"),
        {"deployment_id": deployment_id, "thread_id": thread_id},
    )


def _matching(deployment_id: UUID, filters: Mapping[str, Any]) -> list[Any]:
    where = [THREAD.c.deployment_id == deployment_id]
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
    where += [_holds(path, wanted) for path, wanted in _leaves(filters.get("values") or {})]
    return where


JSON_NULL = text("CAST('null' AS jsonb)")


def _leaves(wanted: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The places and values that a filter of values names; lists and empty objects are compared whole."""
    for key, value in wanted.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _holds(path: tuple[str, ...], wanted: Any) -> ColumnElement[bool]:
    """Whether the values hold this at that place; only what is found there is parsed whole."""
    found: Any = literal_column(readable("thread.values"), JSON())
    for key in path:
        found = found.op("->", return_type=JSON())(literal(key, Text))
    return cast(found, JSONB).op("=", is_comparison=True)(
        literal(wanted, JSONB) if wanted is not None else JSON_NULL
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
) -> list[RowMapping]:
    """Threads that match all filters (`ids`, `metadata`, `status`, `values`, `since`, `until`), and `visible`.

    `since` and `until` bound when they were last updated, `visible` holds conditions.
    """
    column = SORTABLE[sort_by]
    order = column.asc() if sort_order == "asc" else column.desc()
    query = (
        select(*COLUMNS)
        .where(*_matching(deployment_id, filters))
        .order_by(order, THREAD.c.thread_id.desc())
        .limit(limit)
        .offset(offset)
    )
    return list(conn.execute(query).mappings())


def count(conn: Connection, deployment_id: UUID, *, most: int | None = None, **filters: Any) -> int:
    """How many threads match all filters, counted up to `most`."""
    matching = select(THREAD.c.thread_id).where(*_matching(deployment_id, filters)).limit(most)
    return conn.execute(select(func.count()).select_from(matching.subquery())).scalar_one()


def total(
    conn: Connection, deployment_id: UUID, *, found: int, limit: int, offset: int, **filters: Any
) -> int:
    """How many threads a search matches of which this page was `found`.

    Not counted when the page says it. Threads are counted exactly without end where an index alone tells;
    those whose content is looked at, up to COUNTED beyond the page: counting 100,000 takes longer than finding.
    """
    if found < limit and (found or not offset):
        return offset + found
    looks_inside = any(filters.get(name) for name in ("metadata", "values", "visible"))
    return count(conn, deployment_id, most=offset + limit + COUNTED if looks_inside else None, **filters)


_NEXT = f"{readable('t.state')} -> 'next'"
SETTLE = text(
    f"""
UPDATE thread t SET updated_at = now(),
  error = CASE WHEN live.are THEN CAST(:error AS json) ELSE coalesce(t.rest_error, CAST(:error AS json)) END,
  status = CASE
    WHEN live.are THEN 'busy'
    WHEN t.rest_status IS NOT NULL THEN t.rest_status
    WHEN json_typeof({_NEXT}) = 'array' AND json_array_length({_NEXT}) > 0
        THEN 'interrupted'
    ELSE 'idle' END
FROM (SELECT EXISTS (SELECT 1 FROM run r WHERE r.deployment_id = :deployment_id
      AND r.thread_id = :thread_id AND {is_live("r")}) AS are) live
WHERE t.deployment_id = :deployment_id AND t.thread_id = :thread_id"""
)


def settle(
    conn: Connection, deployment_id: UUID, thread_id: UUID, *, error: Mapping[str, Any] | None = None
) -> None:
    """Show again what the runs that are left make of the thread; `error` where they leave none."""
    conn.execute(
        SETTLE,
        {
            "deployment_id": deployment_id,
            "thread_id": thread_id,
            "error": None if error is None else dumps(error),
        },
    )


RESTORE_METADATA = text(
    """
WITH gone AS (
    SELECT deployment_id, thread_id, created_seq, metadata_before FROM run
    WHERE run_id = :run_id AND metadata_before IS NOT NULL
), later AS (
    SELECT o.run_id FROM run o, gone g WHERE o.deployment_id = g.deployment_id
      AND o.thread_id = g.thread_id AND o.created_seq > g.created_seq ORDER BY o.created_seq LIMIT 1
), passed_on AS (
    UPDATE run SET metadata_before = g.metadata_before FROM gone g, later l WHERE run.run_id = l.run_id
)
UPDATE thread t SET
    metadata = (t.metadata - 'graph_id' - 'assistant_id') || (g.metadata_before - 'config'),
    config = coalesce(CAST(g.metadata_before ->> 'config' AS json), t.config)
FROM gone g
WHERE t.deployment_id = g.deployment_id AND t.thread_id = g.thread_id AND NOT EXISTS (SELECT FROM later)"""
)


def restore_metadata(conn: Connection, run_id: UUID) -> None:
    """Undo what a run's creation did to its thread's metadata and config; before the run is deleted.

    Where another run was created after it, that one's undoing restores it.
    """
    conn.execute(RESTORE_METADATA, {"run_id": run_id})
