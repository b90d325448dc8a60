"""Earlier builds and inspections of a deployment that a new revision may reuse.

Resolved versions are reused for one day at most. A later deployment resolves again and gets newer releases. The
description of the code is reused while the environment and the variables have not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text

from shared.deployments import secrets
from shared.deployments.revisions import ClaimedRevision
from shared.infra.encryption import Undecryptable
from workers.builder.inspection import PARTS, Inspected, inspector

FRESH = timedelta(days=1)


@dataclass(frozen=True)
class ReusableBuild:
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


def same_source(conn: Connection, claimed: ClaimedRevision) -> ReusableBuild | None:
    """Return the newest fresh build of the same archive with the same configuration file; None if there is none."""
    query = text(DEPLOYED + " AND archive_digest = :digest" + NEWEST)
    values = {"deployment_id": claimed.deployment_id, "digest": claimed.archive_digest}
    path = claimed.config.get("langgraph_config_path")
    for row in conn.execute(query, values).mappings():
        if row["source_revision_config"].get("langgraph_config_path") == path and _is_fresh(row):
            return _build(row)
    return None


def same_inputs(conn: Connection, claimed: ClaimedRevision, inputs: str) -> ReusableBuild | None:
    """Return the newest fresh build that resolved the same inputs; None if there is none."""
    query = text(DEPLOYED + " AND manifest ->> 'inputs' = :inputs" + NEWEST)
    values = {"deployment_id": claimed.deployment_id, "inputs": inputs}
    rows = conn.execute(query, values).mappings()
    return next((_build(row) for row in rows if _is_fresh(row)), None)


def _is_fresh(row: RowMapping) -> bool:
    try:
        return datetime.now(UTC) - datetime.fromisoformat(row["resolved_at"]) < FRESH
    except (TypeError, ValueError):  # the row has no `resolved_at`, or not a valid one
        return False


def _build(row: RowMapping) -> ReusableBuild:
    return ReusableBuild(row["build_id"], row["requirements"], row["python_version"], row["resolved_at"])


SAME_BUILD = text("""
SELECT id, user_code, manifest -> 'http' AS http FROM revision
WHERE deployment_id = :deployment_id AND id <> :id AND coalesce(build_id, id) = :build_id
  AND status = 'DEPLOYED' AND manifest ->> 'inspector' = :inspector
ORDER BY number DESC LIMIT 3
""")
DESCRIPTIONS = text(
    "SELECT graph_id, description, drawings, schemas, subgraphs FROM graph WHERE revision_id = :id"
)


def earlier_inspection(
    conn: Connection, deployment_id: UUID, revision_id: UUID, build_id: UUID, variables: Mapping[str, str]
) -> Inspected | None:
    """Return the description from an earlier inspection of the same build with the same variables; None if there is none."""
    values = {"deployment_id": deployment_id, "id": revision_id, "build_id": build_id}
    for other in conn.execute(SAME_BUILD, {**values, "inspector": inspector()}).all():
        if not _has(conn, other.id, variables):
            continue
        rows = conn.execute(DESCRIPTIONS, {"id": other.id}).mappings().all()
        if rows:
            graphs = {row["graph_id"]: {name: row[name] for name in PARTS} for row in rows}
            return Inspected(graphs, other.user_code, other.http or {})
    return None


def _has(conn: Connection, revision_id: UUID, variables: Mapping[str, str]) -> bool:
    try:
        return secrets.secrets_of(conn, revision_id) == variables
    except Undecryptable:
        return False
