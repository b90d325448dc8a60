"""Factories of valid, committed rows and of frames. A test states only the columns that matter to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Table, delete, insert, select, text, update
from uuid_utils.compat import uuid7

from shared import assistants
from shared.audit import Actor
from shared.deployments import components as component_bundles
from shared.deployments.components import Bundle
from shared.deployments.deployments import DeploymentRef, resolve
from shared.inbox import links
from shared.infra import encryption
from shared.infra.postgres import connection
from shared.models import (
    ASSISTANT,
    ASSISTANT_VERSION,
    CRON,
    DEPLOYMENT,
    GRAPH,
    OAUTH_GRANT,
    OAUTH_PROVIDER,
    OAUTH_REQUEST,
    ORGANIZATION,
    PREVIEW,
    QUESTION,
    REVISION,
    RUN,
    THREAD,
    WEBHOOK_DELIVERY,
    DeploymentStatus,
    RevisionStatus,
    RunStatus,
    ThreadStatus,
)
from shared.replays import records as replays
from shared.runs import bulk, finish
from shared.threads.checkpoints import ClaimedRun, Write
from shared.threads.state import EMPTY as EMPTY_STATE


def organization(name: str | None = None) -> UUID:
    """Insert an organization. Returns its id."""
    id = uuid7()
    _insert(ORGANIZATION, id=id, name=name or f"organization-{id}")
    return id


# Drawings and schemas of a graph that was never inspected.
LOOKS: dict[str, Any] = {
    "drawings": {"all": {"nodes": [], "edges": []}},
    "schemas": dict.fromkeys(
        ("input_schema", "output_schema", "state_schema", "config_schema", "context_schema")
    ),
    "subgraphs": {},
}


SERVE = text(
    "UPDATE deployment SET active_revision_id = :revision_id, latest_revision_id = :revision_id WHERE id = :id"
)


def deployment(
    name: str = "app",
    *,
    organization_id: UUID | None = None,
    pool: str = "default",
    graphs: tuple[str, ...] = ("agent",),
    serving: bool = True,
    user_code: Mapping[str, Any] | None = None,
) -> DeploymentRef:
    """Insert a deployment that serves these graphs. With `serving=False` it has no revision."""
    id = uuid7()
    with _one_transaction() as conn:
        organization_id = organization_id or organization()
        _insert(
            DEPLOYMENT,
            id=id,
            organization_id=organization_id,
            name=name,
            source="internal_source",
            status=DeploymentStatus.READY,
            pool=pool,
        )
        if serving:
            revision_id = revision(id, graphs=graphs, user_code=user_code)
            conn.execute(SERVE, {"id": id, "revision_id": revision_id})
            for graph_id in graphs:
                assistant(id, graph_id, assistant_id=assistants.default_id(graph_id))
        found = resolve(conn, organization_id, name)
    assert found is not None
    return found


def revision(
    deployment_id: UUID,
    *,
    number: int = 1,
    status: RevisionStatus = RevisionStatus.DEPLOYED,
    graphs: tuple[str, ...] = ("agent",),
    **columns: Any,
) -> UUID:
    """Insert a revision with its graphs. Returns its id."""
    id = uuid7()
    values = {"source": "internal_source", "requirements": "langgraph==1.2.22\n", **columns}
    _insert(REVISION, id=id, deployment_id=deployment_id, number=number, status=status, **values)
    for graph_id in graphs:
        _insert(GRAPH, revision_id=id, graph_id=graph_id, **LOOKS)
    return id


def preview(deployment_id: UUID, revision_id: UUID | None, name: str = "pr-1") -> str:
    """Insert a preview that shows this revision. Returns its name."""
    _insert(PREVIEW, deployment_id=deployment_id, name=name, revision_id=revision_id)
    return name


def components(deployment: DeploymentRef, script: str = "", styles: str | None = None) -> str:
    """Store the bundles of a set of components of the serving revision. Returns the set's name."""
    revision_id, name = deployment.active_revision_id, "agent"
    assert revision_id is not None
    bundles = [Bundle(name, "js", script.encode())]
    if styles is not None:
        bundles.append(Bundle(name, "css", styles.encode()))
    with connection() as conn:
        component_bundles.store(conn, revision_id, bundles)
    return name


def takes(deployment: DeploymentRef, graph_id: str, input_schema: Any, **schemas: Any) -> None:
    """Set the input schema of a graph of the serving revision, and other schemas."""
    with connection() as conn:
        conn.execute(
            update(GRAPH)
            .where(GRAPH.c.revision_id == deployment.active_revision_id, GRAPH.c.graph_id == graph_id)
            .values(schemas={**LOOKS["schemas"], "input_schema": input_schema, **schemas})
        )


def removed_graph(deployment: DeploymentRef, graph_id: str) -> None:
    """Remove a graph from the serving revision, as a newer revision without the graph does."""
    with connection() as conn:
        conn.execute(
            delete(GRAPH).where(
                GRAPH.c.revision_id == deployment.active_revision_id, GRAPH.c.graph_id == graph_id
            )
        )


def switched_off(deployment: DeploymentRef, *switches: str) -> None:
    """Disable interfaces in the langgraph.json of the serving revision."""
    with connection() as conn:
        conn.execute(
            update(REVISION)
            .where(REVISION.c.id == deployment.active_revision_id)
            .values(manifest={"http": dict.fromkeys(switches, True)})
        )


def assistant(deployment_id: UUID, graph_id: str = "agent", **columns: Any) -> UUID:
    """Insert an assistant at version 1. Returns its id."""
    id = columns.pop("assistant_id", None) or uuid7()
    _insert(ASSISTANT, deployment_id=deployment_id, assistant_id=id, created_at=datetime.now(UTC))
    _insert(
        ASSISTANT_VERSION,
        deployment_id=deployment_id,
        assistant_id=id,
        version=1,
        graph_id=graph_id,
        **{"name": graph_id, **columns},
    )
    return id


def thread(deployment_id: UUID, **columns: Any) -> UUID:
    """Insert a thread. Returns its id."""
    id = columns.pop("thread_id", None) or uuid7()
    _insert(THREAD, deployment_id=deployment_id, thread_id=id, **columns)
    return id


def run(deployment: DeploymentRef, thread_id: UUID | None = None, **columns: Any) -> UUID:
    """Insert a pending run of the first graph, on a new thread unless one is named. Returns its id."""
    id = columns.pop("run_id", None) or uuid7()
    thread_id = thread_id or thread(deployment.id)
    with connection() as conn:
        graph_id = conn.scalar(
            select(GRAPH.c.graph_id).where(GRAPH.c.revision_id == deployment.active_revision_id)
        )
        seq = conn.scalar(
            update(THREAD)
            .where(THREAD.c.deployment_id == deployment.id, THREAD.c.thread_id == thread_id)
            .values(last_seq=THREAD.c.last_seq + 1)
            .returning(THREAD.c.last_seq)
        )
    streamed = {"stream_mode": ["values"], "subgraphs": False, "resumable": False}
    values = {
        "assistant_id": assistants.default_id(graph_id or "agent"),
        "revision_id": deployment.active_revision_id,
        "graph_id": graph_id,
        "status": RunStatus.PENDING,
        "pool": deployment.pool,
        "created_seq": seq,
        **columns,
        "kwargs": {**streamed, **columns.get("kwargs", {})},
    }
    _insert(RUN, run_id=id, deployment_id=deployment.id, thread_id=thread_id, **values)
    return id


def question(deployment: DeploymentRef, thread_id: UUID | None = None, **columns: Any) -> UUID:
    """Insert an open interrupt, on a new interrupted thread unless one is named. Returns its id."""
    id, value = uuid7(), columns.pop("value", "May I?")
    interrupts = {"task": [{"id": "q", "value": value}]}
    thread_id = thread_id or thread(deployment.id, status=ThreadStatus.INTERRUPTED, interrupts=interrupts)
    values = {"interrupt_id": "q", "kind": "interrupt", "value": value, "title": "", **columns}
    _insert(QUESTION, question_id=id, deployment_id=deployment.id, thread_id=thread_id, **values)
    return id


def question_link(question_id: UUID) -> UUID:
    """Insert a valid link for a question. Returns its id."""
    with connection() as conn:
        row, _ = links.create(conn, question_id, key_id="", seconds=3600, label=None)
    return UUID(str(row["link_id"]))


def cron(deployment: DeploymentRef, **columns: Any) -> UUID:
    """Insert a cron of the graph `agent` that is due in a year. Returns its id."""
    id = columns.pop("cron_id", None) or uuid7()
    values = {
        "assistant_id": assistants.default_id("agent"),
        "user_id": "",
        "schedule": "0 * * * *",
        "payload": {"assistant_id": "agent"},
        "next_run_date": datetime.now(UTC) + timedelta(days=365),
        "enabled": True,
        **columns,
    }
    _insert(CRON, cron_id=id, deployment_id=deployment.id, **values)
    return id


def bulk_operation(deployment: DeploymentRef) -> UUID:
    """Insert an operation that retried the deployment's failed runs and has ended. Returns its id."""
    with connection() as conn:
        selection = bulk.select(deployment.id, bulk.BulkAction.RETRY, {})
        operation_id = bulk.create(conn, deployment.id, selection, by=Actor("aaaa", "ci"), rate=1)
        bulk.stop(conn, deployment.id, operation_id)
    return operation_id


def replay(deployment: DeploymentRef, **fields: Any) -> UUID:
    """Insert a replay of the deployment's active revision, with its bench. Returns its id."""
    revision_id = deployment.active_revision_id
    assert revision_id is not None
    request = replays.Request(**{"where": {}, "sample": 10, "seed": 1, **fields})
    with connection() as conn:
        return replays.create(
            conn, deployment.id, deployment.name, revision_id, request, by=Actor("aaaa", "ci")
        )


def webhook_delivery(deployment: DeploymentRef, run_id: UUID, **columns: Any) -> UUID:
    """Insert a delivery of a run's end that is due now. Returns its id."""
    id = uuid7()
    with connection() as conn:
        own = conn.execute(
            text("SELECT row_to_json(r) FROM run r WHERE run_id = :id"), {"id": run_id}
        ).scalar()
    values = {"url": "https://receiver.example/hook", "status": "success", "run": own, **columns}
    _insert(WEBHOOK_DELIVERY, delivery_id=id, deployment_id=deployment.id, run_id=run_id, **values)
    return id


def checkpoint(run: ClaimedRun, id: str, *values: bytes, **head: Any) -> Write:
    """Build the write of a run's CHECKPOINT frame. `values` are the blobs that `new` in the head names."""
    whole = {
        "thread_id": str(run.thread_id),
        "checkpoint_ns": "",
        "checkpoint_id": id,
        "parent_checkpoint_id": None,
        "type": "msgpack",
        "blobs": {},
        "new": [],
        "metadata": {},
        **head,
    }
    return Write.of(run, whole, [f"data of {id}".encode(), *values])


def store(*writes: Write) -> set[UUID]:
    """Store frames of runs, as a runner does. Returns the runs that their owner has lost."""
    with connection() as conn:
        return finish.commit(conn, [], writes, owner="", to_disk=False)[1]


def stored(run: ClaimedRun, id: str, **head: Any) -> None:
    """Store a checkpoint of a running run."""
    assert not store(checkpoint(run, id, **head))


def state(thread_id: UUID | str, checkpoint_id: str, **fields: Any) -> dict[str, Any]:
    """Return a state record as a graph host returns it, of a thread without next nodes."""
    place = {"thread_id": str(thread_id), "checkpoint_ns": "", "checkpoint_id": checkpoint_id}
    return {**EMPTY_STATE, "checkpoint": place, "checkpoint_id": checkpoint_id, **fields}


def oauth(organization_id: UUID, provider_id: str) -> dict[str, str]:
    """Insert a provider, a user's token of it and the request that led to the token. Returns ids by path parameter."""
    key, token_id, auth_id = uuid7(), uuid7(), uuid7()
    _insert(
        OAUTH_PROVIDER,
        id=key,
        organization_id=organization_id,
        provider_id=provider_id,
        name=provider_id,
        client_id="us",
        auth_url="https://provider.example/authorize",
        token_url="https://provider.example/token",
        token_endpoint_auth_method="none",
    )
    owner = {"organization_id": organization_id, "provider_key": key, "user_id": "ann"}
    _insert(
        OAUTH_GRANT, id=token_id, requested=[], scopes=[], access_token=encryption.encrypt("token"), **owner
    )
    _insert(
        OAUTH_REQUEST,
        id=auth_id,
        status="completed",
        state_hash=auth_id.bytes,
        redirect_uri="https://service.example/callback",
        scopes=[],
        is_default=True,
        is_another=False,
        grant_id=token_id,
        expires_at=datetime.now(UTC) + timedelta(minutes=10),
        **owner,
    )
    return {"provider_id": provider_id, "token_id": str(token_id), "auth_id": str(auth_id)}


_current: ContextVar[Connection | None] = ContextVar("_current", default=None)


@contextmanager
def _one_transaction() -> Iterator[Connection]:
    """Commit all inserts of the block in one transaction, which is several times faster than one commit each."""
    if (current := _current.get()) is not None:
        yield current
        return
    with connection() as conn:
        token = _current.set(conn)
        try:
            yield conn
        finally:
            _current.reset(token)


def _insert(table: Table, **values: Any) -> None:
    with _one_transaction() as conn:
        conn.execute(insert(table), values)
