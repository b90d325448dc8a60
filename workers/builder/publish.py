"""Publishing of a built revision: its graphs, its default assistants, and the traffic that it receives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from shared import assistants
from shared.deployments import traffic
from shared.deployments.revisions import ClaimedRevision
from shared.errors import BuildFailed
from shared.infra.json_text import holds_nul
from shared.models import ASSISTANT, ASSISTANT_VERSION, GRAPH
from workers.builder.inspection import PARTS, STEP, Graphs

CONFIGS = "LANGGRAPH_CONFIG"
EXAMPLE = '{"agent": {"configurable": {"model": "small"}, "recursion_limit": 50}}'

Configs = Mapping[str, dict[str, Any]]  # of default assistants, by graph


def publish(conn: Connection, claimed: ClaimedRevision, graphs: Graphs, configs: Configs) -> str:
    """Store the graphs, and route the deployment's traffic or its preview's address to the revision.

    Creates missing default assistants; a preview does not reconfigure existing ones. Returns the name in the
    revision's address.
    """
    store_graphs(conn, claimed.revision_id, graphs)
    reconfigure = claimed.preview is None
    make_default_assistants(conn, claimed.deployment_id, graphs, configs, reconfigure=reconfigure)
    if claimed.preview is None:
        return traffic.serve(conn, claimed.deployment_id, claimed.revision_id)
    return traffic.show_preview(conn, claimed.deployment_id, claimed.preview, claimed.revision_id)


def store_graphs(conn: Connection, revision_id: UUID, graphs: Graphs) -> None:
    """Store the descriptions of a revision's graphs."""
    for graph_id, graph in graphs.items():
        row = {name: graph[name] for name in PARTS}
        conn.execute(
            insert(GRAPH)
            .values(revision_id=revision_id, graph_id=graph_id, **row)
            .on_conflict_do_update(index_elements=["revision_id", "graph_id"], set_=row)
        )


def assistant_configs(variables: Mapping[str, str]) -> Configs:
    """Return the configurations of default assistants by graph, from a deployment's variables. Raises BuildFailed.

    `context` is another name for `configurable`, as in the API.
    """
    text = variables.get(CONFIGS, "").strip()
    try:
        configs = orjson.loads(text or "{}")
    except ValueError as error:
        raise BuildFailed(STEP, f"{CONFIGS} is not JSON: {error}") from error
    if holds_nul(configs):
        raise BuildFailed(STEP, f"{CONFIGS} must not hold NUL characters")
    if not isinstance(configs, dict):
        raise BuildFailed(STEP, f"{CONFIGS} must be an object of configurations by graph: {EXAMPLE}")
    return {graph_id: _config(graph_id, config) for graph_id, config in configs.items()}


def _config(graph_id: str, config: Any) -> dict[str, Any]:
    if not isinstance(config, dict) or not all(
        isinstance(config.get(name, {}), dict) for name in ("configurable", "context")
    ):
        raise BuildFailed(STEP, f"{CONFIGS} must be an object of configurations by graph: {EXAMPLE}")
    if "context" not in config:
        return config
    if "configurable" in config:
        reason = "has both configurable and context, which are one thing: name one of them"
        raise BuildFailed(STEP, f"{CONFIGS}: the configuration of {graph_id!r} {reason}")
    context = config.pop("context")
    return {**config, "configurable": context}


def make_default_assistants(
    conn: Connection, deployment_id: UUID, graphs: Graphs, configs: Configs, *, reconfigure: bool = True
) -> None:
    """Create the default assistant of each graph, with its configuration from `configs`.

    With `reconfigure`, existing default assistants get their new configuration and description, too. Changes by users are
    kept.
    """
    for graph_id, graph in graphs.items():
        key = {"deployment_id": deployment_id, "assistant_id": assistants.default_id(graph_id)}
        config = configs.get(graph_id, {})
        content = {"config": config, "context": config.get("configurable", {})}
        created = conn.execute(
            insert(ASSISTANT).values(**key).on_conflict_do_nothing().returning(ASSISTANT.c.assistant_id)
        ).one_or_none()
        if created is None:
            if reconfigure:
                assistants.reconfigure_default(conn, deployment_id, graph_id, config, graph["description"])
            continue
        conn.execute(
            insert(ASSISTANT_VERSION).values(
                **key,
                **content,
                version=1,
                graph_id=graph_id,
                metadata={"created_by": "system"},
                name=graph_id,
                description=graph["description"],
            )
        )
