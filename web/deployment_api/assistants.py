"""Assistants: create, read, change, search, list and activate versions, read the graph and its schemas."""

from __future__ import annotations

from typing import Any, ClassVar, cast
from uuid import UUID, uuid4

from flask import Response, jsonify, request
from sqlalchemy import Connection, RowMapping

from shared import assistants
from shared.errors import Invalid, NotFound
from shared.infra.postgres import connection
from shared.infra.replica import read
from shared.records import (
    ANYTHING,
    BOOLEAN,
    COUNT,
    OBJECT,
    OBJECT_OR_NULL,
    TEXT,
    listed,
    mapped,
    record,
    selection,
)
from shared.runs import backlog, cancel
from shared.runs.signals import notify_next, publish_cancels
from shared.user_code import filters
from shared.user_code.authorization import Ask, Granted
from web.deployment_api.protocols.options import AssistantMetadata
from web.gate.context import allow, allow_all, deployment, metadata_of, settings
from web.http.responses import PAGE_HEADERS, page, select_fields
from web.schemas import fields
from web.schemas.openapi_examples import GRAPH
from web.schemas.operations import RouteGroup
from web.schemas.validation import uuid_path

bp = RouteGroup("assistants", section="Assistants", switches=("disable_assistants",))

NODE = record(
    "GraphNode", ("type", "data", "metadata"), id=TEXT, type=TEXT, data=record(name=TEXT), metadata=OBJECT
)
EDGE = record(
    "GraphEdge", ("conditional", "data"), source=TEXT, target=TEXT, conditional=BOOLEAN, data=ANYTHING
)
DRAWING = record("GraphDrawing", nodes=listed(NODE), edges=listed(EDGE))
SCHEMAS: dict[str, Any] = dict.fromkeys(
    ("input_schema", "output_schema", "state_schema", "config_schema", "context_schema"), OBJECT_OR_NULL
)
GRAPH_SCHEMAS = record("GraphSchemas", graph_id=TEXT, **SCHEMAS)
SUBGRAPHS = mapped(record("SubgraphSchemas", **SCHEMAS))

METADATA_BYTES = 64 * 1024
CONFIG_BYTES = 256 * 1024


class Config(fields.Schema):
    tags = fields.ListOf(fields.StrictString())
    recursion_limit = fields.StrictInteger(minimum=1)
    max_concurrency = fields.StrictInteger(minimum=1, allow_none=True)
    configurable = fields.JsonObject()
    metadata = fields.JsonObject(searchable=True)


class ConfigField(fields.JsonObject):
    """A graph configuration. Known keys are validated, the others are stored as sent."""

    json_schema: ClassVar[dict[str, Any]] = {
        "properties": {
            "tags": {"type": "array", "items": {"type": "string"}},
            "recursion_limit": {"type": "integer", "minimum": 1},
            "max_concurrency": {"type": ["integer", "null"], "minimum": 1},
            "configurable": OBJECT,
            "metadata": OBJECT,
        }
    }

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        config = super()._deserialize(value, attr, data, **kwargs)
        known = cast("dict[str, Any]", CONFIG.load(config))
        return {**config, **known}


CONFIG = Config()


class AssistantContent(fields.Schema):
    config = ConfigField(max_bytes=CONFIG_BYTES)
    context = fields.JsonObject(max_bytes=CONFIG_BYTES)
    metadata = AssistantMetadata(max_bytes=METADATA_BYTES, searchable=True)
    name = fields.StrictString(max_length=1024)
    description = fields.StrictString(max_length=65_536, allow_none=True)


class AssistantCreate(AssistantContent):
    example: ClassVar[dict[str, Any]] = {"graph_id": GRAPH, "name": "My assistant"}

    graph_id = fields.StrictString(required=True)
    assistant_id = fields.UuidField()
    if_exists = fields.OneOf("raise", "do_nothing")


class AssistantPatch(AssistantContent):
    example: ClassVar[dict[str, Any]] = {"name": "My assistant"}

    graph_id = fields.StrictString()


class AssistantFilter(fields.Schema):
    metadata = fields.Filter()
    graph_id = fields.StrictString()
    name = fields.StrictString()


class AssistantSearch(AssistantFilter):
    example: ClassVar[dict[str, Any]] = {"limit": 10}

    limit = fields.StrictInteger(minimum=1, maximum=1000, load_default=10)
    offset = fields.StrictInteger(minimum=0, maximum=fields.MAX_OFFSET, load_default=0)
    sort_by = fields.OneOf(*assistants.SORTABLE, load_default="created_at")
    sort_order = fields.OneOf("asc", "desc", load_default="desc")
    select = fields.ListOf(fields.OneOf(*assistants.RECORD.selectable))


class VersionSearch(fields.Schema):
    metadata = fields.Filter()
    limit = fields.StrictInteger(minimum=1, maximum=1000, load_default=10)
    offset = fields.StrictInteger(minimum=0, maximum=fields.MAX_OFFSET, load_default=0)


class VersionChoice(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"version": 1}

    version = fields.StrictInteger(required=True)


class DeleteQuery(fields.Schema):
    delete_threads = fields.QueryBoolean()


class Xray(fields.Field):
    """Levels of subgraphs that a drawing expands: a number, `true` for all, `false` for none."""

    json_schema: ClassVar[dict[str, Any]] = {
        "anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 0}]
    }

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        word = value.lower()
        if word in ("false", "0"):
            return "0"
        if word == "true":
            return "all"
        if word.isascii() and word.isdigit() and int(word) > 0:
            return str(int(word))
        raise Invalid("Invalid xray value", loc=("query", "xray"))


class GraphQuery(fields.Schema):
    xray = Xray(load_default="0")


class SubgraphsQuery(fields.Schema):
    recurse = fields.QueryBoolean(load_default=False)


def refuse_two_configurations(body: dict[str, Any]) -> None:
    """Raise Invalid for a body with both `context` and `config.configurable`, which are two names for one thing."""
    if body.get("context") and body.get("config", {}).get("configurable"):
        raise Invalid(
            "Cannot specify both configurable and context. Prefer setting context alone.",
            loc=("body", "config", "configurable"),
            status=400,
        )


def _content(body: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an assistant's content that authorization handlers see."""
    return {
        "config": body.get("config", {}),
        "context": body.get("context"),
        "metadata": body.get("metadata", {}),
    }


def _id_of(assistant: str) -> UUID:
    """Return the id of the assistant that a path names, by its UUID or by the graph whose default assistant it is.

    Does not look it up: authorization runs before `_require_name`.
    """
    try:
        return uuid_path(assistant, "assistant_id")
    except Invalid:
        return assistants.default_id(assistant)


def _require_name(conn: Connection, assistant: str, key: UUID) -> None:
    """Raise Invalid for a path that names an assistant by neither a UUID nor a graph of the serving revision."""
    is_named_by_graph = key == assistants.default_id(assistant)
    if is_named_by_graph and assistant not in assistants.graph_ids(conn, deployment()):
        message = "Invalid assistant ID: must be a UUID or the id of a graph"
        raise Invalid(message, loc=("path", "assistant_id"), kind="uuid_parsing")


def _lock_visible(conn: Connection, assistant_id: UUID, granted: Granted) -> None:
    """Lock an assistant until the transaction ends, if the grant has a filter.

    Raises NotFound for an assistant that is missing or hidden by the filter. Does nothing without a filter.
    """
    missing = assistants.missing(assistant_id)
    filters.require_assistant(conn, deployment().id, assistant_id, granted.filter, lock=True, error=missing)


@bp.operation(
    "POST /assistants",
    "Create an assistant",
    role="run",
    body=AssistantCreate,
    answer=assistants.RECORD.schema,
    errors=(400, 404, 409),
)
def create_assistant(body: dict[str, Any]) -> Response:
    """Create a named configuration of a graph, as version 1."""
    refuse_two_configurations(body)
    key = body.pop("assistant_id", None) or uuid4()
    granted = allow(
        "assistants",
        "create",
        assistant_id=key,
        graph_id=body["graph_id"],
        **_content(body),
        name=body.get("name", assistants.UNTITLED),
    )
    body["metadata"] = metadata_of(granted)
    with connection() as conn:
        row = assistants.create(conn, deployment(), assistant_id=key, visible=granted.filter, **body)
    return jsonify(assistants.RECORD.show(row))


@bp.operation(
    "GET /assistants/<assistant_id>",
    "Get an assistant",
    role="read",
    answer=assistants.RECORD.schema,
    errors=(404,),
)
def get_assistant(assistant_id: str) -> Response:
    key = _id_of(assistant_id)
    granted = allow("assistants", "read", assistant_id=key)
    with connection() as conn:
        _require_name(conn, assistant_id, key)
        filters.require_assistant(conn, deployment().id, key, granted.filter)
        return jsonify(assistants.RECORD.show(assistants.get(conn, deployment().id, key)))


@bp.operation(
    "PATCH /assistants/<assistant_id>",
    "Update an assistant, and activate the new version",
    role="run",
    body=AssistantPatch,
    answer=assistants.RECORD.schema,
    errors=(400, 404, 409),
)
def change_assistant(assistant_id: str, body: dict[str, Any]) -> Response:
    key = _id_of(assistant_id)
    refuse_two_configurations(body)
    named = {"graph_id": body.get("graph_id"), "name": body.get("name")}
    granted = allow("assistants", "update", assistant_id=key, **named, **_content(body))
    if metadata := metadata_of(granted):
        body["metadata"] = metadata
    with connection() as conn:
        _require_name(conn, assistant_id, key)
        _lock_visible(conn, key, granted)
        row = assistants.change(conn, deployment(), key, body)
    return jsonify(assistants.RECORD.show(row))


@bp.operation(
    "DELETE /assistants/<assistant_id>",
    "Delete an assistant and all its versions",
    role="run",
    slow=True,
    query=DeleteQuery,
    status=204,
    errors=(404,),
)
def delete_assistant(assistant_id: str) -> None:
    key = _id_of(assistant_id)
    # Not validated by DeleteQuery, which only describes the parameter: any other value means false.
    delete_threads = request.args.get("delete_threads", "").lower() in ("true", "1")
    asks = [Ask("assistants", "delete", {"assistant_id": key})]
    if delete_threads:
        runs = {"run_ids": None, "status": None}
        asks.append(Ask("threads", "update", {"thread_id": None, "action": "interrupt", "metadata": runs}))
    granted, *of_threads = allow_all(asks)
    with connection() as conn:
        _require_name(conn, assistant_id, key)
        missing = assistants.missing_for_delete(key)
        filters.require_assistant(conn, deployment().id, key, granted.filter, lock=True, error=missing)
        live, thread_ids = assistants.delete(
            conn,
            deployment().id,
            key,
            delete_threads=delete_threads,
            of_threads=of_threads[0].filter if of_threads else None,
        )
    for thread_id, run_id in live:
        _cancel(thread_id, run_id)
    for thread_id in thread_ids:
        _delete_thread(thread_id)


def _cancel(thread_id: UUID, run_id: UUID) -> None:
    try:
        with connection() as conn:
            stopped = cancel.cancel_run(conn, deployment().id, thread_id, run_id, reason="assistant deleted")
            next_run = backlog.next_of(conn, deployment().id, thread_id)
    except NotFound:
        return  # the run has ended by itself in the meantime
    publish_cancels([stopped], settings().event_retention_seconds)
    notify_next(next_run)


def _delete_thread(thread_id: UUID) -> None:
    try:
        with connection() as conn:
            live = cancel.delete_thread(conn, deployment().id, thread_id)
    except NotFound:
        return  # another request has deleted the thread in the meantime
    publish_cancels(live, settings().event_retention_seconds)


@bp.operation(
    "POST /assistants/search",
    "Search assistants",
    role="read",
    slow=True,
    body=AssistantSearch,
    answer=listed(selection(assistants.RECORD.schema)),
    headers=PAGE_HEADERS,
    errors=(404, 409),
)
def search_assistants(body: dict[str, Any]) -> Response:
    select = body.pop("select", None)
    paging = {name: body.pop(name) for name in ("limit", "offset", "sort_by", "sort_order")}
    _allow_search(body, limit=paging["limit"], offset=paging["offset"])

    rows, total = read(assistants.search, deployment(), **paging, **body)
    records = select_fields([assistants.RECORD.show(row) for row in rows], select)
    return page(records, offset=paging["offset"], limit=paging["limit"], total=total)


def _allow_search(criteria: dict[str, Any], *, limit: int, offset: int) -> None:
    """Authorize a search. Narrows `criteria`, in place, to the assistants that the caller may see. Raises Denied."""
    metadata, graph_id = criteria.get("metadata", {}), criteria.get("graph_id")
    granted = allow("assistants", "search", graph_id=graph_id, metadata=metadata, limit=limit, offset=offset)
    criteria["metadata"] = metadata_of(granted)
    criteria["visible"] = filters.clause(granted.filter, "assistant_version.metadata")


@bp.operation(
    "POST /assistants/count",
    "Count assistants",
    role="read",
    slow=True,
    body=AssistantFilter,
    answer=COUNT,
    errors=(404, 409),
)
def count_assistants(body: dict[str, Any]) -> Response:
    _allow_search(body, limit=0, offset=0)
    return jsonify(read(assistants.count, deployment(), **body))


@bp.operation(
    "POST /assistants/<assistant_id>/versions",
    "List an assistant's versions, newest first",
    role="read",
    body=VersionSearch,
    answer=assistants.VERSION_RECORD.schema,
    many=True,
    errors=(404,),
)
def list_versions(assistant_id: str, body: dict[str, Any]) -> Response:
    key = _id_of(assistant_id)
    granted = allow("assistants", "read", assistant_id=key)
    with connection() as conn:
        _require_name(conn, assistant_id, key)
        missing = assistants.missing(key)
        filters.require_assistant(conn, deployment().id, key, granted.filter, error=missing)
        rows = assistants.versions(
            conn,
            deployment().id,
            key,
            metadata=body.get("metadata"),
            limit=body["limit"],
            offset=body["offset"],
        )
    return jsonify(rows)


@bp.operation(
    "POST /assistants/<assistant_id>/latest",
    "Set an assistant's active version",
    role="run",
    body=VersionChoice,
    answer=assistants.RECORD.schema,
    errors=(404,),
)
def set_latest_version(assistant_id: str, body: dict[str, Any]) -> Response:
    key = _id_of(assistant_id)
    granted = allow("assistants", "update", assistant_id=key, version=body["version"])
    with connection() as conn:
        _require_name(conn, assistant_id, key)
        _lock_visible(conn, key, granted)
        row = assistants.set_latest(conn, deployment().id, key, body["version"])
    return jsonify(assistants.RECORD.show(row))


def _graph(assistant: str) -> RowMapping:
    """Return the stored graph of an assistant, which is named by its id or by a graph id. Raises NotFound."""
    key = assistants.named_id(assistant)
    granted = allow("assistants", "read", assistant_id=key)
    with connection() as conn:
        filters.require_assistant(conn, deployment().id, key, granted.filter)
        return assistants.graph(conn, deployment(), assistant)


@bp.operation(
    "GET /assistants/<assistant_id>/graph",
    "Get the nodes and edges of an assistant's graph",
    role="read",
    query=GraphQuery,
    answer=DRAWING,
    errors=(404,),
)
def get_graph(assistant_id: str, query: dict[str, Any]) -> Response:
    depth = query["xray"]
    drawings = _graph(assistant_id)["drawings"]
    return jsonify(drawings.get(depth) or drawings["all"])


@bp.operation(
    "GET /assistants/<assistant_id>/schemas",
    "Get the JSON schemas of an assistant's graph",
    role="read",
    answer=GRAPH_SCHEMAS,
    errors=(404,),
)
def get_schemas(assistant_id: str) -> Response:
    graph = _graph(assistant_id)
    return jsonify({"graph_id": graph["graph_id"], **graph["schemas"]})


@bp.operation(
    ("GET /assistants/<assistant_id>/subgraphs", "GET /assistants/<assistant_id>/subgraphs/<path:namespace>"),
    "Get the schemas of an assistant's subgraphs",
    role="read",
    query=SubgraphsQuery,
    answer=SUBGRAPHS,
    errors=(404,),
)
def get_subgraphs(assistant_id: str, query: dict[str, Any], namespace: str | None = None) -> Response:
    recurse = query["recurse"]
    subgraphs = _graph(assistant_id)["subgraphs"]
    return jsonify(
        {name: described for name, described in subgraphs.items() if _is_selected(name, namespace, recurse)}
    )


def _is_selected(name: str, namespace: str | None, recurse: bool) -> bool:
    """Return whether a subgraph is the one at `namespace` or, without a namespace, directly in the graph.

    `recurse` also selects all subgraphs below.
    """
    if namespace is None:
        return recurse or "|" not in name
    return name == namespace or (recurse and name.startswith(f"{namespace}|"))
