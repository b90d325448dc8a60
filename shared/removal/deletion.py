"""Deletion of a deployment: it is hidden at once, its work is stopped, and its data is removed in chunks.

Its runs are stopped after it is hidden, a few at a time, skipping rows that another transaction locks. A deletion is
therefore quick for any number of runs and never waits for a lock. Upkeep stops runs that a concurrent request still
creates, and removes the rows.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection, text

from shared.deployments import deployments, revisions
from shared.deployments.revisions import Transition
from shared.eventlog.events import RESERVED
from shared.figures import folding
from shared.models import DeploymentStatus
from shared.runs import webhooks
from shared.runs.cancel import Displaced
from shared.runs.end_event import cancel_error
from shared.sql import statement

REASON = "the deployment was deleted"
RUNS_AT_ONCE = 500
ROWS_AT_ONCE = 200
LINES_AT_ONCE = 4_000
THREADS_AT_ONCE = 20  # each may have thousands of checkpoints, and upkeep has other steps
PURGE_GRACE_SECONDS = 60.0

_STOP_PENDING = statement("removal.stop_pending")
_STOP_RUNNING = statement("removal.stop_running")
_DELETED_DEPLOYMENTS = statement("removal.deleted_deployments")
_EMPTIED_DEPLOYMENT = statement("removal.emptied_deployment")
# Children first, to keep cascades short.
_CHUNKS = (
    (statement("removal.threads"), THREADS_AT_ONCE),
    (statement("removal.log_lines"), LINES_AT_ONCE),
    (statement("removal.bulk_runs"), LINES_AT_ONCE),
    (statement("removal.replay_cases"), ROWS_AT_ONCE),
    (statement("removal.figures_of_users"), LINES_AT_ONCE),
    (statement("removal.assistants"), ROWS_AT_ONCE),
    (statement("removal.revisions"), ROWS_AT_ONCE),
)


def delete(conn: Connection, organization_id: UUID, deployment_id: UUID) -> list[Transition]:
    """Hide the deployment and its benches, and interrupt its revisions. The caller stops its runs next. Raises NotFound."""
    deployments.lock(conn, organization_id, deployment_id)
    moved = revisions.interrupt_all(conn, deployment_id, reason=REASON)
    conn.execute(
        text(
            "UPDATE deployment SET deleted_at = now(), updated_at = now(), status = :status"
            " WHERE (id = :id OR replay_of = :id) AND deleted_at IS NULL"
        ),
        {"id": deployment_id, "status": DeploymentStatus.AWAITING_DELETE},
    )
    return moved


def stop_runs(conn: Connection, deployment_id: UUID, *, reason: str = REASON) -> list[Displaced]:
    """Stop some runs of a deleted deployment, or of the bench of an ended replay.

    Returns an empty list when no more can be stopped.
    """
    key = {"id": deployment_id, "reason": reason, "limit": RUNS_AT_ONCE}
    stopped = [*_STOP_PENDING.rows(conn, **key, reserved=RESERVED), *_STOP_RUNNING.rows(conn, **key)]
    ended = [row["run_id"] for row in stopped if row["owner"] is None]
    if ended:
        folding.record(conn, ended)
        webhooks.record(conn, ended, error=cancel_error("interrupt", reason))
    return [
        Displaced(row["run_id"], row["owner"], "interrupt", row["attempt"], row["seq_reserved"], reason)
        for row in stopped
    ]


def purge(conn: Connection) -> int:
    """Remove some data of deleted deployments. Returns the number of rows, 0 when nothing is left.

    Rows of a deployment with running runs or untried webhooks are kept for up to PURGE_GRACE_SECONDS.
    """
    removed = 0
    for row in _DELETED_DEPLOYMENTS.rows(conn, grace_seconds=PURGE_GRACE_SECONDS):
        removed += len(stop_runs(conn, row["id"]))
        if not row["is_quiet"]:
            continue
        rows = sum(chunk.count(conn, id=row["id"], limit=limit) for chunk, limit in _CHUNKS)
        removed += rows
        if not rows:
            folding.fold(conn)
            removed += _EMPTIED_DEPLOYMENT.count(conn, id=row["id"])
    return removed
