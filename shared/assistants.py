"""Assistants: named, versioned configurations of a graph.

A version contains what the caller sent and inherits no configuration of an earlier version. One version is active. A
run uses the version that is active when the run is created.

Statements here are SQLAlchemy expressions, because the caller chooses filters, order and changed columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4, uuid5

from cachetools import LRUCache
from sqlalchemy import ColumnElement, Connection, RowMapping, Select, func, select, text, update
from sqlalchemy import delete as delete_from
from sqlalchemy.dialects.postgresql import insert

from shared.deployments import shares
from shared.deployments.deployments import DeploymentRef
from shared.deployments.shares import Share
from shared.errors import Conflict, Invalid, NotFound
from shared.infra.postgres import dumps, query
from shared.models import ASSISTANT, ASSISTANT_VERSION, GRAPH
from shared.records import ID, OBJECT, TEXT, TEXT_OR_NULL, TIME, Record, RecordField
from shared.sql import Conn, pages, statement
from shared.user_code import filters
from shared.user_code.filters import Filter

# Clients compute the ids of default assistants themselves: UUID version 5 of the graph id in this namespace.
NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")

SORTABLE = {
    "assistant_id": ASSISTANT.c.assistant_id,
    "created_at": ASSISTANT.c.created_at,
    "updated_at": ASSISTANT.c.updated_at,
    "name": ASSISTANT_VERSION.c.name,
    "graph_id": ASSISTANT_VERSION.c.graph_id,
}
FIELDS = {
    "assistant_id": RecordField(ID),
    "graph_id": RecordField(TEXT),
    "config": RecordField(OBJECT),
    "context": RecordField(OBJECT),
    "metadata": RecordField(OBJECT),
    "name": RecordField(TEXT),
    "created_at": RecordField(TIME),
    "updated_at": RecordField(TIME),
    "version": RecordField({"type": "integer", "minimum": 1}),
    "description": RecordField(TEXT_OR_NULL),
}
RECORD = Record("Assistant", FIELDS, internal=["last_version"])
VERSION_RECORD = Record(
    "AssistantVersion", {name: field for name, field in FIELDS.items() if name != "updated_at"}
)
CONTENT = ("graph_id", "config", "context", "metadata", "name", "description")  # a version's fields
UNTITLED = "Untitled"
NOTHING_SERVES = "The deployment has no serving revision yet. Poll its latest revision."


def default_id(graph_id: str) -> UUID:
    """Return the id of a graph's default assistant."""
    return uuid5(NAMESPACE, graph_id)


def _active() -> Select[*tuple[Any, ...]]:
    """Select assistants with the content of their active versions."""
    columns = ((ASSISTANT_VERSION if name in CONTENT else ASSISTANT).c[name] for name in RECORD.columns)
    return select(*columns).join_from(
        ASSISTANT,
        ASSISTANT_VERSION,
        (ASSISTANT_VERSION.c.deployment_id == ASSISTANT.c.deployment_id)
        & (ASSISTANT_VERSION.c.assistant_id == ASSISTANT.c.assistant_id)
        & (ASSISTANT_VERSION.c.version == ASSISTANT.c.version),
    )


def get(conn: Connection, deployment_id: UUID, assistant_id: UUID) -> RowMapping:
    """Return an assistant with its active version. Raises NotFound."""
    query = _active().where(
        ASSISTANT.c.deployment_id == deployment_id, ASSISTANT.c.assistant_id == assistant_id
    )
    row = conn.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFound("Not Found")
    return row


def missing(assistant_id: UUID) -> NotFound:
    """Return the error for changing a missing assistant or listing its versions."""
    return NotFound(f"Assistant {assistant_id} not found")


def missing_for_delete(assistant_id: UUID) -> NotFound:
    return NotFound(f"Assistant with ID {assistant_id} not found")


def already_exists(assistant_id: UUID) -> Conflict:
    return Conflict(f"Assistant {assistant_id} already exists")


def create(
    conn: Connection,
    deployment: DeploymentRef,
    *,
    graph_id: str,
    assistant_id: UUID | None = None,
    config: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    name: str | None = None,
    description: str | None = None,
    if_exists: str = "raise",
    visible: Filter | None = None,
) -> RowMapping:
    """Insert an assistant with version 1. Raises NotFound (graph), Conflict (id taken).

    With `if_exists="do_nothing"`, returns the existing assistant, unless the filter `visible` hides it.
    """
    _require_graph(conn, deployment, graph_id)
    assistant_id = assistant_id or uuid4()
    inserted = conn.execute(
        insert(ASSISTANT)
        .values(deployment_id=deployment.id, assistant_id=assistant_id)
        .on_conflict_do_nothing()
        .returning(ASSISTANT.c.assistant_id)
    )
    if inserted.one_or_none() is None:
        if if_exists == "do_nothing" and filters.is_assistant_visible(
            conn, deployment.id, assistant_id, visible
        ):
            return get(conn, deployment.id, assistant_id)
        raise already_exists(assistant_id)
    config, context = _fill_in_context(config or {}, context or {})
    _add_version(
        conn,
        deployment.id,
        assistant_id,
        1,
        graph_id=graph_id,
        config=config,
        context=context,
        metadata=metadata or {},
        name=UNTITLED if name is None else name,
        description=description,
    )
    return get(conn, deployment.id, assistant_id)


def _fill_in_context(
    config: Mapping[str, Any], context: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Copy `context` to `config.configurable` or the other way round: both name the same values. `context` wins."""
    if context:
        return {**config, "configurable": context}, context
    return config, config.get("configurable", {})


def _add_version(
    conn: Connection, deployment_id: UUID, assistant_id: UUID, version: int, **content: Any
) -> None:
    conn.execute(
        insert(ASSISTANT_VERSION).values(
            deployment_id=deployment_id, assistant_id=assistant_id, version=version, **content
        )
    )


def change(
    conn: Connection, deployment: DeploymentRef, assistant_id: UUID, changes: Mapping[str, Any]
) -> RowMapping:
    """Insert a version with these changes and activate it. Raises NotFound (assistant or graph).

    `config` and `context` hold the same values: sending either replaces it whole. Metadata is merged. All other fields
    are replaced if sent, else copied from the active version.
    """
    old = _lock(conn, deployment.id, assistant_id)
    if "graph_id" in changes:
        _require_graph(conn, deployment, changes["graph_id"])
    content = {name: changes.get(name, old[name]) for name in CONTENT}
    content["metadata"] = {**old["metadata"], **changes.get("metadata", {})}
    content["config"], content["context"] = _configuration(old, changes)
    number = old["last_version"] + 1
    _add_version(conn, deployment.id, assistant_id, number, **content)
    _activate(conn, deployment.id, assistant_id, version=number, last_version=number)
    return get(conn, deployment.id, assistant_id)


def _configuration(
    old: RowMapping, changes: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the `config` and `context` of a new version. A sent `context` wins over `config.configurable`."""
    config, context = changes.get("config"), changes.get("context")
    if context:
        return {**(config or {}), "configurable": context}, context
    if config and "configurable" in config:
        return config, config["configurable"]
    if context is not None:
        kept = old["config"] if config is None else config
        return {key: value for key, value in kept.items() if key != "configurable"}, {}
    if config is not None:
        return config, old["context"]
    return old["config"], old["context"]


def _lock(conn: Connection, deployment_id: UUID, assistant_id: UUID) -> RowMapping:
    locked = conn.execute(
        select(ASSISTANT.c.assistant_id)
        .where(ASSISTANT.c.deployment_id == deployment_id, ASSISTANT.c.assistant_id == assistant_id)
        .with_for_update()
    )
    if locked.one_or_none() is None:
        raise missing(assistant_id)
    return get(conn, deployment_id, assistant_id)


def _activate(conn: Connection, deployment_id: UUID, assistant_id: UUID, **columns: Any) -> None:
    conn.execute(
        update(ASSISTANT)
        .where(ASSISTANT.c.deployment_id == deployment_id, ASSISTANT.c.assistant_id == assistant_id)
        .values(updated_at=func.now(), **columns)
    )


def set_latest(conn: Connection, deployment_id: UUID, assistant_id: UUID, version: int) -> RowMapping:
    """Activate an existing version with all its content. Raises NotFound."""
    last = _lock(conn, deployment_id, assistant_id)["last_version"]
    if not 1 <= version <= last:  # versions are never deleted one by one
        raise NotFound(f"Version {version} not found for assistant {assistant_id}")
    _activate(conn, deployment_id, assistant_id, version=version)
    return get(conn, deployment_id, assistant_id)


def versions(
    conn: Connection,
    deployment_id: UUID,
    assistant_id: UUID,
    *,
    metadata: Mapping[str, Any] | None,
    limit: int,
    offset: int,
) -> list[dict[str, Any]]:
    """Return an assistant's versions, newest first. Raises NotFound."""
    query = (
        select(*(ASSISTANT_VERSION.c[name] for name in VERSION_RECORD.columns))
        .where(
            ASSISTANT_VERSION.c.deployment_id == deployment_id,
            ASSISTANT_VERSION.c.assistant_id == assistant_id,
        )
        .order_by(ASSISTANT_VERSION.c.version.desc())
        .limit(limit)
        .offset(offset)
    )
    if metadata:
        query = query.where(ASSISTANT_VERSION.c.metadata.contains(metadata))
    rows = [dict(row) for row in conn.execute(query).mappings()]
    if not rows:
        try:
            get(conn, deployment_id, assistant_id)
        except NotFound:
            raise missing(assistant_id) from None
    return rows


def _matching(deployment_id: UUID, criteria: Mapping[str, Any]) -> list[Any]:
    where = [ASSISTANT.c.deployment_id == deployment_id]
    if criteria.get("metadata"):
        where.append(ASSISTANT_VERSION.c.metadata.contains(criteria["metadata"]))
    where += criteria.get("visible") or ()
    if criteria.get("graph_id") is not None:
        where.append(ASSISTANT_VERSION.c.graph_id == criteria["graph_id"])
    if criteria.get("name"):
        where.append(ASSISTANT_VERSION.c.name.icontains(criteria["name"], autoescape=True))
    return where


def search(
    conn: Connection,
    deployment: DeploymentRef,
    *,
    limit: int,
    offset: int,
    sort_by: str = "created_at",
    sort_order: str = "desc",
    **criteria: Any,
) -> tuple[Sequence[RowMapping], int]:
    """Return a page of the assistants that match all filters (`metadata`, `graph_id`, `name`) and the conditions `visible`.

    Also returns the number of matches as `pages` counts them. Raises NotFound (graph).
    """
    if criteria.get("graph_id") is not None:
        _require_graph(conn, deployment, criteria["graph_id"])
    column = SORTABLE[sort_by]
    order = column.asc() if sort_order == "asc" else column.desc()
    matching = _matching(deployment.id, criteria)
    found = _active().where(*matching).order_by(order, ASSISTANT.c.assistant_id)
    return pages.select_page(conn, found, _counted(matching), limit=limit, offset=offset)


def count(conn: Connection, deployment: DeploymentRef, **criteria: Any) -> int:
    """Return the number of assistants that match all filters. Raises NotFound (graph)."""
    if criteria.get("graph_id") is not None:
        _require_graph(conn, deployment, criteria["graph_id"])
    return pages.count(conn, _counted(_matching(deployment.id, criteria)))


def _counted(matching: Sequence[ColumnElement[bool]]) -> Select[*tuple[Any, ...]]:
    """Select the assistants to count. Without criteria, their versions are not read: each has an active one."""
    if len(matching) == 1:
        return select(ASSISTANT.c.assistant_id).where(*matching)
    return _active().with_only_columns(ASSISTANT.c.assistant_id, maintain_column_froms=True).where(*matching)


def delete(
    conn: Connection,
    deployment_id: UUID,
    assistant_id: UUID,
    *,
    delete_threads: bool,
    of_threads: Filter | None = None,
) -> tuple[list[tuple[UUID, UUID]], list[UUID]]:
    """Delete an assistant with all its versions. Raises NotFound.

    Returns the work that is left to the caller: `(thread id, run id)` pairs of live runs to cancel, and the ids of
    threads to delete. The latter are empty without `delete_threads`, and only threads that the filter matches are
    included.
    """
    gone = conn.execute(
        delete_from(ASSISTANT).where(
            ASSISTANT.c.deployment_id == deployment_id, ASSISTANT.c.assistant_id == assistant_id
        )
    )
    if gone.rowcount == 0:
        raise missing_for_delete(assistant_id)
    key = {"deployment_id": deployment_id, "assistant_id": assistant_id}
    live = conn.execute(
        text(
            "SELECT thread_id, run_id FROM run WHERE deployment_id = :deployment_id"
            " AND assistant_id = :assistant_id AND is_live(status)"
        ),
        key,
    ).all()
    thread_ids: list[UUID] = []
    if delete_threads:
        visible, values = filters.condition(of_threads, "metadata")
        rows = statement("assistants.threads", visible=visible).rows(
            conn, **values, deployment_id=deployment_id, assistant_id=str(assistant_id)
        )
        thread_ids = [row["thread_id"] for row in rows]
    return [(row.thread_id, row.run_id) for row in live], thread_ids


def graph_ids(conn: Conn, deployment: DeploymentRef) -> list[str]:
    """Return the graph ids of the serving revision."""
    graphs = "SELECT graph_id FROM graph WHERE revision_id = %(revision_id)s ORDER BY graph_id"
    rows = query(conn, graphs, {"revision_id": deployment.active_revision_id})
    return [row["graph_id"] for row in rows]


_RECONFIGURE = statement("assistants.reconfigure")


def reconfigure_default(
    conn: Connection, deployment_id: UUID, graph_id: str, config: Mapping[str, Any], description: str | None
) -> None:
    """Set the configuration and description of a graph's default assistant, unless a caller has changed it."""
    _RECONFIGURE.count(
        conn,
        deployment_id=deployment_id,
        assistant_id=default_id(graph_id),
        config=dumps(config),
        context=dumps(config.get("configurable", {})),
        description=description,
    )


def reconfigure_defaults(conn: Connection, deployment_id: UUID, revision_id: UUID) -> None:
    """Set configurations and descriptions of a revision's default assistants, as its build computed them.

    Does nothing for revisions that were built without this information.
    """
    query = text("SELECT manifest -> 'configs' FROM revision WHERE id = :id")
    configs = conn.execute(query, {"id": revision_id}).scalar()
    if configs is None:
        return
    of_revision = text("SELECT graph_id, description FROM graph WHERE revision_id = :id")
    for graph_id, description in conn.execute(of_revision, {"id": revision_id}).all():
        reconfigure_default(conn, deployment_id, graph_id, configs.get(graph_id, {}), description)


def revision_of_thread(conn: Connection, deployment: DeploymentRef, thread_id: UUID, graph_id: str) -> UUID:
    """Return the revision of a thread's next run, whose graph interprets the thread's state. Raises Conflict."""
    serving = deployment.active_revision_id
    if serving is None:
        raise Conflict(NOTHING_SERVES)
    if not deployment.traffic:
        return serving
    query = select(GRAPH.c.revision_id).where(
        GRAPH.c.graph_id == graph_id,
        GRAPH.c.revision_id.in_([serving, *(share.revision_id for share in deployment.traffic)]),
    )
    having = conn.execute(query).scalars().all()
    return shares.choose(deployment.traffic, thread_id, serving=serving, having=having)


def _require_graph(conn: Connection, deployment: DeploymentRef, graph_id: str) -> None:
    """Raise NotFound naming the available graphs, or Conflict if no revision serves yet."""
    if deployment.active_revision_id is None:
        raise Conflict(NOTHING_SERVES)
    known = graph_ids(conn, deployment)
    if graph_id not in known:
        raise NotFound(f"Graph {graph_id!r} not found. Expected one of: {known}")


def graph(conn: Connection, deployment: DeploymentRef, assistant: str) -> RowMapping:
    """Return the stored graph of an assistant, given by its id or by a graph id. Raises NotFound."""
    graph_id = get(conn, deployment.id, named_id(assistant))["graph_id"]
    query = select(GRAPH.c.graph_id, GRAPH.c.drawings, GRAPH.c.schemas, GRAPH.c.subgraphs).where(
        GRAPH.c.revision_id == deployment.active_revision_id, GRAPH.c.graph_id == graph_id
    )
    row = conn.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFound("Not Found")
    return row


@dataclass(frozen=True, slots=True)
class Resolved:
    """An assistant's active version and the serving revision, as they are stored in a new run.

    If the traffic is split, a run gets the revision of its thread's share, among the revisions `having` the graph.
    """

    assistant_id: UUID
    graph_id: str
    config: dict[str, Any]
    context: dict[str, Any]
    metadata: dict[str, Any]
    revision_id: UUID
    pool: str
    run_timeout_seconds: float | None = None
    traffic: Sequence[Share] = ()
    having: Sequence[UUID] = ()
    versions: str = ""  # of the rows that this was read from

    def revision_for(self, thread_id: UUID) -> UUID:
        """Return the revision of a new run on this thread."""
        if not self.traffic:
            return self.revision_id
        return shares.choose(self.traffic, thread_id, serving=self.revision_id, having=self.having)


_RESOLVE = statement("create.resolve_assistant")
REMEMBERED = 1_000  # assistants per process
REMEMBERED_CHARACTERS = 64 * 1024  # largest configuration of a cached assistant
_remembered: LRUCache[tuple[UUID, str], Resolved] = LRUCache(REMEMBERED)


def remembered(deployment: DeploymentRef, assistant: str) -> Resolved | None:
    """Return what this process last read of an assistant, or None. The insert of the run checks `versions`."""
    return _remembered.get((deployment.id, assistant)) if not deployment.is_pinned else None


def _remember(deployment: DeploymentRef, assistant: str, resolved: Resolved) -> None:
    """Cache an assistant, unless the revision is pinned or the traffic is split.

    Rows of pinned revisions and of traffic shares are not covered by `versions`.
    """
    if deployment.is_pinned or resolved.traffic:
        return
    if len(dumps([resolved.config, resolved.context, resolved.metadata])) > REMEMBERED_CHARACTERS:
        return
    _remembered[deployment.id, assistant] = resolved


def _as_uuid(value: str) -> UUID | None:
    try:
        return UUID(value)
    except ValueError:
        return None


def named_id(assistant: str) -> UUID:
    """Return the id of the assistant that is named by its id or by a graph id. It may not exist."""
    return _as_uuid(assistant) or default_id(assistant)


def resolve(conn: Conn, deployment: DeploymentRef, assistant: str) -> Resolved:
    """Find the assistant of a run, by its id or by the graph id of a default assistant.

    Raises NotFound, Invalid (no such graph), Conflict (no revision serves yet).
    """
    assistant_id = _as_uuid(assistant)
    row = _RESOLVE.row(conn, deployment_id=deployment.id, assistant_id=assistant_id or default_id(assistant))
    if row is None:
        raise NotFound("Not Found")
    serving, traffic = row.pop("active_revision_id"), shares.from_stored(row.pop("traffic"))
    if deployment.is_pinned:
        serving, traffic = deployment.active_revision_id, ()
    if serving is None:
        raise Conflict(NOTHING_SERVES)
    if row["assistant_id"] is None:
        if assistant_id is None and assistant not in (known := graph_ids(conn, deployment)):
            raise Invalid(
                f"Invalid assistant: {assistant!r}. Must be either:\n- A valid assistant UUID, or\n"
                f"- One of the registered graphs: {', '.join(known)}",
                loc=("body", "assistant_id"),
            )
        raise NotFound("Thread or assistant not found.")
    row |= {"revision_id": serving, "traffic": traffic, "having": row["having"] or ()}
    resolved = Resolved(**row)
    _remember(deployment, assistant, resolved)
    return resolved
