"""Store items: put, get, delete, search, list namespaces."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify
from marshmallow import ValidationError

from shared import store
from shared.database import connection
from shared.errors import Invalid
from web.deployment_api.pages import MAX_OFFSET, deployment
from web.openapi import operation
from web.validation import (
    Field,
    JsonObject,
    ListOf,
    QueryBoolean,
    Rule,
    Schema,
    StrictBoolean,
    StrictInteger,
    StrictNumber,
    StrictString,
    load,
    load_query,
)

bp = Blueprint("store", __name__)

MAX_ITEMS = 1_000


class Indexed(Field):
    """Which parts of a value a search by meaning sees: null as configured, false none, or paths."""

    type_rule = Rule("must be false or an array of paths", "value_error")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if value is False or (isinstance(value, list) and all(isinstance(path, str) for path in value)):
            return value
        raise ValidationError([self.type_rule])


class ItemPut(Schema):
    namespace = ListOf(StrictString(), required=True)
    key = StrictString(required=True)
    value = JsonObject(required=True)
    index = Indexed(allow_none=True)
    ttl = StrictNumber(minimum=0, maximum=store.MAX_TTL_MINUTES, allow_none=True)


class ItemQuery(Schema):
    namespace = StrictString(load_default="")
    key = StrictString()
    refresh_ttl = QueryBoolean(load_default=True)


class ItemDelete(Schema):
    namespace = ListOf(StrictString(), load_default=list)
    key = StrictString(required=True)


class ItemSearch(Schema):
    namespace_prefix = ListOf(StrictString(), allow_none=True)
    filter = JsonObject(allow_none=True, searchable=True)
    limit = StrictInteger(minimum=1, maximum=MAX_ITEMS, load_default=10)
    offset = StrictInteger(minimum=0, maximum=MAX_OFFSET, load_default=0)
    query = StrictString(allow_none=True)
    refresh_ttl = StrictBoolean(allow_none=True)


class NamespaceSearch(Schema):
    prefix = ListOf(StrictString(), allow_none=True)
    suffix = ListOf(StrictString(), allow_none=True)
    max_depth = StrictInteger(minimum=1, maximum=store.MAX_LABELS, allow_none=True)
    limit = StrictInteger(minimum=1, maximum=MAX_ITEMS, load_default=100)
    offset = StrictInteger(minimum=0, maximum=MAX_OFFSET, load_default=0)


@bp.put("/store/items")
@operation("Put a store item", body=ItemPut, status=204, errors=(400,))
def put_item() -> tuple[str, int]:
    """In place of what is there under the same namespace and key; `ttl` is in minutes."""
    body = load(ItemPut)
    with connection() as conn:
        store.put(
            conn,
            deployment().id,
            body["namespace"],
            body["key"],
            body["value"],
            ttl_minutes=body.get("ttl"),
        )
    return "", 204


@bp.get("/store/items")
@operation("Get a store item", query=ItemQuery, errors=(400,))
def get_item() -> Response:
    """The labels of `namespace` are joined by dots; an item that is not there is null."""
    query = load_query(ItemQuery)
    if "key" not in query:
        raise Invalid("Key is required", loc=("query", "key"), kind="missing", status=400)
    namespace = query["namespace"].split(".") if query["namespace"] else []
    with connection() as conn:
        found = store.get(conn, deployment().id, namespace, query["key"], refresh=query["refresh_ttl"])
    return jsonify(found)


@bp.delete("/store/items")
@operation("Delete a store item", body=ItemDelete, status=204)
def delete_item() -> tuple[str, int]:
    body = load(ItemDelete)
    with connection() as conn:
        store.delete(conn, deployment().id, body["namespace"], body["key"])
    return "", 204


@bp.post("/store/items/search")
@operation("Search store items", body=ItemSearch, errors=(400,))
def search_items() -> Response:
    """Below a prefix of whole labels, by values: equality, or `$eq $ne $gt $gte $lt $lte`."""
    body = load(ItemSearch)
    prefix = body.get("namespace_prefix") or []
    store.check_labels(prefix, loc=("body", "namespace_prefix"))
    if body.get("query"):
        raise Invalid(
            "query: this deployment's store has no index to search by meaning", loc=("body", "query")
        )
    with connection() as conn:
        items = store.search(
            conn,
            deployment().id,
            prefix,
            filter=body.get("filter"),
            limit=body["limit"],
            offset=body["offset"],
            refresh=body.get("refresh_ttl") is not False,
        )
    return jsonify(items=[{**item, "score": None} for item in items])


@bp.post("/store/namespaces")
@operation("List namespaces that hold items", body=NamespaceSearch)
def list_namespaces() -> Response:
    """`*` in a prefix or suffix is any one label; `max_depth` cuts what is deeper."""
    body = load(NamespaceSearch)
    matches = []
    for kind in ("prefix", "suffix"):
        if body.get(kind):
            store.check_labels(body[kind], loc=("body", kind))
            matches.append((kind, body[kind]))
    with connection() as conn:
        found = store.namespaces(
            conn,
            deployment().id,
            matches=matches,
            max_depth=body.get("max_depth"),
            limit=body["limit"],
            offset=body["offset"],
        )
    return jsonify(namespaces=found)
