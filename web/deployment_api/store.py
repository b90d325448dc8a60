"""Store items: put, get, delete, search, and list namespaces."""

from __future__ import annotations

from typing import Any, ClassVar

from flask import Response, jsonify
from marshmallow import ValidationError
from sqlalchemy import Connection

from shared import store, store_vectors
from shared.errors import Conflict, Invalid
from shared.hosts import calls
from shared.infra.postgres import connection
from shared.infra.replica import read
from shared.records import TEXT, listed, or_null, record
from shared.user_code import authorization
from shared.user_code.authorization import Granted
from web.gate.context import allow, deployment, unchecked_deployment, user
from web.schemas import fields
from web.schemas.operations import RouteGroup
from web.schemas.validation import checked

bp = RouteGroup("store", section="Store", switches=("disable_store",))

NAMESPACES = record("StoreNamespaces", namespaces=listed(listed(TEXT)))

MAX_ITEMS = 1_000
ANY_LABEL = "*"


class Indexed(fields.Field):
    """Parts of a value that semantic search covers: paths, false for none, or null for the configured ones."""

    type_rule = fields.Rule("must be false or an array of paths", "value_error")
    json_schema: ClassVar[dict[str, Any]] = {
        "anyOf": [{"type": "boolean", "enum": [False]}, {"type": "array", "items": {"type": "string"}}]
    }

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if value is False or (isinstance(value, list) and all(isinstance(path, str) for path in value)):
            return value
        raise ValidationError([self.type_rule])


class Label(fields.StrictString):
    """A label of a namespace."""

    json_schema: ClassVar[dict[str, Any]] = {"pattern": r"^[^.]+$"}

    def __init__(self) -> None:
        super().__init__(min_length=1, max_length=store.MAX_LABEL)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        label = super()._deserialize(value, attr, data, **kwargs)
        if "." in label:
            raise ValidationError([fields.Rule("must not contain dots", "string_pattern_mismatch")])
        return label


def namespace_field(meaning: str, **options: Any) -> fields.ListOf:
    """Return the field of a namespace, or of a part of one."""
    return fields.ListOf(Label(), max_items=store.MAX_LABELS, metadata={"description": meaning}, **options)


class ItemPut(fields.Schema):
    example: ClassVar[dict[str, Any]] = {
        "namespace": ["notes"],
        "key": "greeting",
        "value": {"text": "Hello"},
    }

    namespace = namespace_field("At least one label. The first must not be `langgraph`", required=True)
    key = fields.StrictString(required=True, max_length=store.MAX_KEY)
    value = fields.JsonObject(required=True, max_bytes=store.MAX_VALUE_BYTES, searchable=True)
    index = Indexed(allow_none=True)
    ttl = fields.StrictNumber(minimum=0, maximum=store.MAX_TTL_MINUTES, allow_none=True)


class ItemQuery(fields.Schema):
    namespace = fields.StrictString(
        load_default="", metadata={"description": "Labels of the namespace, joined by dots"}
    )
    key = fields.StrictString(metadata={"description": "Required: without it the response is 400"})
    refresh_ttl = fields.QueryBoolean()


class ItemDelete(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"namespace": ["notes"], "key": "greeting"}

    namespace = fields.ListOf(fields.StrictString(), load_default=list)
    key = fields.StrictString(required=True)


class ItemSearch(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"namespace_prefix": ["notes"]}

    namespace_prefix = namespace_field(
        "Only items in this namespace and below it are returned", allow_none=True
    )
    filter = fields.Filter(allow_none=True)
    limit = fields.StrictInteger(minimum=1, maximum=MAX_ITEMS, load_default=10)
    offset = fields.StrictInteger(minimum=0, maximum=fields.MAX_OFFSET, load_default=0)
    query = fields.StrictString(
        allow_none=True,
        metadata={
            "description": "Text for semantic search. Allowed only if the project's configuration has `store.index`"
        },
    )
    refresh_ttl = fields.StrictBoolean(allow_none=True)


class NamespaceSearch(fields.Schema):
    prefix = namespace_field("`*` matches any label", allow_none=True)
    suffix = namespace_field("`*` matches any label", allow_none=True)
    max_depth = fields.StrictInteger(minimum=1, maximum=store.MAX_LABELS, allow_none=True)
    limit = fields.StrictInteger(minimum=1, maximum=MAX_ITEMS, load_default=100)
    offset = fields.StrictInteger(minimum=0, maximum=fields.MAX_OFFSET, load_default=0)


class SearchScope(fields.Schema):
    """The part of an ItemSearch that an authorization handler may rewrite."""

    namespace = fields.ListOf(fields.StrictString(), load_default=list)
    filter = fields.Filter(allow_none=True)


class NamespaceScope(fields.Schema):
    """The part of a NamespaceSearch that an authorization handler may rewrite."""

    namespace = fields.ListOf(fields.StrictString())


@bp.operation(
    "PUT /store/items", "Put a store item", role="run", body=ItemPut, status=204, errors=(400, 409, 424, 504)
)
def put_item(body: dict[str, Any]) -> None:
    """Put an item, and replace the one under the same namespace and key. `ttl` is in minutes."""
    value = {name: body.get(name) for name in ("namespace", "key", "value", "index", "ttl")}
    body = _rewritten(ItemPut, body, allow("store", "put", **value))
    store.check_namespace(body["namespace"])
    config = _config()
    indexed = None
    if config.has_index:
        op = {"op": "put", "value": body["value"], "index": body.get("index")}
        indexed = store_vectors.ItemVectors.of(op, _embed(op))
    with connection() as conn:
        store.put(
            conn,
            deployment().id,
            body["namespace"],
            body["key"],
            body["value"],
            ttl_minutes=body.get("ttl", config.default_ttl),
            indexed=indexed,
        )


def _rewritten(schema: type[fields.Schema], sent: dict[str, Any], granted: Granted) -> dict[str, Any]:
    """Return a request as its authorization handler left it, validated like the request. Raises SchemaViolation.

    Raises Denied (500) if the handler left no namespace, or added a `*`, which would match the namespaces of all users.
    Labels with dots are refused: each would become several labels, and could lead to the namespace of another user.
    """
    if user() is None:
        return sent
    if "namespace" not in granted.value:  # the call would otherwise cover the whole store
        authorization.fail(unchecked_deployment(), "a store handler returned no namespace")
    rewritten = {name: granted.value.get(name) for name in schema._declared_fields}
    body = checked(schema, {name: value for name, value in rewritten.items() if value is not None}, "body")
    labels = body.get("namespace") or []
    store.check_labels(labels, loc=("body", "namespace"))
    if labels.count(ANY_LABEL) > (sent.get("namespace") or []).count(ANY_LABEL):
        authorization.fail(
            unchecked_deployment(), f"a store handler added a wildcard to the namespace {labels}"
        )
    nulls = {name: None for name, value in sent.items() if value is None and name not in body}
    return {**body, **nulls}


def _config() -> store.StoreConfig:
    with connection() as conn:
        return store.config_of(conn, deployment().active_revision_id)


def _embed(op: dict[str, Any]) -> dict[str, Any]:
    """Return the vectors of a store operation, which a graph host computes with the project's embeddings.

    Raises Conflict if the deployment serves no revision.
    """
    serving = deployment()
    if serving.active_revision_id is None:
        raise Conflict("This deployment serves no revision yet. Poll its latest revision.")
    return calls.embed(serving.id, serving.active_revision_id, serving.pool, [op])[0]


@bp.operation(
    "GET /store/items",
    "Get a store item",
    role="read",
    query=ItemQuery,
    answer=or_null(store.RECORD.schema),
    errors=(400,),
)
def get_item(query: dict[str, Any]) -> Response:
    """Get an item, or null if there is none. The labels of `namespace` are joined by dots."""
    if "key" not in query:
        raise Invalid("Key is required", loc=("query", "key"), kind="missing", status=400)
    item = {"namespace": query["namespace"].split(".") if query["namespace"] else [], "key": query["key"]}
    refresh = query.get("refresh_ttl")
    item = _rewritten(ItemDelete, item, allow("store", "get", **item, refresh_ttl=refresh))
    with connection() as conn:
        if refresh is None:
            refresh = store.config_of(conn, deployment().active_revision_id).refresh_on_read
        stored = store.get(conn, deployment().id, item["namespace"], item["key"], refresh=refresh)
    return jsonify(stored)


@bp.operation("DELETE /store/items", "Delete a store item", role="run", body=ItemDelete, status=204)
def delete_item(body: dict[str, Any]) -> None:
    item = {"namespace": body["namespace"], "key": body["key"]}
    body = _rewritten(ItemDelete, item, allow("store", "delete", **item))
    with connection() as conn:
        store.delete(conn, deployment().id, body["namespace"], body["key"])


@bp.operation(
    "POST /store/items/search",
    "Search store items",
    role="read",
    slow=True,
    body=ItemSearch,
    answer=record("StoreItems", items=listed(store.RECORD.search_schema)),
    errors=(400, 409, 424, 504),
)
def search_items(body: dict[str, Any]) -> Response:
    """Search the items below a namespace prefix, which matches whole labels.

    `filter` compares values for equality, or with `$eq $ne $gt $gte $lt $lte`. `query` sorts the items by similarity of
    meaning, nearest first; it needs a `store.index` in the project's configuration.
    """
    scope = {"namespace": body.get("namespace_prefix") or [], "filter": body.get("filter")}
    rest = {name: body.get(name) for name in ("limit", "offset", "query", "refresh_ttl")}
    scope = _rewritten(SearchScope, scope, allow("store", "search", **scope, **rest))
    prefix = scope["namespace"]
    config, near, refresh = _config(), None, body.get("refresh_ttl")
    if refresh is None:
        refresh = config.refresh_on_read
    if body.get("query"):
        if not config.has_index:
            reason = "query: this deployment's store has no index for semantic search"
            raise Invalid(reason, loc=("body", "query"))
        near = _embed({"op": "search", "query": body["query"]})["near"]

    def search(conn: Connection) -> list[dict[str, Any]]:
        return store.search(
            conn,
            deployment().id,
            prefix,
            filter=scope.get("filter"),
            limit=body["limit"],
            offset=body["offset"],
            refresh=refresh,
            near=near,
        )

    if not refresh:
        return jsonify(items=read(search))
    with connection() as conn:
        return jsonify(items=search(conn))


@bp.operation(
    "POST /store/namespaces",
    "List namespaces that hold items",
    role="read",
    slow=True,
    body=NamespaceSearch,
    answer=NAMESPACES,
)
def list_namespaces(body: dict[str, Any]) -> Response:
    """List namespaces. `*` in a prefix or suffix matches any one label. `max_depth` shortens deeper namespaces."""
    rest = {name: body.get(name) for name in ("suffix", "max_depth", "limit", "offset")}
    scope = {"namespace": body.get("prefix")}
    scope = _rewritten(NamespaceScope, scope, allow("store", "list_namespaces", **scope, **rest))
    ends = {"prefix": scope.get("namespace"), "suffix": body.get("suffix")}
    namespaces = read(
        store.namespaces,
        deployment().id,
        matches=[(kind, labels) for kind, labels in ends.items() if labels],
        max_depth=body.get("max_depth"),
        limit=body["limit"],
        offset=body["offset"],
    )
    return jsonify(namespaces=namespaces)
