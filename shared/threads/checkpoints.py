"""Checkpoints in PostgreSQL: fenced writes in bulk, pruning, copying and deleting. Checkpoints are never decoded here.

A host sends checkpoints as frames (`workers/graph_host/checkpoints/storage.py` describes their headers). They are stored as rows of
`checkpoint`, `checkpoint_blob` and `checkpoint_write`. A commit (`shared/runs/finish.py`) stores the frames of many runs: it
locks the runs, and writes only the frames of runs that still belong to their owner.
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
    """The attributes of a run that a write needs."""

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
    def of(cls, run: ClaimedRun, kind: int, head: Mapping[str, Any], blobs: Sequence[bytes]) -> Write:
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
    refers, metadata = without_nul(dumps(head["blobs"])), dumps(head["metadata"])
    parent = head["parent_checkpoint_id"]
    checkpoints[*place, ns, id] = (*place, ns, id, parent, head["type"], item.blobs[0], refers, metadata)
    for (channel, version, type_), data in zip(head["new"], item.blobs[1:], strict=True):
        blobs.setdefault((*place, ns, channel, version), (*place, ns, channel, version, type_, data))


def _add_writes(pending: dict[tuple[Any, ...], tuple[Any, ...]], item: Write) -> None:
    head, place = item.head, (item.run_id, item.deployment_id, item.thread_id)
    ns, id, task = head["checkpoint_ns"], head["checkpoint_id"], head["task_id"]
    for (idx, channel, type_), data in zip(head["writes"], item.blobs, strict=True):
        key, row = (
            (*place, ns, id, task, idx),
            (*place, ns, id, task, idx, channel, type_, data, head["task_path"]),
        )
        if idx < 0:
            pending[key] = row
        else:
            pending.setdefault(key, row)


def _columns(prefix: str, names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> dict[str, Packed]:
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return {
        f"{prefix}_{name}": _PACK.get(name, texts)(column)
        for name, column in zip(names, columns, strict=True)
    }


_IN_THREADS = "deployment_id = %(deployment)s AND thread_id = ANY(%(threads)s)"
_NO_BLOB_WITHOUT_CHECKPOINT = f"""
DELETE FROM checkpoint_blob AS blob WHERE {_IN_THREADS} AND NOT EXISTS (
    SELECT 1 FROM checkpoint AS c
    WHERE c.deployment_id = blob.deployment_id AND c.thread_id = blob.thread_id
        AND c.checkpoint_ns = blob.checkpoint_ns AND readable(c.blobs) ->> blob.channel = blob.version
)"""
_NO_WRITE_WITHOUT_CHECKPOINT = f"""
DELETE FROM checkpoint_write AS own WHERE {_IN_THREADS} AND NOT EXISTS (
    SELECT 1 FROM checkpoint AS c
    WHERE c.deployment_id = own.deployment_id AND c.thread_id = own.thread_id
        AND c.checkpoint_ns = own.checkpoint_ns AND c.checkpoint_id = own.checkpoint_id
)"""


def _sweep(conn: Connection, parameters: Mapping[str, Any]) -> None:
    """Delete the blobs and writes that no checkpoint of the threads refers to."""
    conn.exec_driver_sql(_NO_WRITE_WITHOUT_CHECKPOINT, dict(parameters))
    conn.exec_driver_sql(_NO_BLOB_WITHOUT_CHECKPOINT, dict(parameters))


def delete_threads(conn: Connection, deployment_id: UUID, thread_ids: Sequence[UUID]) -> None:
    """Delete all checkpoints of the threads, with their blobs and writes."""
    parameters = {"deployment": deployment_id, "threads": list(thread_ids)}
    for table in ("checkpoint", "checkpoint_blob", "checkpoint_write"):
        conn.exec_driver_sql(f"DELETE FROM {table} WHERE {_IN_THREADS}", parameters)


_AFTER_RUN = """
FROM checkpoint AS own JOIN checkpoint AS later USING (deployment_id, thread_id, checkpoint_ns)
WHERE deployment_id = %(deployment)s AND thread_id = ANY(%(threads)s) AND own.run_id = %(run)s
    AND later.parent_checkpoint_id = own.checkpoint_id AND later.run_id IS DISTINCT FROM own.run_id"""
_IS_REBUILT_FROM_RUN = f"""
SELECT EXISTS (SELECT 1 {_AFTER_RUN} AND later.metadata -> 'counters_since_delta_snapshot' IS NOT NULL)"""
_RELINK = f"""
WITH RECURSIVE line AS (
    SELECT checkpoint_ns, later.checkpoint_id, own.parent_checkpoint_id AS ancestor {_AFTER_RUN}
  UNION ALL
    SELECT checkpoint_ns, line.checkpoint_id, own.parent_checkpoint_id
    FROM line JOIN checkpoint AS own USING (checkpoint_ns)
    WHERE {_IN_THREADS} AND own.checkpoint_id = line.ancestor AND own.run_id = %(run)s
)
UPDATE checkpoint AS later SET parent_checkpoint_id = line.ancestor FROM line
WHERE {_IN_THREADS} AND later.checkpoint_ns = line.checkpoint_ns
    AND later.checkpoint_id = line.checkpoint_id AND NOT EXISTS (
        SELECT 1 FROM checkpoint AS own
        WHERE own.deployment_id = later.deployment_id AND own.thread_id = later.thread_id
            AND own.checkpoint_ns = later.checkpoint_ns AND own.checkpoint_id = line.ancestor
            AND own.run_id = %(run)s
    )"""


def delete_run(conn: Connection, deployment_id: UUID, thread_id: UUID, run_id: UUID) -> None:
    """Delete the checkpoints and writes of a run, and blobs without references.

    Checkpoints of later runs that descend from the run's checkpoints get the run's predecessor as parent. If they
    contain a delta channel, whose value is rebuilt from the writes of all ancestors, the run's checkpoints are kept
    without a run id instead.
    """
    parameters = {"deployment": deployment_id, "threads": [thread_id], "run": run_id}
    if conn.exec_driver_sql(_IS_REBUILT_FROM_RUN, parameters).scalar_one():
        disown_run(conn, deployment_id, thread_id, run_id)
        return
    conn.exec_driver_sql(_RELINK, parameters)
    for table in ("checkpoint", "checkpoint_write"):
        conn.exec_driver_sql(f"DELETE FROM {table} WHERE {_IN_THREADS} AND run_id = %(run)s", parameters)
    _sweep(conn, parameters)


def disown_run(conn: Connection, deployment_id: UUID, thread_id: UUID, run_id: UUID) -> None:
    """Clear the run id of a run's checkpoints and writes, to keep them for later runs when the run is deleted."""
    parameters = {"deployment": deployment_id, "threads": [thread_id], "run": run_id}
    for table in ("checkpoint", "checkpoint_write"):
        statement = f"UPDATE {table} SET run_id = NULL WHERE {_IN_THREADS} AND run_id = %(run)s"
        conn.exec_driver_sql(statement, parameters)


def delete_for_runs(
    conn: Connection, deployment_id: UUID, run_names: Sequence[str], *, thread_id: UUID | None
) -> None:
    """Delete checkpoints by the run id in their metadata, which is the run id that user code sees.

    Covers one thread, or all threads of the deployment if `thread_id` is None.
    """
    parameters: dict[str, Any] = {"deployment": deployment_id, "runs": list(run_names), "thread": thread_id}
    own = "" if thread_id is None else " AND thread_id = %(thread)s"
    touched = conn.exec_driver_sql(
        "DELETE FROM checkpoint WHERE deployment_id = %(deployment)s"
        f" AND metadata ->> 'run_id' = ANY(%(runs)s){own} RETURNING thread_id",
        parameters,
    )
    _sweep(conn, {"deployment": deployment_id, "threads": list(set(touched.scalars()))})


def keep_latest(conn: Connection, deployment_id: UUID, thread_ids: Sequence[UUID]) -> None:
    """Delete all but the newest checkpoint of each namespace.

    A namespace whose newest checkpoint contains a delta channel keeps all checkpoints: the channel's value is rebuilt
    from the writes of its ancestors.
    """
    parameters = {"deployment": deployment_id, "threads": list(thread_ids)}
    conn.exec_driver_sql(
        f"""
DELETE FROM checkpoint AS old USING (
    SELECT DISTINCT ON (thread_id, checkpoint_ns) * FROM checkpoint WHERE {_IN_THREADS}
    ORDER BY thread_id, checkpoint_ns, checkpoint_id DESC
) AS kept
WHERE old.deployment_id = kept.deployment_id AND old.thread_id = kept.thread_id
    AND old.checkpoint_ns = kept.checkpoint_ns AND old.checkpoint_id < kept.checkpoint_id
    AND kept.metadata -> 'counters_since_delta_snapshot' IS NULL""",
        parameters,
    )
    _sweep(conn, parameters)


def copy(conn: Connection, deployment_id: UUID, source: UUID, target: UUID) -> None:
    """Copy every checkpoint of `source` to the existing thread `target`, with the same checkpoint ids.

    Replaces the thread id in the metadata, because the API shows the metadata and filters by it.
    """
    renamed = "jsonb_set(metadata, '{thread_id}', to_jsonb(CAST(%(target)s AS text)), false)"
    parameters = {"deployment": deployment_id, "source": source, "target": target}
    for table, columns in {
        "checkpoint": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, type, data, blobs, metadata",
        "checkpoint_blob": "checkpoint_ns, channel, version, type, data",
        "checkpoint_write": (
            "checkpoint_ns, checkpoint_id, task_id, idx, run_id, channel, type, data, task_path"
        ),
    }.items():
        conn.exec_driver_sql(
            f"INSERT INTO {table} (deployment_id, thread_id, {columns})"
            f" SELECT deployment_id, %(target)s, {columns.replace('metadata', renamed)} FROM {table}"
            " WHERE deployment_id = %(deployment)s AND thread_id = %(source)s ON CONFLICT DO NOTHING",
            parameters,
        )


def require(conn: Connection, deployment_id: UUID, thread_id: UUID, place: Mapping[str, Any]) -> None:
    """Raise NotFound if the thread has no checkpoint at `place`. A place without an id means the newest checkpoint."""
    checkpoint_id = place.get("checkpoint_id")
    if not checkpoint_id:
        return
    statement = """
SELECT EXISTS (SELECT FROM checkpoint WHERE deployment_id = %(deployment)s AND thread_id = %(thread)s
               AND checkpoint_ns = %(ns)s AND checkpoint_id = %(id)s)"""
    parameters = {
        "deployment": deployment_id,
        "thread": thread_id,
        "ns": place.get("checkpoint_ns") or "",
        "id": checkpoint_id,
    }
    if not conn.exec_driver_sql(statement, parameters).scalar():
        raise NotFound(f"Checkpoint {checkpoint_id} not found")
