"""Descriptions of an operation's responses for the API document: successes, and every refusal."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from apispec import APISpec

from shared.deployments.deployments import PATH_PREFIX
from web.schemas.operations import JSON, Operation

SSE = "text/event-stream"
CONTROL_PLANE = ("/v1/", "/v2/")

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
    "X-Pagination-Total": "Number of all matching records",
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


def responses(
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
    schema = named(spec, operation.answer) if operation.answer is not None else {}
    if operation.many:
        schema = {"type": "array", "items": schema}
    if operation.sse:
        described["content"] = {SSE: {"schema": named(spec, EVENT)}}
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
    described["content"] = {JSON: {"schema": named(spec, schema)}}
    return described


def named(spec: APISpec, schema: Any) -> Any:
    """Replace titled schemas by references to components, and add them to the components of `spec`."""
    if isinstance(schema, list):
        return [named(spec, inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    replaced = {key: named(spec, inner) for key, inner in schema.items()}
    title = replaced.get("title")
    if not isinstance(title, str):
        return replaced
    if title not in spec.components.schemas:
        spec.components.schema(title, replaced)
    return {"$ref": f"#/components/schemas/{title}"}
