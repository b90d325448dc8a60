"""Updates of a thread's state that come from no run: a graph host applies them through the graph's reducers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson

from shared import assistants, thread_stream
from shared.deployments.deployments import DeploymentRef
from shared.errors import Conflict
from shared.hosts import calls
from shared.hosts.pending_calls import HostCall
from shared.infra.postgres import connection
from shared.runs import configurable
from shared.threads.state import Newest

Supersteps = Sequence[Sequence[Mapping[str, Any]]]
END = "__end__"  # an update without values as this node ends the open tasks of a thread


def apply(
    serving: DeploymentRef,
    thread_id: UUID,
    newest: Newest,
    supersteps: Supersteps,
    *,
    user: Mapping[str, Any] | None,
    checkpoint: Mapping[str, Any] | None = None,
    cancels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Apply supersteps in order, to the newest state or to the one at `checkpoint`. Returns the new checkpoint.

    `cancels`: the question that the update cancels, and by whom: see `state.store_update`. Raises as `call_host` does. Holds
    no database connection meanwhile.
    """
    document = {"op": "update", "supersteps": supersteps, "checkpoint": checkpoint}
    document |= {"cancels": cancels} if cancels else {}
    answer = orjson.loads(call_host(serving, thread_id, newest, document, user=user))
    thread_stream.notify(thread_id)
    return answer["checkpoint"]


def call_host(
    serving: DeploymentRef,
    thread_id: UUID,
    newest: Newest,
    document: Mapping[str, Any],
    *,
    user: Mapping[str, Any] | None,
) -> bytes:
    """Return the JSON answer of a graph host of the revision that executes the thread's runs.

    `user` is the user document that the graph is built with. Raises Conflict if the deployment serves no revision.
    """
    revision_id = serving.active_revision_id
    if revision_id is None:
        raise Conflict("This deployment serves no revision yet. Poll its latest revision.")
    if serving.traffic and newest.graph_id is not None:
        with connection() as conn:
            revision_id = assistants.revision_of_thread(conn, serving, thread_id, newest.graph_id)
    ids = {"thread_id": str(thread_id), "graph_id": newest.graph_id}
    assistant_id = newest.metadata.get("assistant_id")
    config = configurable.config_for_state(newest.config, user, **ids, assistant_id=assistant_id)
    return calls.call(
        HostCall(
            deployment_id=serving.id,
            revision_id=revision_id,
            pool=serving.pool,
            thread_id=thread_id,
            document={**document, **ids, "config": config, "metadata": {"assistant_id": assistant_id}},
            total_seconds=calls.THREAD_SECONDS,
            is_repeatable=document["op"] != "update",  # its supersteps would be applied twice
        )
    )
