"""Checkpoints in PostgreSQL: fenced writes in bulk, pruning, copying and deleting. Checkpoints are never decoded here.

A host sends checkpoints as frames; `workers/graph_host/checkpoints/storage.py` describes their headers. They are stored
as rows of `checkpoint`, `checkpoint_blob` and `checkpoint_write`. A commit (`shared/runs/finish.py`) stores the frames
of many runs: it locks the runs, and writes only the frames of runs that still belong to their owner.
`shared/threads/checkpoint_reads.py` reads checkpoints for hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import Connection

from shared.errors import NotFound
from shared.infra.arrays import Packed, bigints, blobs, texts, uuids
from shared.infra.json_text import without_nul
from shared.infra.postgres import dumps
from shared.sql import Conn, statement


class ClaimedRun(Protocol):
    """The attributes of a claimed run that a write needs. `shared/runs/claims.py` has the class, and imports this module."""

    @property
    def deployment_id(self) -> UUID: ...
    @property
    def thread_id(self) -> UUID: ...
    @property
    def run_id(self) -> UUID: ...
    @property
    def attempt(self) -> int: ...
    @property
    def owner(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Write:
    """A CHECKPOINT or WRITES frame of a run."""

    deployment_id: UUID
    thread_id: UUID
    run_id: UUID
    attempt: int
    owner: str
    head: Mapping[str, Any]
    blobs: Sequence[bytes]

    @classmethod
    def of(cls, run: ClaimedRun, head: Mapping[str, Any], blobs: Sequence[bytes]) -> Write:
        """Return a frame of a run. Raises ValueError if it is incomplete or names another thread."""
        _check_frame(run.thread_id, head, blobs)
        return cls(run.deployment_id, run.thread_id, run.run_id, run.attempt, run.owner, head, blobs)

    @classmethod
    def of_thread(
        cls,
        deployment_id: UUID,
        thread_id: UUID,
        update_id: UUID,
        head: Mapping[str, Any],
        blobs: Sequence[bytes],
    ) -> Write:
        """Return a frame of an update of the thread's state, without a run.

        Raises ValueError if the frame is incomplete or names another thread.
        """
        _check_frame(thread_id, head, blobs)
        return cls(deployment_id, thread_id, update_id, 0, "", head, blobs)


def _check_frame(thread_id: UUID, head: Mapping[str, Any], blobs: Sequence[bytes]) -> None:
    if head["thread_id"] != str(thread_id):
        raise ValueError("a checkpoint of a foreign thread")
    items = len(head["writes"]) if "task_id" in head else 1 + len(head["new"])
    if len(blobs) != items:
        raise ValueError(f"{len(blobs)} blobs where {items} belong")


# Columns of new rows of `checkpoint`, `checkpoint_blob` and `checkpoint_write`, as commit.store_checkpoints names them.
_C = ("run", "deployment", "thread", "ns", "id", "parent", "type", "data", "blobs", "metadata")
_B = ("run", "deployment", "thread", "ns", "channel", "version", "type", "data")
_W = ("run", "deployment", "thread", "ns", "id", "task", "idx", "channel", "type", "data", "path")
_PACK = {"run": uuids, "deployment": uuids, "thread": uuids, "idx": bigints, "data": blobs}
_STORE = statement("commit.store_checkpoints")


def columns_of_owned(writes: Sequence[Write]) -> dict[str, Any]:
    """Return the frames of runs as parameters of the statement `commit.runs`, with the runs, attempts and owners."""
    runs = {item.run_id: item for item in writes}
    return {
        "writing_runs": uuids(list(runs)),
        "writing_attempts": bigints([item.attempt for item in runs.values()]),
        "writing_owners": texts([item.owner for item in runs.values()]),
        **_rows(writes),
    }


def write_unfenced(conn: Conn, writes: Sequence[Write]) -> None:
    """Store frames that belong to no run. The caller holds the lock of their thread."""
    _STORE.count(conn, run_ids=uuids([item.run_id for item in writes]), **_rows(writes))


def _rows(writes: Sequence[Write]) -> dict[str, Packed]:
    """Return the frames as columns of the three tables. Rows are unique: one statement may not write a row twice."""
    checkpoints: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    blobs: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    pending: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for item in writes:
        if "task_id" in item.head:
            _add_writes(pending, item)
        else:
            _add_checkpoint(checkpoints, blobs, item)
    return {
        **_columns("c", _C, checkpoints.values()),
        **_columns("b", _B, blobs.values()),
        **_columns("w", _W, pending.values()),
    }


def _add_checkpoint(
    checkpoints: dict[tuple[Any, ...], tuple[Any, ...]],
    blobs: dict[tuple[Any, ...], tuple[Any, ...]],
    item: Write,
) -> None:
    head, place = item.head, (item.run_id, item.deployment_id, item.thread_id)
    ns, id = head["checkpoint_ns"], head["checkpoint_id"]
    versions, metadata = without_nul(dumps(head["blobs"])), dumps(head["metadata"])
    parent = head["parent_checkpoint_id"]
    checkpoints[*place, ns, id] = (*place, ns, id, parent, head["type"], item.blobs[0], versions, metadata)
    for (channel, version, type_), data in zip(head["new"], item.blobs[1:], strict=True):
        blobs.setdefault((*place, ns, channel, version), (*place, ns, channel, version, type_, data))


def _add_writes(pending: dict[tuple[Any, ...], tuple[Any, ...]], item: Write) -> None:
    head, place = item.head, (item.run_id, item.deployment_id, item.thread_id)
    ns, id, task = head["checkpoint_ns"], head["checkpoint_id"], head["task_id"]
    for (idx, channel, type_), data in zip(head["writes"], item.blobs, strict=True):
        key = (*place, ns, id, task, idx)
        row = (*key, channel, type_, data, head["task_path"])
        if idx < 0:  # a special write of the graph library: the last one counts, of plain writes the first
            pending[key] = row
        else:
            pending.setdefault(key, row)


def _columns(prefix: str, names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> dict[str, Packed]:
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return {
        f"{prefix}_{name}": _PACK.get(name, texts)(column)
        for name, column in zip(names, columns, strict=True)
    }


_DELETE_THREADS = statement("checkpoints.delete_threads")
_SWEEP = statement("checkpoints.sweep")
_IS_REBUILT_FROM_RUN = statement("checkpoints.is_rebuilt_from_run")
_RELINK = statement("checkpoints.relink")
_DELETE_RUN = statement("checkpoints.delete_run")
_DISOWN_RUN = statement("checkpoints.disown_run")
_DELETE_FOR_RUNS = statement("checkpoints.delete_for_runs")
_KEEP_LATEST = statement("checkpoints.keep_latest")
_COPY = statement("checkpoints.copy")
_EXISTS = statement("checkpoints.exists")


def delete_threads(conn: Connection, deployment_id: UUID, thread_ids: Sequence[UUID]) -> None:
    """Delete all checkpoints of the threads, with their blobs and writes."""
    _DELETE_THREADS.count(conn, deployment_id=deployment_id, thread_ids=uuids(thread_ids))


def delete_run(conn: Connection, deployment_id: UUID, thread_id: UUID, run_id: UUID) -> None:
    """Delete the checkpoints and writes of a run, and blobs without references.

    Checkpoints of later runs that descend from the run's checkpoints get the run's predecessor as parent. If they
    contain a delta channel, whose value is rebuilt from the writes of all ancestors, the run's checkpoints are kept
    without a run id instead.
    """
    key = {"deployment_id": deployment_id, "thread_id": thread_id, "run_id": run_id}
    (row,) = _IS_REBUILT_FROM_RUN.rows(conn, **key)
    if row["is_rebuilt"]:
        disown_run(conn, **key)
        return
    _RELINK.count(conn, **key)
    _DELETE_RUN.count(conn, **key)
    _SWEEP.count(conn, deployment_id=deployment_id, thread_ids=uuids([thread_id]))


def disown_run(conn: Connection, deployment_id: UUID, thread_id: UUID, run_id: UUID) -> None:
    """Clear the run id of a run's checkpoints and writes, to keep them for later runs when the run is deleted."""
    _DISOWN_RUN.count(conn, deployment_id=deployment_id, thread_id=thread_id, run_id=run_id)


def delete_for_runs(
    conn: Connection, deployment_id: UUID, run_names: Sequence[str], *, thread_id: UUID | None
) -> None:
    """Delete checkpoints by the run id in their metadata, which is the run id that user code sees.

    Covers one thread, or all threads of the deployment if `thread_id` is None.
    """
    rows = _DELETE_FOR_RUNS.rows(
        conn, deployment_id=deployment_id, run_names=texts(run_names), thread_id=thread_id
    )
    thread_ids = {row["thread_id"] for row in rows}
    _SWEEP.count(conn, deployment_id=deployment_id, thread_ids=uuids(list(thread_ids)))


def keep_latest(conn: Connection, deployment_id: UUID, thread_ids: Sequence[UUID]) -> None:
    """Delete all but the newest checkpoint of each namespace, except where a delta channel needs the older ones."""
    _KEEP_LATEST.count(conn, deployment_id=deployment_id, thread_ids=uuids(thread_ids))
    _SWEEP.count(conn, deployment_id=deployment_id, thread_ids=uuids(thread_ids))


def copy(conn: Connection, deployment_id: UUID, source: UUID, target: UUID) -> None:
    """Copy every checkpoint of `source` to the existing thread `target`, with the same checkpoint ids."""
    _COPY.count(conn, deployment_id=deployment_id, source=source, target=target)


def require(conn: Connection, deployment_id: UUID, thread_id: UUID, place: Mapping[str, Any]) -> None:
    """Raise NotFound if the thread has no checkpoint at `place`. A place without an id means the newest checkpoint."""
    checkpoint_id = place.get("checkpoint_id")
    if not checkpoint_id:
        return
    address = {"checkpoint_ns": place.get("checkpoint_ns") or "", "checkpoint_id": checkpoint_id}
    if not _EXISTS.count(conn, deployment_id=deployment_id, thread_id=thread_id, **address):
        raise NotFound(f"Checkpoint {checkpoint_id} not found")
