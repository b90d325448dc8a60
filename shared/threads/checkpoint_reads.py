"""Reading checkpoints for graph hosts: the newest with each claimed run, and answers to their requests.

`workers/graph_host/checkpoints/storage.py` describes requests and answers. A checkpoint is read whole, with its blobs
and writes, and never decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection, Text, cast, func, null, select, true

from shared.infra.arrays import texts, uuids
from shared.infra.postgres import Driver, Row
from shared.models import CHECKPOINT
from shared.sql import statement
from shared.threads import checkpoints

# Size at which a list answer is cut and marked as incomplete, because the size of a frame is limited.
MAX_ANSWER_BYTES = 16 * 1024 * 1024

Key = tuple[UUID, UUID]

# The columns of the database function `checkpoint_parts`.
_PARTS = ("channels", "versions", "types", "blobs", "tasks", "write_channels", "write_types", "writes")

_NEWEST = statement("checkpoints.newest")
_ANCESTORS = statement("checkpoints.ancestors")
_LEFT_BY = statement("checkpoints.left_by")


def newest(conn: Connection | Driver, keys: Sequence[Key]) -> dict[Key, list[bytes]]:
    """Return the newest root checkpoint of each (deployment, thread) that has one, in the format of `answer`."""
    rows = _NEWEST.rows(
        conn,
        deployment_ids=uuids([deployment_id for deployment_id, _ in keys]),
        thread_ids=uuids([thread_id for _, thread_id in keys]),
    )
    answers = {(row["deployment_id"], row["thread_id"]): newest_of(row) for row in rows}
    return {key: parts for key, parts in answers.items() if parts is not None}


def newest_of(row: Row) -> list[bytes] | None:
    """Return the checkpoint in a row of the database function `newest_checkpoint`, in the format of `answer`."""
    if row["checkpoint_id"] is None:
        return None
    return _checkpoint_answer(row)


def _checkpoint_answer(row: Row) -> list[bytes]:
    record, blobs = _record(row)
    return [orjson.dumps({"found": True, **record}), *blobs]


def answer(
    conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], *, thread_id: UUID | None
) -> list[bytes]:
    """Return the parts of the answer to a host's ASK frame.

    The host may access only `thread_id`, or all threads of the deployment if that is None.
    """
    op = _OPERATIONS.get(ask["op"])
    if op is None:
        return [orjson.dumps({"error": f"unknown operation '{ask['op']}'"})]
    named = [ask[key] for key in ("thread_id", "source", "target") if key in ask]
    named += ask.get("thread_ids", ())
    if thread_id is not None and any(name != str(thread_id) for name in named):
        return [orjson.dumps({"error": "a run may reach its own thread's checkpoints only"})]
    return op(conn, deployment_id, ask, thread_id)


def _get_tuple(conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], _: UUID | None) -> list[bytes]:
    if ask.get("left_by"):
        rows = _left_by(conn, deployment_id, ask)
    else:
        rows = _select(conn, deployment_id, {**ask, "before": None, "filter": {}, "limit": 1})
    if not rows:
        return [b'{"found":false}']
    return _checkpoint_answer(rows[0])


def _left_by(conn: Connection, deployment_id: UUID, ask: Mapping[str, Any]) -> Sequence[Row]:
    """Return a checkpoint as the past run `left_by` left it."""
    return _LEFT_BY.rows(
        conn,
        deployment_id=deployment_id,
        thread_id=UUID(ask["thread_id"]),
        checkpoint_ns=ask["checkpoint_ns"],
        checkpoint_id=ask["checkpoint_id"],
        run_id=UUID(ask["left_by"]),
    )


def _list(conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], _: UUID | None) -> list[bytes]:
    limit = int(ask["limit"])
    return _page(_select(conn, deployment_id, {**ask, "limit": limit + 1}), limit)


def _page(rows: Sequence[Any], limit: int) -> list[bytes]:
    """Return the answer for the first rows, up to `limit` rows and MAX_ANSWER_BYTES."""
    records, parts, size = [], [], 0
    for row in rows[:limit]:
        record, blobs = _record(row)
        size += sum(map(len, blobs))
        if records and size > MAX_ANSWER_BYTES:
            break
        records.append(record)
        parts += blobs
    return [orjson.dumps({"items": records, "more": len(rows) > len(records)}), *parts]


def _ancestors(conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], _: UUID | None) -> list[bytes]:
    """Return a checkpoint and its ancestors, nearest first, with the blobs and writes of the requested channels."""
    limit = int(ask["limit"])
    rows = _ANCESTORS.rows(
        conn,
        deployment_id=deployment_id,
        thread_id=UUID(ask["thread_id"]),
        checkpoint_ns=ask["checkpoint_ns"],
        checkpoint_id=ask["checkpoint_id"],
        channels=texts(ask["channels"]),
        limit=limit + 1,
    )
    return _page(rows, limit)


def _select(conn: Connection, deployment_id: UUID, ask: Mapping[str, Any]) -> Sequence[Row]:
    """Return the checkpoints that match the request, newest first."""
    column = CHECKPOINT.c
    conditions = [column.deployment_id == deployment_id, column.thread_id == UUID(ask["thread_id"])]
    if ask.get("checkpoint_ns") is not None:
        conditions.append(column.checkpoint_ns == ask["checkpoint_ns"])
    if ask.get("checkpoint_id") is not None:
        conditions.append(column.checkpoint_id == ask["checkpoint_id"])
    if ask.get("before") is not None:
        conditions.append(column.checkpoint_id < ask["before"])
    if ask["filter"]:
        conditions.append(column.metadata.contains(ask["filter"]))
    newest = select(CHECKPOINT).where(*conditions).order_by(column.checkpoint_id.desc()).limit(ask["limit"])
    c = newest.subquery("c").c
    parts = func.checkpoint_parts(
        c.deployment_id, c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.blobs, null()
    ).table_valued(*_PARTS, name="parts")
    columns = (
        c.thread_id,
        c.checkpoint_ns,
        c.checkpoint_id,
        c.parent_checkpoint_id,
        c.type.label("checkpoint_type"),
        c.data.label("checkpoint_data"),
        cast(c.metadata, Text).label("checkpoint_metadata"),
    )
    statement = select(*columns, *parts.c).join(parts, true()).order_by(c.checkpoint_id.desc())
    return conn.execute(statement).mappings().all()


def _record(row: Row) -> tuple[dict[str, Any], list[bytes]]:
    """Return the document of a checkpoint, and the bytes of its data, blobs and writes."""
    channels, versions, types, blobs, tasks, w_channels, w_types, w_data = (
        row[name] or [] for name in _PARTS
    )
    record = {
        "thread_id": str(row["thread_id"]),
        "checkpoint_ns": row["checkpoint_ns"],
        "checkpoint_id": row["checkpoint_id"],
        "parent_checkpoint_id": row["parent_checkpoint_id"],
        "type": row["checkpoint_type"],
        "metadata": orjson.Fragment(row["checkpoint_metadata"]),
        "blobs": list(zip(channels, versions, types, strict=True)),
        "writes": list(zip(tasks, w_channels, w_types, strict=True)),
    }
    return record, [row["checkpoint_data"], *blobs, *w_data]


def _delete_thread(
    conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], _: UUID | None
) -> list[bytes]:
    checkpoints.delete_threads(conn, deployment_id, [UUID(ask["thread_id"])])
    return [b"{}"]


def _delete_for_runs(
    conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], thread_id: UUID | None
) -> list[bytes]:
    checkpoints.delete_for_runs(conn, deployment_id, ask["run_ids"], thread_id=thread_id)
    return [b"{}"]


def _copy_thread(
    conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], _: UUID | None
) -> list[bytes]:
    checkpoints.copy(conn, deployment_id, UUID(ask["source"]), UUID(ask["target"]))
    return [b"{}"]


def _prune(conn: Connection, deployment_id: UUID, ask: Mapping[str, Any], _: UUID | None) -> list[bytes]:
    threads = [UUID(name) for name in ask["thread_ids"]]
    if ask["strategy"] == "keep_latest":
        checkpoints.keep_latest(conn, deployment_id, threads)
    elif ask["strategy"] == "delete":
        checkpoints.delete_threads(conn, deployment_id, threads)
    else:
        return [orjson.dumps({"error": f"unknown strategy '{ask['strategy']}'"})]
    return [b"{}"]


_OPERATIONS = {
    "get_tuple": _get_tuple,
    "list": _list,
    "ancestors": _ancestors,
    "delete_thread": _delete_thread,
    "delete_for_runs": _delete_for_runs,
    "copy_thread": _copy_thread,
    "prune": _prune,
}
