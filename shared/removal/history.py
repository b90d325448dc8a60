"""Removal of old runs, old revisions with their build logs, and old lines of deployment logs.

Upkeep calls these functions in a loop. Each call is a short transaction on one chunk and returns how much it removed.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from shared.deployments.logs import BUILD, DEPLOY
from shared.infra.arrays import texts
from shared.infra.postgres import database_time
from shared.models import REVISION_ENDS
from shared.runs.read import least_id
from shared.sql import statement

REVISIONS_AT_ONCE = 50
LINES_AT_ONCE = 5_000
RUNS_AT_ONCE = 1_000
DEPLOYMENTS_AT_ONCE = 20

# A run being created has just read which revision serves, so a revision that served a moment ago is not old yet.
SETTLED_SECONDS = 60.0

_OLD_REVISIONS = statement("removal.old_revisions")
_BUILD_LOG = statement("removal.build_log")
_OLD_LOG_LINES = statement("removal.old_log_lines")
_OLD_RUNS = statement("removal.old_runs")


def remove_old_revisions(conn: Connection, *, kept: int) -> int:
    """Remove some ended revisions beyond a deployment's `kept` newest that have no traffic and no live runs.

    Revisions for previews are counted separately, so that they do not displace a revision to roll back to.

    Secrets, drawings and the build log are removed with a revision. The log may be long, so it is removed in chunks
    first. Returns the number of removed rows.
    """
    removed = 0
    rows = _OLD_REVISIONS.rows(
        conn,
        kept=kept,
        ends=texts(sorted(REVISION_ENDS)),
        settled_seconds=SETTLED_SECONDS,
        limit=REVISIONS_AT_ONCE,
    )
    for row in rows:
        lines = _BUILD_LOG.count(conn, revision_id=row["id"], kind=BUILD, limit=LINES_AT_ONCE)
        removed += lines
        if lines < LINES_AT_ONCE:
            query = text("DELETE FROM revision WHERE id = :id")
            removed += conn.execute(query, {"id": row["id"]}).rowcount
        if removed >= LINES_AT_ONCE:
            break
    return removed


def deployments_after(conn: Connection, after: UUID | None) -> list[UUID]:
    """Return the ids of the next few deployments after this one. Empty after the last one."""
    query = text(
        "SELECT id FROM deployment WHERE deleted_at IS NULL AND (CAST(:after AS uuid) IS NULL OR id > :after)"
        " ORDER BY id LIMIT :limit"
    )
    return list(conn.execute(query, {"after": after, "limit": DEPLOYMENTS_AT_ONCE}).scalars())


def remove_old_lines(conn: Connection, deployment_id: UUID, *, days: float, most: int) -> int:
    """Remove some lines of a deployment's log that are older than `days` or beyond the newest `most` lines."""
    return _OLD_LOG_LINES.count(
        conn,
        deployment_id=deployment_id,
        kind=DEPLOY,
        seconds=days * 86400,
        most=most,
        limit=LINES_AT_ONCE,
    )


def remove_old_runs(conn: Connection, deployment_id: UUID, *, days: float) -> int:
    """Remove some of a deployment's runs that ended more than `days` days ago. Their threads are unchanged."""
    before = database_time() - timedelta(days=days)
    return _OLD_RUNS.count(
        conn, deployment_id=deployment_id, before=before, least_id=least_id(before), limit=RUNS_AT_ONCE
    )
