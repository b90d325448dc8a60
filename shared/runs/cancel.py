"""Cancelling, displacing and deleting runs.

A pending run ends in place. For a running run, the request is written into the row, and the owner is notified after the
commit (`shared/runs/signals.py`). Threads are locked before their runs, here as everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from shared.errors import NotFound
from shared.eventlog.events import RESERVED
from shared.figures import folding
from shared.infra.arrays import texts
from shared.infra.postgres import Row
from shared.models import LIVE_RUN_STATUSES, RunStatus
from shared.runs import webhooks
from shared.runs.end_event import ROLLBACK, cancel_error
from shared.sql import statement
from shared.threads import checkpoints, records, state
from shared.user_code import filters
from shared.user_code.filters import Filter

_LOCK_LIVE = statement("runs.lock_live")
_LOCK = statement("runs.lock")
_REQUEST_CANCEL = statement("runs.request_cancel")
_INTERRUPT_PENDING = statement("runs.interrupt_pending")


@dataclass(frozen=True, slots=True)
class Displaced:
    """A run that was ended in place (`owner` is None) or whose owner must be notified.

    `is_gone`: the row was deleted, so no owner will end the run's event log.
    """

    run_id: UUID
    owner: str | None
    action: str
    attempt: int
    seq_reserved: int
    reason: str | None = None
    is_gone: bool = False

    @property
    def is_over(self) -> bool:
        return self.owner is None or self.is_gone


def live_runs(conn: Connection, deployment_id: UUID, thread_id: UUID) -> Sequence[Row]:
    """Return a thread's live runs, oldest first. Locks them until the transaction ends."""
    return _LOCK_LIVE.rows(conn, deployment_id=deployment_id, thread_id=thread_id)


def cancel_run(
    conn: Connection,
    deployment_id: UUID,
    thread_id: UUID,
    run_id: UUID,
    *,
    action: str = "interrupt",
    reason: str | None = None,
) -> Displaced:
    """Cancel a run. A pending run ends in place, a running run when its owner sees the request.

    Raises NotFound if the run does not exist or has ended.
    """
    records.lock(conn, deployment_id, thread_id)
    live = [row for row in live_runs(conn, deployment_id, thread_id) if row["run_id"] == run_id]
    if not live:
        raise NotFound(_nothing_to_cancel(conn, deployment_id, thread_id, run_id))
    stopped = stop(conn, live[0], action, reason)
    if stopped.owner is None:
        records.settle(conn, deployment_id, thread_id)
    return stopped


def _nothing_to_cancel(conn: Connection, deployment_id: UUID, thread_id: UUID, run_id: UUID) -> str:
    query = text(
        "SELECT 1 FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND run_id = :run_id"
    )
    key = {"deployment_id": deployment_id, "thread_id": thread_id, "run_id": run_id}
    if conn.execute(query, key).first() is None:
        return "No runs found to cancel."
    return "No matching runs to cancel. They may have finished already."


def cancel_runs(
    conn: Connection,
    deployment_id: UUID,
    thread_id: UUID,
    run_ids: Collection[UUID],
    *,
    statuses: Collection[RunStatus] = LIVE_RUN_STATUSES,
    action: str = "interrupt",
    reason: str | None = None,
) -> list[Displaced]:
    """Cancel the runs of a thread that are among `run_ids` and in one of these statuses. Ignores the others."""
    records.lock(conn, deployment_id, thread_id)
    matching = [
        row
        for row in live_runs(conn, deployment_id, thread_id)
        if row["run_id"] in run_ids and row["status"] in statuses
    ]
    stopped = [stop(conn, row, action, reason) for row in matching]
    if any(run.owner is None for run in stopped):
        records.settle(conn, deployment_id, thread_id)
    return stopped


def live_by_thread(
    conn: Connection, deployment_id: UUID, statuses: Collection[RunStatus], filter: Filter | None = None
) -> dict[UUID, list[UUID]]:
    """Return the ids of a deployment's live runs in these statuses, by thread id. Takes no locks.

    Covers only threads that the filter lets through.
    """
    visible, values = filters.of_visible_threads(filter, "run")
    rows = statement("runs.live", visible=visible).rows(
        conn, **values, deployment_id=deployment_id, statuses=texts([str(status) for status in statuses])
    )
    by_thread: dict[UUID, list[UUID]] = {}
    for row in rows:
        by_thread.setdefault(row["thread_id"], []).append(row["run_id"])
    return by_thread


def stop(conn: Connection, row: Row, action: str, reason: str | None) -> Displaced:
    """End a live run: a pending run in place, a running run by a request to its owner."""
    if row["status"] == RunStatus.RUNNING:
        _REQUEST_CANCEL.count(conn, run_id=row["run_id"], action=action, reason=reason)
        return Displaced(row["run_id"], row["owner"], action, row["attempt"], row["seq_reserved"], reason)
    folding.record(conn, [row["run_id"]])
    if row["temporary"]:
        status = ROLLBACK if action == ROLLBACK else RunStatus.INTERRUPTED
        _record_webhook(conn, row, status, cancel_error(action, reason))
        records.remove(conn, row["deployment_id"], row["thread_id"])
    elif action == ROLLBACK:
        _record_webhook(conn, row, ROLLBACK, cancel_error(action, reason))
        _remove(conn, row)
    else:
        _INTERRUPT_PENDING.count(conn, run_id=row["run_id"], reason=reason, reserved=RESERVED)
        if row["webhook"] is not None:
            webhooks.record(conn, [row["run_id"]], error=cancel_error(action, reason))
    return Displaced(row["run_id"], None, action, row["attempt"], row["seq_reserved"], reason)


def _record_webhook(conn: Connection, row: Row, status: str, error: dict[str, str]) -> None:
    """Insert the webhook delivery of a live run that is about to be deleted, if it has a webhook."""
    if row["webhook"] is not None and row["status"] in LIVE_RUN_STATUSES:
        webhooks.record(conn, [row["run_id"]], status=status, error=error)


def _remove(conn: Connection, row: Row) -> None:
    """Delete a run and the checkpoints it has written. For a live run, also restore the thread's metadata.

    Keeps the checkpoints of an ended run while other runs of the thread are live: one of them may have started from
    these checkpoints.
    """
    key = row["deployment_id"], row["thread_id"], row["run_id"]
    if row["status"] in LIVE_RUN_STATUSES:
        records.restore_metadata(conn, row["run_id"])
    conn.execute(text("DELETE FROM run WHERE run_id = :run_id"), {"run_id": row["run_id"]})
    if row["attempt"] and row["status"] not in LIVE_RUN_STATUSES and live_runs(conn, *key[:2]):
        checkpoints.disown_run(conn, *key)
    elif row["attempt"]:
        checkpoints.delete_run(conn, *key)


def delete_run(conn: Connection, deployment_id: UUID, thread_id: UUID, run_id: UUID) -> Displaced | None:
    """Delete a run with its checkpoints. Returns the run if it was live, else None. Raises NotFound.

    The thread keeps its values. The run's changes of the thread's metadata are undone only if the run was live.
    """
    records.lock(conn, deployment_id, thread_id)
    row = _LOCK.row(conn, deployment_id=deployment_id, thread_id=thread_id, run_id=run_id)
    if row is None:
        raise NotFound("Run not found")
    _record_webhook(conn, row, ROLLBACK, cancel_error(ROLLBACK, "the run was deleted"))
    if row["status"] in LIVE_RUN_STATUSES:
        folding.record(conn, [run_id])
    if row["temporary"]:
        records.remove(conn, deployment_id, thread_id)
    else:
        _remove(conn, row)
    if row["status"] not in LIVE_RUN_STATUSES:
        state.forget(conn, deployment_id, thread_id)
        return None
    records.settle(conn, deployment_id, thread_id)
    return _gone(row)


def delete_thread(conn: Connection, deployment_id: UUID, thread_id: UUID) -> list[Displaced]:
    """Delete a thread with everything on it. Returns the runs that were live. Raises NotFound."""
    if not records.lock(conn, deployment_id, thread_id):
        raise records.missing(thread_id)
    live = live_runs(conn, deployment_id, thread_id)
    folding.record(conn, [row["run_id"] for row in live])
    for row in live:
        error = cancel_error(ROLLBACK, "the thread was deleted")
        _record_webhook(conn, row, ROLLBACK, error)
    records.remove(conn, deployment_id, thread_id)
    return [_gone(row) for row in live]


def _gone(row: Row) -> Displaced:
    owner = row["owner"] if row["status"] == RunStatus.RUNNING else None
    return Displaced(row["run_id"], owner, "rollback", row["attempt"], row["seq_reserved"], is_gone=True)
