"""The newest state of a thread, and updates of the state that come from no run.

The newest state is stored with the thread when a run ends or an update is stored, so that reading it needs no user
code. While a run executes, the checkpoints are newer than the stored state, and only a graph host can compute the
state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared.errors import Conflict
from shared.infra.json_text import canonical
from shared.infra.postgres import dumps
from shared.sql import statement
from shared.threads import checkpoints, records
from shared.threads.checkpoints import Write

EMPTY: dict[str, Any] = {
    "next": [],
    "tasks": [],
    "metadata": None,
    "created_at": None,
    "checkpoint": None,
    "parent_checkpoint": None,
    "interrupts": [],
    "checkpoint_id": None,
    "parent_checkpoint_id": None,
}


class StaleUpdate(Conflict):
    """The thread got another checkpoint meanwhile."""


@dataclass(frozen=True, slots=True)
class Newest:
    """A thread's stored state. `is_behind`: the thread has a newer checkpoint."""

    record: dict[str, Any]
    metadata: Mapping[str, Any]
    config: Mapping[str, Any]
    checkpoint_id: str | None  # of the newest root checkpoint
    checkpoint_metadata: Mapping[str, Any] | None = None  # of the same checkpoint

    @property
    def is_behind(self) -> bool:
        return self.checkpoint_id is not None and self.checkpoint_id != self.record["checkpoint_id"]

    @property
    def is_finished(self) -> bool:
        """Whether the stored state is current and has no tasks left. Reading the state then needs no graph."""
        return self.checkpoint_id is not None and not self.is_behind and not self.record["tasks"]

    @property
    def graph_id(self) -> str | None:
        graph_id = self.metadata.get("graph_id")
        return graph_id if isinstance(graph_id, str) else None


OPEN_QUESTION = text("SELECT FROM question WHERE question_id = CAST(:id AS uuid) AND closed_at IS NULL")
_MARK_CANCELLED = statement("inbox.mark_cancelled")
_NEWEST = statement("threads.newest_state")
_FORGET = statement("threads.forget_state")
_STORE = statement("threads.store_state")


def newest(conn: Connection, deployment_id: UUID, thread_id: UUID) -> Newest:
    """Return the newest state as the API shows it, or the empty state for a thread without checkpoints.

    Raises NotFound.
    """
    row = _NEWEST.row(conn, deployment_id=deployment_id, thread_id=thread_id)
    if row is None:
        raise records.missing(thread_id)
    values = {} if row["values"] is None or row["state"] is None else row["values"]
    record = {"values": values, **(row["state"] or EMPTY)}
    return Newest(record, row["metadata"], row["config"], row["checkpoint_id"], row["checkpoint_metadata"])


def forget(conn: Connection, deployment_id: UUID, thread_id: UUID) -> None:
    """Clear the stored state of a thread without root checkpoints. The thread keeps its values.

    A thread that has lost its newest root checkpoint becomes idle: an answer to its questions could not resume it.
    Call it after deleting checkpoints.
    """
    _FORGET.count(conn, deployment_id=deployment_id, thread_id=thread_id)


def store_update(
    conn: Connection,
    deployment_id: UUID,
    thread_id: UUID,
    update_id: UUID,
    answer: Mapping[str, Any],
    values: bytes,
    blobs: Sequence[bytes],
    *,
    from_newest: bool,
    cancels: Mapping[str, str] | None = None,
) -> None:
    """Store a graph host's answer to an update: checkpoints and the thread's state, in the caller's transaction.

    Raises NotFound. Raises Conflict if the thread has live runs. Raises StaleUpdate if the update was based on the
    newest checkpoint (`from_newest`) and a newer one exists now.

    `cancels`: the update cancels this question, and the canceller is recorded: see `shared/inbox/answers.py`. Raises
    Conflict if the question is closed: its thread has continued, and the update would end newer tasks.
    """
    require_quiet(conn, deployment_id, thread_id)
    if cancels is not None and conn.execute(OPEN_QUESTION, {"id": cancels["question_id"]}).first() is None:
        raise Conflict("This question is not open any more.")
    writes = list(_writes(deployment_id, thread_id, update_id, answer["written"], blobs))
    parent = next((w.head["parent_checkpoint_id"] for w in writes if "task_id" not in w.head), None)
    if from_newest and parent != newest(conn, deployment_id, thread_id).checkpoint_id:
        raise StaleUpdate(f"Thread {thread_id} was changed by another request. Try again")
    checkpoints.write_unfenced(conn, writes)
    _STORE.count(
        conn,
        deployment_id=deployment_id,
        thread_id=thread_id,
        values=canonical(values),
        state=dumps(answer["state"]),
        interrupts=dumps(answer["interrupts"]),
    )
    if cancels is not None:
        _MARK_CANCELLED.count(conn, **cancels)


def require_quiet(conn: Connection, deployment_id: UUID, thread_id: UUID) -> None:
    """Lock the thread. Raises NotFound. Raises Conflict if the thread has live runs."""
    if not records.lock(conn, deployment_id, thread_id):
        raise records.missing(thread_id)
    query = text(
        "SELECT run_id FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
        " AND is_live(status) ORDER BY created_seq LIMIT 5"
    )
    live = conn.execute(query, {"deployment_id": deployment_id, "thread_id": thread_id}).scalars().all()
    if live:
        raise Conflict(f"Thread {thread_id} has in-flight runs: {', '.join(map(str, live))}")


def _writes(
    deployment_id: UUID,
    thread_id: UUID,
    update_id: UUID,
    written: Sequence[tuple[int, Mapping[str, Any], int]],
    blobs: Sequence[bytes],
) -> Iterator[Write]:
    """Yield the frames of a host's answer. Raises ValueError if one is incomplete or names another thread."""
    start = 0
    for _, head, count in written:
        yield Write.of_thread(deployment_id, thread_id, update_id, head, blobs[start : start + count])
        start += count
