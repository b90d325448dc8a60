"""Operations on all checkpoints of a thread: copying, pruning, and measuring their size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

from shared.errors import NotFound
from shared.infra.postgres import Row, dumps
from shared.runs import cancel
from shared.runs.cancel import Displaced
from shared.sql import statement
from shared.threads import checkpoints, records


def copy(conn: Connection, deployment_id: UUID, thread_id: UUID, *, target: UUID | None = None) -> Row:
    """Insert an idle copy of a thread, with its metadata and checkpoints but without its runs. Raises NotFound."""
    key = {"deployment_id": deployment_id, "thread_id": thread_id}
    source = (
        conn.execute(
            text(
                "SELECT metadata, config, values, state FROM thread"
                " WHERE deployment_id = :deployment_id AND thread_id = :thread_id FOR SHARE"
            ),
            key,
        )
        .mappings()
        .one_or_none()
    )
    if source is None:
        raise records.missing(thread_id)
    target = target or uuid4()
    records.create(conn, deployment_id, thread_id=target, metadata=source["metadata"])
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
            "state": None if source["state"] is None else dumps(_moved(source["state"], target)),
        },
    )
    return records.get(conn, deployment_id, target)


def _moved(state: Mapping[str, Any], thread_id: UUID) -> dict[str, Any]:
    """Return a state record with another thread's id in its checkpoint references."""
    places = {name: _place(state[name], thread_id) for name in ("checkpoint", "parent_checkpoint")}
    tasks = [{**task, "checkpoint": _place(task["checkpoint"], thread_id)} for task in state["tasks"]]
    metadata = state["metadata"]
    if metadata and "thread_id" in metadata:
        metadata = {**metadata, "thread_id": str(thread_id)}
    return {**state, **places, "tasks": tasks, "metadata": metadata}


def _place(place: Mapping[str, Any] | None, thread_id: UUID) -> dict[str, Any] | None:
    return None if place is None else {**place, "thread_id": str(thread_id)}


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
            elif not _keep_latest(conn, deployment_id, thread_id):
                continue
        except NotFound:
            continue
        pruned += 1
    return pruned, stopped


def _keep_latest(conn: Connection, deployment_id: UUID, thread_id: UUID) -> bool:
    if not hold_quiet(conn, deployment_id, thread_id):
        return False
    checkpoints.keep_latest(conn, deployment_id, [thread_id])
    return True


def hold_quiet(conn: Connection, deployment_id: UUID, thread_id: UUID) -> bool:
    """Lock a thread. Returns False if it does not exist or has live runs."""
    if not records.lock(conn, deployment_id, thread_id):
        return False
    live = text(
        "SELECT EXISTS (SELECT FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
        " AND is_live(status))"
    )
    key = {"deployment_id": deployment_id, "thread_id": thread_id}
    return not conn.execute(live, key).scalar_one()


_STORAGE = statement("checkpoints.storage")


def storage(conn: Connection, deployment_id: UUID, thread_id: UUID) -> dict[str, Any]:
    """Return the size in bytes of a thread's checkpoints, channel values and pending writes. Raises NotFound.

    Small channel values are stored inside their checkpoint and count there.
    """
    records.require(conn, deployment_id, thread_id)
    (row,) = _STORAGE.rows(conn, deployment_id=deployment_id, thread_id=thread_id)
    by_channel, of_checkpoints, writes = row["by_channel"], row["checkpoints"], row["pending_writes"]
    values = {
        "count": sum(channel["versions"] for channel in by_channel.values()),
        "bytes": sum(channel["bytes"] for channel in by_channel.values()),
        "by_channel": by_channel,
    }
    return {
        "thread_id": thread_id,
        "total_bytes": of_checkpoints["bytes"] + values["bytes"] + writes["bytes"],
        "checkpoints": of_checkpoints,
        "channel_values": values,
        "pending_writes": writes,
    }
