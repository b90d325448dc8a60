"""Assistants as other models see them: A2A agents and MCP tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, select

from shared import assistants
from shared.deployments.deployments import DeploymentRef
from shared.errors import NotFound
from shared.infra.arrays import Packed, uuids
from shared.infra.postgres import Row
from shared.models import GRAPH
from shared.sql import Conn, statement
from shared.user_code import filters
from shared.user_code.filters import Filter

_AGENT = statement("assistants.agent")


def _revision_ids(deployment: DeploymentRef) -> Packed:
    """Return the serving revision and those that share its traffic, in lookup order."""
    sharing = (share.revision_id for share in deployment.traffic)
    ids = dict.fromkeys((deployment.active_revision_id, *sharing))
    return uuids([id for id in ids if id is not None])


def agent(conn: Conn, deployment: DeploymentRef, assistant: str, *, may_be_past: bool = False) -> Row:
    """Return an assistant, given by its id or a graph id, with its graph's input schema. Raises NotFound.

    With `may_be_past`, also an assistant whose graph no revision serves any more: its runs may still be live.
    """
    row = _AGENT.row(
        conn,
        deployment_id=deployment.id,
        revision_ids=_revision_ids(deployment),
        assistant_id=assistants.named_id(assistant),
    )
    if row is None or not (row["is_served"] or may_be_past):
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


def tools(
    conn: Conn,
    deployment: DeploymentRef,
    *,
    name: str | None = None,
    assistant_id: UUID | None = None,
    limit: int = 1,
    offset: int = 0,
    metadata: Mapping[str, Any] | None = None,
    filter: Filter | None = None,
) -> Sequence[Row]:
    """Return assistants with tool names, oldest first. With `name` or `assistant_id`, only the assistant that has it.

    Assistants without this metadata, or hidden by the filter, are left out. The names of the others do not depend on
    that.
    """
    visible, values = filters.with_metadata(filter, metadata or {}, "metadata")
    return statement("assistants.tools", visible=visible).rows(
        conn,
        **values,
        deployment_id=deployment.id,
        revision_ids=_revision_ids(deployment),
        name=name,
        assistant_id=assistant_id,
        limit=limit,
        offset=offset,
    )
