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
from shared.runs.cancel import INTERRUPTED, Displaced
from shared.runs.end_event import cancel_error

REASON = "the deployment was deleted"
RUNS_AT_ONCE = 500


def delete(conn: Connection, organization_id: UUID, deployment_id: UUID) -> list[Transition]:
    """Hide the deployment and interrupt its revisions. The caller stops its runs next. Raises NotFound."""
    deployments.lock(conn, organization_id, deployment_id)
    moved = revisions.interrupt_all(conn, deployment_id, reason=REASON)
    conn.execute(
        text("UPDATE deployment SET deleted_at = now(), updated_at = now(), status = :status WHERE id = :id"),
        {"id": deployment_id, "status": DeploymentStatus.AWAITING_DELETE},
    )
    return moved


LIVE_RUNS = """
SELECT run_id FROM run WHERE deployment_id = :id AND status = '{status}' AND cancel_requested IS NULL
LIMIT :limit FOR UPDATE SKIP LOCKED
"""

STOP_PENDING = text(f"""
UPDATE run SET {INTERRUPTED}
WHERE run_id IN ({LIVE_RUNS.format(status="pending")})
RETURNING run_id, NULL AS owner, attempt, seq_reserved - :reserved AS seq_reserved
""")

STOP_RUNNING = text(f"""
UPDATE run SET cancel_requested = 'interrupt', cancel_reason = :reason
WHERE run_id IN ({LIVE_RUNS.format(status="running")})
RETURNING run_id, owner, attempt, seq_reserved
""")


def stop_runs(conn: Connection, deployment_id: UUID) -> list[Displaced]:
    """Stop some runs of a deleted deployment. Returns an empty list when no more can be stopped."""
    values = {"id": deployment_id, "reason": REASON, "reserved": RESERVED, "limit": RUNS_AT_ONCE}
    stopped = [
        row for statement in (STOP_PENDING, STOP_RUNNING) for row in conn.execute(statement, values).all()
    ]
    ended = [row.run_id for row in stopped if row.owner is None]
    if ended:
        folding.record(conn, ended)
        webhooks.record(conn, ended, error=cancel_error("interrupt", REASON))
    return [
        Displaced(row.run_id, row.owner, "interrupt", row.attempt, row.seq_reserved, REASON)
        for row in stopped
    ]


PURGE_CHUNK = 200
PURGED_THREADS = 20  # each may have thousands of checkpoints, and upkeep has other steps
PURGE_GRACE_SECONDS = 60.0

DELETED = text("""
SELECT id, deleted_at < now() - make_interval(secs => :grace)
           OR NOT EXISTS (SELECT FROM run WHERE deployment_id = d.id AND status = 'running')
              AND NOT EXISTS (SELECT FROM webhook_delivery WHERE deployment_id = d.id AND attempt = 0) AS is_quiet
FROM deployment d WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT 5 FOR UPDATE SKIP LOCKED
""")

# Children first, to keep cascades short.
CHUNKS = (
    "DELETE FROM thread WHERE deployment_id = :id AND thread_id IN"
    " (SELECT thread_id FROM thread WHERE deployment_id = :id LIMIT :threads)",
    "DELETE FROM log_line WHERE id IN (SELECT id FROM log_line WHERE deployment_id = :id LIMIT :chunk * 20)",
    "DELETE FROM assistant WHERE deployment_id = :id AND assistant_id IN"
    " (SELECT assistant_id FROM assistant WHERE deployment_id = :id LIMIT :chunk)",
    "DELETE FROM revision WHERE id IN (SELECT id FROM revision WHERE deployment_id = :id LIMIT :chunk)",
)

# The deployment's last runs must be folded into its organization's figures before.
EMPTIED = text("""
DELETE FROM deployment WHERE id = :id AND NOT EXISTS (SELECT FROM ended_run WHERE deployment_id = :id)
""")


def purge(conn: Connection) -> int:
    """Remove some data of deleted deployments. Returns the number of rows, 0 when nothing is left.

    Rows of a deployment with running runs or untried webhooks are kept for up to PURGE_GRACE_SECONDS.
    """
    removed = 0
    for deployment in conn.execute(DELETED, {"grace": PURGE_GRACE_SECONDS}).all():
        removed += len(stop_runs(conn, deployment.id))
        if not deployment.is_quiet:
            continue
        values = {"id": deployment.id, "chunk": PURGE_CHUNK, "threads": PURGED_THREADS}
        done = [conn.execute(text(chunk), values).rowcount for chunk in CHUNKS]
        removed += sum(done)
        if not any(done):
            folding.fold(conn)
            removed += conn.execute(EMPTIED, values).rowcount
    return removed
