"""Operations on all checkpoints of a thread: copying, pruning, and measuring their size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

from shared.errors import Conflict, NotFound
from shared.infra.postgres import Row, dumps
from shared.runs import cancel
from shared.runs.cancel import Displaced
from shared.runs.create import PROTOCOL_MARKS
from shared.sql import statement
from shared.threads import checkpoints, records, state


def copy(conn: Connection, deployment_id: UUID, thread_id: UUID, *, target: UUID | None = None) -> Row:
    """Insert an idle copy of a thread, with its metadata and checkpoints but without its runs. Raises NotFound.

    The copy is an ordinary, listed thread: the task of a protocol that the source belongs to does not go on in it.
    """
    key = {"deployment_id": deployment_id, "thread_id": thread_id}
    query = text(
        "SELECT metadata, config, values, state FROM thread"
        " WHERE deployment_id = :deployment_id AND thread_id = :thread_id FOR SHARE"
    )
    source = conn.execute(query, key).mappings().one_or_none()
    if source is None:
        raise records.missing(thread_id)
    target = target or uuid4()
    metadata = {name: value for name, value in source["metadata"].items() if name not in PROTOCOL_MARKS}
    records.create(conn, deployment_id, thread_id=target, metadata=metadata)
    checkpoints.copy(conn, deployment_id, thread_id, target)
    conn.execute(
        text(
            "UPDATE thread SET config = CAST(:config AS json), values = CAST(:values AS json),"
            " state = CAST(:state AS json) WHERE deployment_id = :deployment_id AND thread_id = :target"
        ),
        {
            "deployment_id": deployment_id,
            "target": target,
            "config": dumps(source["config"]),
            "values": None if source["values"] is None else dumps(source["values"]),
            "state": None if source["state"] is None else dumps(_with_thread_id(source["state"], target)),
        },
    )
    return records.get(conn, deployment_id, target)


def _with_thread_id(record: Mapping[str, Any], thread_id: UUID) -> dict[str, Any]:
    """Return a state record with another thread's id in its checkpoint references."""
    references = {name: _reference(record[name], thread_id) for name in ("checkpoint", "parent_checkpoint")}
    tasks = [{**task, "checkpoint": _reference(task["checkpoint"], thread_id)} for task in record["tasks"]]
    metadata = record["metadata"]
    if metadata and "thread_id" in metadata:
        metadata = {**metadata, "thread_id": str(thread_id)}
    return {**record, **references, "tasks": tasks, "metadata": metadata}


def _reference(checkpoint: Mapping[str, Any] | None, thread_id: UUID) -> dict[str, Any] | None:
    return None if checkpoint is None else {**checkpoint, "thread_id": str(thread_id)}


def prune(
    conn: Connection, deployment_id: UUID, thread_ids: Sequence[UUID], *, strategy: str
) -> tuple[int, list[Displaced]]:
    """Delete threads, or with `keep_latest` all of their checkpoints but the newest.

    Returns the number of threads pruned, and the live runs of the deleted threads. Skips missing threads. `keep_latest`
    also skips threads with live runs.
    """
    pruned, stopped = 0, []
    for thread_id in sorted(set(thread_ids)):
        try:
            if strategy == "delete":
                stopped += cancel.delete_thread(conn, deployment_id, thread_id)
            elif lock_if_quiet(conn, deployment_id, thread_id):
                checkpoints.keep_latest(conn, deployment_id, [thread_id])
            else:
                continue
        except NotFound:
            continue
        pruned += 1
    return pruned, stopped


def lock_if_quiet(conn: Connection, deployment_id: UUID, thread_id: UUID) -> bool:
    """Lock a thread. Returns False if it does not exist or has live runs."""
    try:
        state.require_quiet(conn, deployment_id, thread_id)
    except (NotFound, Conflict):
        return False
    return True


_STORAGE = statement("checkpoints.storage")


def storage(conn: Connection, deployment_id: UUID, thread_id: UUID) -> dict[str, Any]:
    """Return the size in bytes of a thread's checkpoints, channel values and pending writes. Raises NotFound.

    Small channel values are stored inside their checkpoint and count there.
    """
    records.require(conn, deployment_id, thread_id)
    (row,) = _STORAGE.rows(conn, deployment_id=deployment_id, thread_id=thread_id)
    channels = row["by_channel"].values()
    values = {
        "count": sum(channel["versions"] for channel in channels),
        "bytes": sum(channel["bytes"] for channel in channels),
        "by_channel": row["by_channel"],
    }
    return {
        "thread_id": thread_id,
        "total_bytes": row["checkpoints"]["bytes"] + values["bytes"] + row["pending_writes"]["bytes"],
        "checkpoints": row["checkpoints"],
        "channel_values": values,
        "pending_writes": row["pending_writes"],
    }
