"""The store: JSON objects under a namespace and a key, shared by the API and the graphs of a deployment.

A namespace is stored as one text, each label followed by a dot (`users.42.`). Labels contain no dots, so all namespaces
below a prefix are one index range, and no other namespace falls into it. An expired item counts as missing, even before
upkeep removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import Connection, text

from shared import store_vectors, vector_indexes
from shared.errors import Invalid
from shared.infra.arrays import texts
from shared.infra.json_text import document_holds_nul
from shared.infra.postgres import Row, dumps
from shared.records import OBJECT, TEXT, TIME, TIME_OR_NULL, Record, RecordField, Show, listed
from shared.sql import statement
from shared.store_vectors import ItemVectors

# PostgreSQL refuses a value. Errors of the connection are none of these.
REFUSED = (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError)
MAX_LABELS, MAX_LABEL, MAX_KEY = 64, 512, 1024
MAX_PLACE_BYTES = 2_500  # of namespace and key together: the limit of a PostgreSQL index row
MAX_VALUE_BYTES = 4 * 1024 * 1024
MAX_TTL_MINUTES = 52_560_000  # a hundred years
SWEPT_AT_ONCE = 5_000
OPERATORS = {"$eq": "=", "$ne": "<>", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}

Namespace = Sequence[str]


def check_namespace(namespace: Namespace) -> None:
    """Raise Invalid for a namespace that cannot hold items."""
    loc = ("body", "namespace")
    if not namespace:
        raise Invalid("Namespace cannot be empty.", loc=loc, status=400)
    check_labels(namespace, loc=loc)
    if namespace[0] == "langgraph":
        raise Invalid('Root label for namespace cannot be "langgraph".', loc=loc, status=400)


def check_labels(labels: Namespace, *, loc: tuple[str | int, ...]) -> None:
    """Raise Invalid for labels that a namespace cannot have."""
    if len(labels) > MAX_LABELS:
        raise Invalid(f"namespace: at most {MAX_LABELS} labels", loc=loc)
    for label in labels:
        if not label or "." in label or "\x00" in label or len(label) > MAX_LABEL:
            raise Invalid(
                f"namespace: the label {label[:50]!r} must have 1 to {MAX_LABEL} characters and no dots",
                loc=loc,
            )


def _check_key(key: str) -> None:
    """Raise Invalid for a key that no item can have."""
    if not isinstance(key, str):  # graphs may send any type
        raise Invalid("key: must be a string", loc=("body", "key"), kind="string_type")
    if len(key) > MAX_KEY or "\x00" in key:
        raise Invalid(f"key: at most {MAX_KEY} characters, none of them NUL", loc=("body", "key"))


def _check_item(key: str, value: Mapping[str, Any]) -> None:
    """Raise Invalid for a key or value of a wrong type, that is too large, or that PostgreSQL cannot store."""
    _check_key(key)
    if not isinstance(value, Mapping):
        raise Invalid("value: must be an object", loc=("body", "value"), kind="dict_type")
    document = dumps(value)
    if len(document) > MAX_VALUE_BYTES:
        raise Invalid(f"value: at most {MAX_VALUE_BYTES} bytes of JSON", loc=("body", "value"))
    if document_holds_nul(document):
        raise Invalid("value: must not hold NUL characters", loc=("body", "value"))


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The `store` section of a revision's langgraph.json: time to live of items, and whether they are indexed."""

    default_ttl: float | None = None
    refresh_on_read: bool = True
    has_index: bool = False


def config_of(conn: Connection, revision_id: UUID | None) -> StoreConfig:
    """Return the store configuration of a revision."""
    query = text("SELECT manifest -> 'store' FROM revision WHERE id = :id")
    configured = conn.execute(query, {"id": revision_id}).scalar_one_or_none() or {}
    ttl = configured.get("ttl") or {}
    return StoreConfig(
        ttl.get("default_ttl"), ttl.get("refresh_on_read") is not False, bool(configured.get("index"))
    )


RECORD = Record(
    "StoreItem",
    {
        "namespace": RecordField(listed(TEXT), ("path",), lambda row: row["path"][:-1].split(".")),
        "key": RecordField(TEXT),
        "value": RecordField(OBJECT),
        "created_at": RecordField(TIME),
        "updated_at": RecordField(TIME),
        "expires_at": RecordField(
            TIME_OR_NULL,
            ("expires_at", "ttl_minutes"),
            lambda row: None if row["ttl_minutes"] is None else row["expires_at"],
        ),
        "score": RecordField({"type": ["number", "null"]}, (), lambda row: row.get("score"), shown="search"),
    },
)


def path_of(namespace: Namespace) -> str:
    return "".join(f"{label}." for label in namespace)


_PUT = statement("store.put")
_GET = statement("store.get", columns=RECORD.select)
_REFRESH = statement("store.refresh")
_SWEEP = statement("store.sweep")


def put(
    conn: Connection,
    deployment_id: UUID,
    namespace: Namespace,
    key: str,
    value: Mapping[str, Any],
    *,
    ttl_minutes: float | None = None,
    indexed: ItemVectors | None = None,
) -> None:
    """Store a value, replacing an existing one. `indexed` are its vectors for search by meaning. Raises Invalid."""
    check_namespace(namespace)
    _check_item(key, value)
    if len((path_of(namespace) + key).encode()) > MAX_PLACE_BYTES:
        message = f"namespace and key: at most {MAX_PLACE_BYTES} bytes together"
        raise Invalid(message, loc=("body", "namespace"))
    path = path_of(namespace)
    (written,) = _PUT.rows(
        conn,
        deployment_id=deployment_id,
        path=path,
        key=key,
        value=dumps(value),
        ttl=ttl_minutes,
        longest=MAX_TTL_MINUTES,
    )
    if indexed is not None:
        store_vectors.replace(conn, deployment_id, path, key, indexed, written["updated_at"])


def delete(conn: Connection, deployment_id: UUID, namespace: Namespace, key: str) -> None:
    """Delete an item if it exists."""
    conn.execute(
        text("DELETE FROM store_item WHERE deployment_id = :deployment_id AND path = :path AND key = :key"),
        {"deployment_id": deployment_id, "path": path_of(namespace), "key": key},
    )


def get(
    conn: Connection, deployment_id: UUID, namespace: Namespace, key: str, *, refresh: bool = True
) -> dict[str, Any] | None:
    """Return an item or None. `refresh` restarts its time to live."""
    rows = _GET.rows(conn, deployment_id=deployment_id, path=path_of(namespace), key=key)
    items = _read(conn, deployment_id, rows, refresh, RECORD.show)
    return items[0] if items else None


def _read(
    conn: Connection, deployment_id: UUID, rows: Sequence[Row], refresh: bool, show: Show
) -> list[dict[str, Any]]:
    """Return the items of these rows. `refresh` restarts their time to live."""
    expiries = _refreshed(conn, deployment_id, rows) if refresh else {}
    return [
        {**item, "expires_at": expiries.get((row["path"], row["key"]), item["expires_at"])}
        for row, item in zip(rows, map(show, rows), strict=True)
    ]


def _refreshed(conn: Connection, deployment_id: UUID, rows: Sequence[Row]) -> dict[tuple[str, str], datetime]:
    """Restart the time to live of those rows that have one. Returns their expiry by `(path, key)`."""
    expiring = [row for row in rows if row["ttl_minutes"] is not None]
    if not expiring:
        return {}
    refreshed = _REFRESH.rows(
        conn,
        deployment_id=deployment_id,
        paths=texts([row["path"] for row in expiring]),
        keys=texts([row["key"] for row in expiring]),
        longest=MAX_TTL_MINUTES,
    )
    return {(row["path"], row["key"]): row["expires_at"] for row in refreshed}


def search(
    conn: Connection,
    deployment_id: UUID,
    prefix: Namespace,
    *,
    filter: Mapping[str, Any] | None = None,
    limit: int = 10,
    offset: int = 0,
    refresh: bool = True,
    near: Sequence[float] | None = None,
) -> list[dict[str, Any]]:
    """Return items below a prefix whose values match the filter, last changed first. Raises Invalid.

    With the vector of a query (`near`), items are ordered by similarity; items without a vector come last.
    """
    values: dict[str, Any] = {"deployment_id": deployment_id, "limit": limit, "offset": offset}
    below = _below(prefix, values)
    condition = " AND ".join([*below, *_conditions(filter or {}, (), values)]) or "true"
    if near is None:
        rows = statement("store.search", columns=RECORD.select, condition=condition).rows(conn, **values)
    else:
        values |= {"near": store_vectors.literal(near), "dims": len(near)}
        options = {"columns": RECORD.select, "condition": condition}
        rows = vector_indexes.search(
            conn, deployment_id, near, below=" AND ".join(below), values=values, **options
        )
        if rows is None:
            rows = statement("store.search_near", **options).rows(conn, **values)
    return _read(conn, deployment_id, rows, refresh, RECORD.show_search_result)


def _below(prefix: Namespace, values: dict[str, Any]) -> list[str]:
    """Return conditions for the range of paths at or below a prefix. No label sorts after the largest character."""
    if not prefix:
        return []
    values["prefix"] = path_of(prefix)
    return ["path >= :prefix", "path < :prefix || chr(1114111)"]


def _conditions(filter: Mapping[str, Any], path: tuple[str, ...], values: dict[str, Any]) -> Iterator[str]:
    """Yield SQL conditions of a filter: objects are compared by key, other values as a whole. Raises Invalid."""
    for key, operand in filter.items():
        yield from _condition(operand, (*path, key), values)


def _condition(expected: Any, path: tuple[str, ...], values: dict[str, Any]) -> Iterator[str]:
    if not isinstance(expected, Mapping):
        yield _compared("$eq", expected, path, values)
    elif any(key.startswith("$") for key in expected):
        for operator, operand in expected.items():
            yield _compared(operator, operand, path, values)
    else:
        yield f"jsonb_typeof(value #> {_bind(list(path), 'text[]', values)}) = 'object'"
        yield from _conditions(expected, path, values)


def _compared(operator: str, operand: Any, path: tuple[str, ...], values: dict[str, Any]) -> str:
    """Return the SQL of one comparison. A missing value counts as null. Values of different types have no order."""
    sign = OPERATORS.get(operator)
    if sign is None:
        raise Invalid(f"Unsupported operator: {operator}", loc=("body", "filter"), status=400)
    stored = f"coalesce(value #> {_bind(list(path), 'text[]', values)}, 'null')"
    operand_sql = _bind(dumps(operand), "jsonb", values)
    comparison = f"{stored} {sign} {operand_sql}"
    if operator in ("$eq", "$ne"):
        return comparison
    return f"(jsonb_typeof({stored}) = jsonb_typeof({operand_sql}) AND {comparison})"


def _bind(value: Any, kind: str, values: dict[str, Any]) -> str:
    name = f"p{len(values)}"
    values[name] = value
    return f"CAST(:{name} AS {kind})"


def namespaces(
    conn: Connection,
    deployment_id: UUID,
    *,
    matches: Sequence[tuple[str, Namespace]] = (),
    max_depth: int | None = None,
    limit: int = 100,
    offset: int = 0,
) -> list[list[str]]:
    """Return namespaces with items, sorted. `matches` are ("prefix" | "suffix", labels) pairs; `*` is any label."""
    values: dict[str, Any] = {"max_depth": max_depth, "limit": limit, "offset": offset}
    conditions = ["true"]
    for kind, labels in matches:
        conditions.append(f"cardinality(labels) >= {len(labels)}")
        for n, label in enumerate(labels):
            at = str(n + 1) if kind == "prefix" else f"cardinality(labels) - {len(labels) - n - 1}"
            if label != "*":
                conditions.append(f"labels[{at}] = {_bind(label, 'text', values)}")
    query = statement("store.namespaces", condition=" AND ".join(conditions))
    return [list(row["namespace"]) for row in query.rows(conn, **values, deployment_id=deployment_id)]


def sweep(conn: Connection) -> int:
    """Delete some expired items. Returns how many."""
    return _SWEEP.count(conn, limit=SWEPT_AT_ONCE)


# Store operations of graph code, as graph hosts send them


def answer(conn: Connection, deployment_id: UUID, ops: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Execute a batch and return its results in order. Reads see the state before the batch.

    Of several writes to an item, the last wins. Raises Invalid.
    """
    try:
        return _execute(conn, deployment_id, ops)
    except REFUSED as error:
        raise Invalid(f"the database refuses it: {error}") from error


def _execute(conn: Connection, deployment_id: UUID, ops: Sequence[Mapping[str, Any]]) -> list[Any]:
    for op in ops:
        if "key" in op:
            _check_key(op["key"])
    writes = {(tuple(op["namespace"]), op["key"]): op for op in ops if op["op"] == "put"}
    results = [_READS[op["op"]](conn, deployment_id, op) if op["op"] in _READS else None for op in ops]
    for op in writes.values():
        if op["value"] is None:
            delete(conn, deployment_id, op["namespace"], op["key"])
        else:
            indexed = ItemVectors.of(op, op)
            options = {"ttl_minutes": op["ttl"], "indexed": indexed}
            put(conn, deployment_id, op["namespace"], op["key"], op["value"], **options)
    return results


def _answer_get(conn: Connection, deployment_id: UUID, op: Mapping[str, Any]) -> Any:
    return get(conn, deployment_id, op["namespace"], op["key"], refresh=op["refresh"])


def _answer_search(conn: Connection, deployment_id: UUID, op: Mapping[str, Any]) -> Any:
    options = {name: op[name] for name in ("filter", "limit", "offset", "refresh", "near")}
    return search(conn, deployment_id, op["namespace"], **options)


def _answer_namespaces(conn: Connection, deployment_id: UUID, op: Mapping[str, Any]) -> Any:
    options = {name: op[name] for name in ("matches", "max_depth", "limit", "offset")}
    return namespaces(conn, deployment_id, **options)


_READS: dict[str, Callable[[Connection, UUID, Mapping[str, Any]], Any]] = {
    "get": _answer_get,
    "search": _answer_search,
    "namespaces": _answer_namespaces,
}
