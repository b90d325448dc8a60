"""Earlier builds of a deployment that a new revision may reuse.

Resolved versions are reused for one day at most. A later deployment resolves again and gets newer releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text

from shared.deployments.revisions import ClaimedRevision

FRESH = timedelta(days=1)


@dataclass(frozen=True)
class Earlier:
    """The build of an earlier, deployed revision."""

    build_id: UUID
    requirements: str
    python_version: str | None
    resolved_at: str


DEPLOYED = """
SELECT coalesce(build_id, id) AS build_id, requirements, python_version, source_revision_config,
       manifest ->> 'resolved_at' AS resolved_at
FROM revision
WHERE deployment_id = :deployment_id AND status = 'DEPLOYED' AND requirements IS NOT NULL
"""
NEWEST = " ORDER BY number DESC LIMIT 10"


def same_source(conn: Connection, claimed: ClaimedRevision) -> Earlier | None:
    """Return the newest fresh build of the same archive with the same configuration file; None if there is none."""
    query = text(DEPLOYED + " AND archive_digest = :digest" + NEWEST)
    values = {"deployment_id": claimed.deployment_id, "digest": claimed.archive_digest}
    path = claimed.config.get("langgraph_config_path")
    for row in conn.execute(query, values).mappings():
        if row["source_revision_config"].get("langgraph_config_path") == path and _is_fresh(row):
            return _earlier(row)
    return None


def same_inputs(conn: Connection, claimed: ClaimedRevision, inputs: str) -> Earlier | None:
    """Return the newest fresh build that resolved the same inputs; None if there is none."""
    query = text(DEPLOYED + " AND manifest ->> 'inputs' = :inputs" + NEWEST)
    values = {"deployment_id": claimed.deployment_id, "inputs": inputs}
    rows = conn.execute(query, values).mappings()
    return next((_earlier(row) for row in rows if _is_fresh(row)), None)


def _is_fresh(row: RowMapping) -> bool:
    try:
        return datetime.now(UTC) - datetime.fromisoformat(row["resolved_at"]) < FRESH
    except (TypeError, ValueError):  # the row has no `resolved_at`, or not a valid one
        return False


def _earlier(row: RowMapping) -> Earlier:
    return Earlier(row["build_id"], row["requirements"], row["python_version"], row["resolved_at"])
