"""The API document of both interfaces, generated from the routes.

`@bp.operation(…)` declares what a route's code does not show: its summary, schemas, status and refusals. Path, method,
parameters and description (the docstring) come from the route itself. The document at a deployment's own address
holds only the deployment API.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from http import HTTPStatus
from operator import itemgetter
from typing import Any

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin
from flask import Flask
from marshmallow import fields
from werkzeug.routing import Rule

from shared import __version__
from shared.access.idempotency import HEADER
from shared.deployments.deployments import PATH_PREFIX
from shared.records import OBJECT
from web.schemas.fields import (
    DateField,
    ItemOrList,
    JsonObject,
    ListOf,
    OneOf,
    QueryBoolean,
    QueryList,
    Schema,
    StrictBoolean,
    StrictInteger,
    StrictNumber,
    StrictString,
    TimeField,
    UuidField,
)
from web.schemas.openapi_examples import EXAMPLE
from web.schemas.operations import CONTROL_PLANE, JSON, SECTIONS, SSE, Operation, of_view

SKIPPED_METHODS = frozenset({"HEAD", "OPTIONS"})
DEPLOYMENT_ROOT = "/d/{deployment}"
MEANINGS_OF_IDS = {"assistant_id": "A UUID, or a graph id, which names the default assistant of that graph"}


def document(app: Flask, *, of_deployment: bool = False) -> dict[str, Any]:
    """Return the document of the whole API, or of the routes at a deployment's own address."""
    spec = APISpec(
        title="runyard",
        version=__version__,
        openapi_version="3.1.0",
        plugins=[_plugin()],
        info={"description": "Deploy agent applications and run their graphs."},
        security=[
            {"api_key": []},
            {"bearer": []},
            {"api_key": [], "tenant_id": []},
            {"bearer": [], "tenant_id": []},
        ],
    )
    spec.components.security_scheme("api_key", {"type": "apiKey", "in": "header", "name": "X-Api-Key"})
    spec.components.security_scheme("tenant_id", {"type": "apiKey", "in": "header", "name": "X-Tenant-Id"})
    spec.components.security_scheme("bearer", {"type": "http", "scheme": "bearer"})
    described = sorted(_operations(app, of_deployment), key=itemgetter(0, 1))
    summaries = Counter(of_view(view).summary for *_, view in described)
    for path, method, rule, view in described:
        operation = _describe(spec, rule, method, path, view)
        if summaries[operation["summary"]] > 1:  # a view with several routes
            operation["summary"] += f" ({method} {path})"
        spec.path(path=path, operations={method.lower(): operation})
    whole = spec.to_dict()
    schemas = whole["components"]["schemas"]
    bodies = {body for *_, view in described if (body := of_view(view).body) is not None and body.example}
    for body in bodies:
        schemas[body.__name__]["examples"] = [body.example]
    used = {operation["tags"][0] for path in whole["paths"].values() for operation in path.values()}
    return {**whole, "tags": [{"name": section} for section in SECTIONS if section in used]}


def _operations(app: Flask, of_deployment: bool) -> Iterator[tuple[str, str, Rule, Callable[..., Any]]]:
    """Yield `(path, method, rule, view)` for every method of every path."""
    for path, rule in paths(app, of_deployment):
        for method in (rule.methods or set()) - SKIPPED_METHODS:
            yield path, method, rule, app.view_functions[rule.endpoint]


def paths(app: Flask, of_deployment: bool) -> Iterator[tuple[str, Rule]]:
    """Yield `(path, rule)` for every documented route, in a deployment's document without the deployment's prefix."""
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(?:[^:<>]+:)?([^<>]+)>", r"{\1}", rule.rule)
        if rule.websocket or of_view(app.view_functions[rule.endpoint]).group.section is None:
            continue
        below_root = path.removeprefix(DEPLOYMENT_ROOT)
        if not of_deployment:
            yield path, rule
        elif below_root != path and below_root != "/":  # the deployment's root is an alias of /ok
            yield below_root, rule


def _describe(spec: APISpec, rule: Rule, method: str, path: str, view: Callable[..., Any]) -> dict[str, Any]:
    text = inspect.getdoc(view)
    operation = of_view(view)
    is_open = operation.role == "open"
    takes_input = operation.body is not None or operation.query is not None or "_id>" in rule.rule
    described: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_"),
        "tags": [operation.group.section],
        "summary": operation.summary,
        "parameters": [
            *_path_parameters(path, operation),
            *([{"in": "query", "schema": operation.query}] if operation.query is not None else []),
            *_header_parameters(operation),
        ],
        "responses": _responses(spec, operation, rule.rule, is_open=is_open, takes_input=takes_input),
    }
    if text:
        described["description"] = text
    if operation.body is not None:
        described["requestBody"] = _request_body(operation.body, operation.body_items)
    if is_open:
        described["security"] = []
    return described


def _request_body(body: type[Schema], max_items: int) -> dict[str, Any]:
    """Return the description of a body or, if `max_items` is not 0, of an array of bodies."""
    schema: Any = body
    if max_items:
        schema = {"type": "array", "items": body, "minItems": 1, "maxItems": max_items}
    example = [body.example] if max_items else body.example
    # The viewer reads `examples` and no `example`.
    content = {JSON: {"schema": schema, "examples": {EXAMPLE: {"value": example}}}}
    return {"required": bool(max_items) or body.requires_a_field(), "content": content}


def _path_parameters(path: str, operation: Operation) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", path):
        schema = {"type": "string", "format": "uuid"} if name in operation.ids else {"type": "string"}
        meaning = {"description": MEANINGS_OF_IDS[name]} if name in MEANINGS_OF_IDS else {}
        yield {"in": "path", "name": name, "required": True, "schema": schema, **meaning}


def _header_parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    text = {"type": "string"}
    if 304 in operation.errors:
        meaning = "ETag of the version of the record that the client has"
        yield {"in": "header", "name": "If-None-Match", "description": meaning, "schema": text}
    if operation.sse:
        meaning = "Id of the last event that the client received"
        yield {"in": "header", "name": "Last-Event-ID", "description": meaning, "schema": text}
    if operation.idempotent:
        yield {
            "in": "header",
            "name": HEADER,
            "description": "Key of the request. A request that is repeated with the same key within a day is executed once;"
            " the repetition gets the first response, with the header Idempotent-Replayed.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[\x20-\x7e]+$"},
        }


def _plugin() -> MarshmallowPlugin:
    """Return apispec's marshmallow plugin, extended by the fields of web/schemas/fields.py."""

    class Plugin(MarshmallowPlugin):
        def init_spec(self, spec: APISpec) -> None:
            super().init_spec(spec)
            self.converter.add_attribute_function(_field_schema)  # type: ignore[union-attr]

    return Plugin(schema_name_resolver=lambda schema: getattr(schema, "__name__", type(schema).__name__))


# The JSON Schema of each class of fields; the first class that matches counts.
FIELD_TYPES: list[tuple[type[fields.Field], dict[str, Any]]] = [
    (StrictNumber, {"type": "number"}),
    (StrictInteger, {"type": "integer"}),
    (StrictBoolean, {"type": "boolean"}),
    (QueryBoolean, {"type": "boolean"}),
    (StrictString, {"type": "string"}),
    (UuidField, {"type": "string", "format": "uuid"}),
    (TimeField, {"type": "string", "format": "date-time"}),
    (DateField, {"type": "string", "format": "date"}),
    (JsonObject, OBJECT),
]


def _field_schema(converter: Any, field: fields.Field, **kwargs: Any) -> dict[str, Any]:
    """Return the JSON Schema of a field from web/schemas/fields.py."""
    if isinstance(field, ListOf):
        return _list_schema(converter, field)
    declared = getattr(field, "json_schema", {})
    schema = next((dict(usual) for kind, usual in FIELD_TYPES if isinstance(field, kind)), {}) | declared
    pattern = getattr(field, "pattern", None)
    if isinstance(field, JsonObject) and field.bounds:
        schema["description"] = field.bounds
    bounds = {
        "minimum": getattr(field, "minimum", None),
        "maximum": getattr(field, "maximum", None),
        "minLength": getattr(field, "min_length", None) or None,
        "maxLength": getattr(field, "max_length", None),
        "pattern": f"^(?:{pattern.pattern})$" if pattern is not None else None,
        "enum": list(field.choices) if isinstance(field, OneOf) else None,
    }
    schema.update({name: bound for name, bound in bounds.items() if bound is not None})
    if field.allow_none and "type" in schema:
        kinds = schema["type"]
        schema["type"] = [*(kinds if isinstance(kinds, list) else [kinds]), "null"]
        if "enum" in schema:
            schema["enum"].append(None)
    elif field.allow_none and "anyOf" in schema:
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    return schema


def _list_schema(converter: Any, field: ListOf) -> dict[str, Any]:
    inner = converter.field2property(field.inner)
    array: dict[str, Any] = {"type": "array", "items": inner}
    if field.not_empty:
        array["minItems"] = 1
    array["maxItems"] = field.max_items
    if isinstance(field, ItemOrList):
        return {"anyOf": [inner, array, *([{"type": "null"}] if field.allow_none else [])]}
    if field.allow_none:
        array["type"] = ["array", "null"]
    if isinstance(field, QueryList):
        array["description"] = "A repeated parameter, a JSON array, or values separated by commas."
    return array


MEANINGS = {
    304: "The client has the current version of the record",
    400: "The request is invalid",
    401: "Missing or unknown API key",
    403: "The API key does not allow this operation",
    404: "Not found",
    408: "The request body did not arrive in time",
    409: "The request conflicts with the current state",
    413: "The request body is too large",
    414: "The request line is too long",
    422: "A value is missing or invalid",
    424: "The graph host could not answer",
    426: "The request does not ask for a WebSocket",
    429: "A limit is reached; see Retry-After",
    431: "A header is too long, or the request has too many headers",
    502: "A server outside this service gave an invalid answer, or none",
    503: "The database or another part of the service is unavailable; see Retry-After",
    504: "The graph host did not answer in time",
}
BY_THE_SERVER = (414, 431)  # refused before a route is found
WITHOUT_BODY = frozenset({101, 202, 204, 304})
TO_BE_RETRIED = frozenset({429, 503})

ETAG = {"description": "Value for If-None-Match in later requests", "schema": {"type": "string"}}
RETRY_AFTER = {"description": "Seconds to wait before the next attempt", "schema": {"type": "integer"}}
# Response headers that an operation may declare.
HEADERS = {
    "Location": "Path of the run's event stream, relative to the deployment's root",
    "Content-Location": "Path of the run, relative to the deployment's root",
    "X-Pagination-Total": "Number of all matching records, exact up to 10,000. Above, a lower bound",
    "X-Pagination-Next": "Offset of the next page. Missing on the last page",
}
REPLAYED = {
    "description": "`true` if this is the stored response of an earlier request with the same Idempotency-Key",
    "schema": {"type": "string", "enum": ["true"]},
}

TEXT = {"type": "string"}
EVENT = {
    "title": "ServerSentEvent",
    "description": "One event of the stream; `data` is JSON",
    "type": "object",
    "properties": {"event": TEXT, "data": TEXT, "id": TEXT},
}
ERROR = {
    "title": "Error",
    "type": "object",
    "required": ["detail"],
    "properties": {"detail": TEXT, "request_id": TEXT},
}
VIOLATION = {
    "title": "Violation",
    "type": "object",
    "required": ["loc", "msg", "type"],
    "properties": {
        "loc": {"type": "array", "items": {"anyOf": [TEXT, {"type": "integer"}]}},
        "msg": TEXT,
        "type": TEXT,
    },
}
VIOLATIONS = {
    "title": "Violations",
    "type": "object",
    "required": ["detail"],
    "properties": {"detail": {"type": "array", "items": VIOLATION}},
}


def _responses(
    spec: APISpec, operation: Operation, path: str, *, is_open: bool, takes_input: bool
) -> dict[str, Any]:
    """Return the descriptions of all responses that an operation may give, by status."""
    good = [*([operation.status] if operation.status < 400 else []), *operation.also]
    described = {str(status): _answer(spec, operation, status) for status in good}
    described |= {str(status): {"description": HTTPStatus(status).phrase} for status in operation.empty}
    for status in sorted(_refused(operation, path, is_open=is_open, takes_input=takes_input)):
        described[str(status)] = _refusal(spec, operation, status, path)
    return described


def _refused(operation: Operation, path: str, *, is_open: bool, takes_input: bool) -> set[int]:
    statuses = {*BY_THE_SERVER, *operation.errors, *([operation.status] if operation.status >= 400 else [])}
    if not is_open:
        statuses |= {401, 403, 429, 503}
        if path.startswith(PATH_PREFIX):
            statuses.add(404)  # no such deployment
    if takes_input:
        statuses.add(422)
    if operation.body is not None or operation.idempotent:
        statuses |= {408, 413}
    if operation.idempotent:
        statuses |= {409, 422}
    return statuses


def _answer(spec: APISpec, operation: Operation, status: int) -> dict[str, Any]:
    described: dict[str, Any] = {"description": "Success" if status == 200 else HTTPStatus(status).phrase}
    headers = {"ETag": ETAG} if 304 in operation.errors else {}
    headers |= {name: {"description": HEADERS[name], "schema": TEXT} for name in operation.headers}
    if operation.idempotent:
        headers["Idempotent-Replayed"] = REPLAYED
    if headers:
        described["headers"] = headers
    if status in WITHOUT_BODY and operation.answer is None:
        return described
    schema = _with_references(spec, operation.answer) if operation.answer is not None else {}
    if operation.many:
        schema = {"type": "array", "items": schema}
    if operation.sse:
        described["content"] = {SSE: {"schema": _with_references(spec, EVENT)}}
        return described
    described["content"] = {kind: {"schema": schema if kind == JSON else TEXT} for kind in operation.media}
    return described


def _refusal(spec: APISpec, operation: Operation, status: int, path: str) -> dict[str, Any]:
    described: dict[str, Any] = {"description": MEANINGS.get(status, "Refused")}
    if status in TO_BE_RETRIED:
        described["headers"] = {"Retry-After": RETRY_AFTER}
    if status == 304:
        return {**described, "headers": {"ETag": ETAG}}
    lists = status == 422 and path.startswith(CONTROL_PLANE)
    schema = operation.refusals.get(status, VIOLATIONS if lists else ERROR)
    described["content"] = {JSON: {"schema": _with_references(spec, schema)}}
    return described


def _with_references(spec: APISpec, schema: Any) -> Any:
    """Replace titled schemas by references to components, and add them to the components of `spec`."""
    if isinstance(schema, list):
        return [_with_references(spec, inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    replaced = {key: _with_references(spec, inner) for key, inner in schema.items()}
    title = replaced.get("title")
    if not isinstance(title, str):
        return replaced
    if title not in spec.components.schemas:
        spec.components.schema(title, replaced)
    return {"$ref": f"#/components/schemas/{title}"}
