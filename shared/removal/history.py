"""Removal of old runs, old revisions with their build logs, and old lines of deployment logs.

Upkeep calls these functions in a loop. Each call is a short transaction on one chunk and returns how much it removed.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from shared.deployments.logs import BUILD, DEPLOY
from shared.deployments.shares import takes_traffic
from shared.infra import clock
from shared.models import REVISION_ENDS, ThreadStatus, has_ended
from shared.runs.read import least_id

REVISIONS_AT_ONCE = 50
LINES_AT_ONCE = 5_000
RUNS_AT_ONCE = 1_000
DEPLOYMENTS_AT_ONCE = 20

# A run being created has just read which revision serves, so a revision that served a moment ago is not old yet.
SETTLED_SECONDS = 60.0

# Locks the deployments' rows, so that no request redeploys an old revision while it is removed.
OLD = text(f"""
SELECT r.id FROM deployment d
CROSS JOIN (VALUES (false), (true)) AS kind(is_preview)
JOIN LATERAL (SELECT number FROM revision WHERE deployment_id = d.id AND (preview IS NOT NULL) = kind.is_preview
              ORDER BY number DESC OFFSET :kept - 1 LIMIT 1) AS last_kept ON true
JOIN revision r ON r.deployment_id = d.id AND (r.preview IS NOT NULL) = kind.is_preview
    AND r.number < last_kept.number
WHERE d.deleted_at IS NULL AND r.status = ANY(:ends)
  AND {takes_traffic("r", "d")} IS NOT TRUE AND r.id IS DISTINCT FROM d.latest_revision_id
  AND coalesce(d.traffic_at < now() - make_interval(secs => :settled), true)
  AND NOT EXISTS (SELECT FROM revision a WHERE a.id = d.active_revision_id
                  AND a.updated_at > now() - make_interval(secs => :settled))
  AND NOT EXISTS (SELECT FROM run WHERE deployment_id = d.id AND revision_id = r.id
                  AND is_live(status))
ORDER BY r.id LIMIT :limit
FOR UPDATE OF d SKIP LOCKED
""")


def remove_old_revisions(conn: Connection, *, kept: int) -> int:
    """Remove some ended revisions beyond a deployment's `kept` newest that have no traffic and no live runs.

    Revisions for previews are counted separately, so that they do not displace a revision to roll back to.

    Secrets, drawings and the build log are removed with a revision. The log may be long, so it is removed in chunks
    first. Returns the number of removed rows.
    """
    values = {
        "kept": kept,
        "ends": [str(end) for end in REVISION_ENDS],
        "settled": SETTLED_SECONDS,
        "limit": REVISIONS_AT_ONCE,
    }
    removed = 0
    for revision_id in conn.execute(OLD, values).scalars().all():
        lines = _remove_build_log(conn, revision_id)
        removed += lines
        if lines < LINES_AT_ONCE:
            query = text("DELETE FROM revision WHERE id = :id")
            removed += conn.execute(query, {"id": revision_id}).rowcount
        if removed >= LINES_AT_ONCE:
            break
    return removed


def _remove_build_log(conn: Connection, revision_id: UUID) -> int:
    query = text(
        "DELETE FROM log_line WHERE id IN (SELECT id FROM log_line WHERE revision_id = :id AND kind = :kind"
        " LIMIT :chunk)"
    )
    return conn.execute(query, {"id": revision_id, "kind": BUILD, "chunk": LINES_AT_ONCE}).rowcount


NEXT_DEPLOYMENTS = text("""
SELECT id FROM deployment WHERE deleted_at IS NULL AND (CAST(:after AS uuid) IS NULL OR id > :after)
ORDER BY id LIMIT :limit
""")


def deployments_after(conn: Connection, after: UUID | None) -> list[UUID]:
    """Return the ids of the next few deployments after this one. Empty after the last one."""
    return list(conn.execute(NEXT_DEPLOYMENTS, {"after": after, "limit": DEPLOYMENTS_AT_ONCE}).scalars())


# The oldest line to keep is found by the index alone. Most deployments have fewer than `most` lines.
OLD_LINES = text("""
DELETE FROM log_line WHERE id IN (
    SELECT id FROM log_line
    WHERE deployment_id = :id AND kind = :kind
      AND at < greatest(now() - make_interval(secs => :seconds),
                        (SELECT at FROM log_line WHERE deployment_id = :id AND kind = :kind
                         ORDER BY at DESC, id DESC OFFSET :most - 1 LIMIT 1))
    ORDER BY at LIMIT :chunk)
""")


def remove_old_lines(conn: Connection, deployment_id: UUID, *, days: float, most: int) -> int:
    """Remove some lines of a deployment's log that are older than `days` or beyond the newest `most` lines."""
    values = {
        "id": deployment_id,
        "kind": DEPLOY,
        "seconds": days * 86400,
        "most": most,
        "chunk": LINES_AT_ONCE,
    }
    return conn.execute(OLD_LINES, values).rowcount


# The last started run of an interrupted thread raised its open interrupt. It is kept until there is an answer. The
# subquery is evaluated per run in index order, oldest first, because run ids are in the order of creation.
ASKS = f"""(
    SELECT r.created_seq = (
        SELECT created_seq FROM run AS own WHERE own.deployment_id = r.deployment_id AND own.thread_id = r.thread_id
          AND own.attempt > 0 ORDER BY created_seq DESC LIMIT 1)
    FROM thread t WHERE t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
      AND t.rest_status = '{ThreadStatus.INTERRUPTED}')"""

OLD_RUNS = text(f"""
DELETE FROM run WHERE run_id = ANY(ARRAY(
    SELECT r.run_id FROM run r
    WHERE r.deployment_id = :id AND {has_ended("r")} AND r.run_id < :least_id AND r.ended_at < :before
      AND {ASKS} IS NOT TRUE
    ORDER BY r.run_id LIMIT :chunk FOR UPDATE OF r SKIP LOCKED))
""")


def remove_old_runs(conn: Connection, deployment_id: UUID, *, days: float) -> int:
    """Remove some of a deployment's runs that ended more than `days` days ago. Their threads are unchanged."""
    before = clock.now() - timedelta(days=days)
    values = {"id": deployment_id, "before": before, "least_id": least_id(before), "chunk": RUNS_AT_ONCE}
    return conn.execute(OLD_RUNS, values).rowcount
