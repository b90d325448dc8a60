"""Assistants as other models see them: A2A agents and MCP tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, select

from shared import assistants
from shared.deployments.deployments import DeploymentRef
from shared.errors import NotFound
from shared.infra.postgres import Driver, Row, dumps, query
from shared.models import GRAPH
from shared.user_code import filters
from shared.user_code.filters import Filter

# From the serving revision, else from the first revision with traffic that has the graph.
SERVED = """JOIN LATERAL (
    SELECT description, schemas FROM graph WHERE graph_id = v.graph_id AND revision_id = ANY(%(revision_ids)s)
    ORDER BY array_position(%(revision_ids)s, revision_id) LIMIT 1) g ON true"""

AGENT = f"""
SELECT a.assistant_id, v.graph_id, v.name, coalesce(v.description, g.description) AS description, a.version,
       g.schemas -> 'input_schema' AS input_schema
FROM assistant a
JOIN assistant_version v ON v.deployment_id = a.deployment_id AND v.assistant_id = a.assistant_id
    AND v.version = a.version
{SERVED}
WHERE a.deployment_id = %(deployment_id)s AND a.assistant_id = %(assistant_id)s"""


def _revision_ids(deployment: DeploymentRef) -> list[UUID]:
    """Return the serving revision and those that share its traffic, in lookup order."""
    sharing = (share.revision_id for share in deployment.traffic)
    return [id for id in dict.fromkeys((deployment.active_revision_id, *sharing)) if id is not None]


def agent(conn: Connection | Driver, deployment: DeploymentRef, assistant: str) -> Row:
    """Return an assistant, given by its id or a graph id, with its graph's input schema. Raises NotFound."""
    wanted = {
        "deployment_id": deployment.id,
        "revision_ids": _revision_ids(deployment),
        "assistant_id": assistants.named_id(assistant),
    }
    row = query(conn, AGENT, wanted).fetchone()
    if row is None:
        raise NotFound("Not Found")
    return row


def input_of_thread(conn: Connection, deployment: DeploymentRef, thread_id: UUID, agent: Row) -> Any:
    """Return the input schema of an agent's graph in the revision of the thread's next run."""
    if not deployment.traffic:
        return agent["input_schema"]
    revision_id = assistants.revision_of_thread(conn, deployment, thread_id, agent["graph_id"])
    query = select(GRAPH.c.schemas["input_schema"]).where(
        GRAPH.c.revision_id == revision_id, GRAPH.c.graph_id == agent["graph_id"]
    )
    return conn.execute(query).scalar_one_or_none()


# If several assistants yield the same name, the oldest gets it. Only graphs with an input schema are tools.
TOOLS = f"""
WITH known AS (
    SELECT a.assistant_id, a.created_at, v.graph_id, v.name AS title, v.metadata,
           coalesce(v.description, g.description) AS description, g.schemas -> 'input_schema' AS input_schema,
           left(regexp_replace(coalesce(nullif(v.name, ''), v.graph_id), '[^A-Za-z0-9_.-]', '_', 'g'), 128) AS plain
    FROM assistant a
    JOIN assistant_version v ON v.deployment_id = a.deployment_id AND v.assistant_id = a.assistant_id
        AND v.version = a.version
    {SERVED}
    WHERE a.deployment_id = %(deployment_id)s
      AND json_typeof(g.schemas #> '{{input_schema,properties}}') = 'object'
      AND CAST(g.schemas #> '{{input_schema,properties}}' AS text) <> '{{}}'
), named AS (
    SELECT *, CASE WHEN row_number() OVER (PARTITION BY plain ORDER BY created_at, assistant_id) = 1 THEN plain
                   ELSE left(plain, 119) || '-' || left(CAST(assistant_id AS text), 8) END AS name
    FROM known
)
SELECT assistant_id, graph_id, name, title, description, input_schema FROM named
WHERE (CAST(%(name)s AS text) IS NULL OR name = %(name)s)
  AND (CAST(%(metadata)s AS jsonb) IS NULL OR metadata @> CAST(%(metadata)s AS jsonb))"""
PAGE_OF_TOOLS = " ORDER BY created_at, assistant_id LIMIT %(limit)s OFFSET %(offset)s"


def tools(
    conn: Connection | Driver,
    deployment: DeploymentRef,
    *,
    name: str | None = None,
    limit: int = 1,
    offset: int = 0,
    metadata: Mapping[str, Any] | None = None,
    filter: Filter | None = None,
) -> list[Row]:
    """Return assistants with tool names, oldest first. With `name`, only the assistant that has it.

    Assistants without this metadata, or hidden by the filter, are left out. The names of the others do not depend on
    that.
    """
    visible, values = filters.for_driver(filter, "metadata")
    wanted = {
        **values,
        "deployment_id": deployment.id,
        "revision_ids": _revision_ids(deployment),
        "name": name,
        "limit": limit,
        "offset": offset,
        "metadata": dumps(metadata) if metadata else None,
    }
    return list(query(conn, f"{TOOLS} AND {visible}{PAGE_OF_TOOLS}", wanted))
