"""JSON-RPC 2.0 for MCP and A2A: one call per request body, and the answers to it.

An invalid call is answered in JSON-RPC form (`RpcError`). A caller that is refused (no key, wrong role, too many
requests) gets the usual HTTP status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, ClassVar

from flask import Response, request
from marshmallow import ValidationError

from shared.errors import Invalid, Refused
from shared.infra.postgres import dumps
from shared.records import JsonSchema, record
from web.schemas import fields
from web.schemas.operations import JSON, SSE
from web.schemas.validation import SchemaViolation, checked, parse_body, raw_body

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602

Id = str | int | float
MAX_ID = 1024  # characters; each message of a call's stream repeats the id


class RpcError(Refused):
    """A refusal in JSON-RPC form. `id` is the id of the call, if known.

    `data` becomes the error's `data`. `status` is the HTTP status, if it does not follow from the code.
    """

    def __init__(self, code: int, message: str, *, id: Any = None, data: Any = None, status: int = 0) -> None:
        super().__init__(message)
        self.code, self.id, self.data, self.status = code, id, data, status


class IdField(fields.Field):
    """The id of a call. A call without one is a notification, which gets no answer."""

    type_rule = fields.Rule("must be a string or a number", "value_error")
    json_schema: ClassVar[dict[str, Any]] = {"type": ["string", "number"], "maxLength": MAX_ID}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValidationError([self.type_rule])
        if isinstance(value, str) and len(value) > MAX_ID:
            raise ValidationError([fields.Rule(f"must have at most {MAX_ID} characters", "string_too_long")])
        return value


class JsonRpcCall(fields.Schema):
    jsonrpc = fields.OneOf("2.0", required=True)
    id = IdField()
    method = fields.StrictString(required=True, min_length=1)
    params = fields.JsonObject()


ANYTHING: JsonSchema = {"description": "Any JSON value"}
ANSWER = record(
    "JsonRpcAnswer",
    ("result", "error"),
    jsonrpc={"type": "string", "enum": ["2.0"]},
    id={"type": ["string", "number", "null"]},
    result=ANYTHING,
    error=record(None, ("data",), code={"type": "integer"}, message={"type": "string"}, data=ANYTHING),
)


@dataclass(frozen=True)
class Call:
    """A call. Without an `id` it is a notification, or a client's answer (`method` empty), and gets no answer."""

    method: str
    params: dict[str, Any] = field(default_factory=dict)
    id: Id | None = None

    def read(self, schema: type[fields.Schema]) -> dict[str, Any]:
        """Return the validated parameters. Raises RpcError, which names the invalid ones."""
        try:
            return checked(schema, self.params, "params")
        except SchemaViolation as error:
            raise RpcError(INVALID_PARAMS, error.message) from error


def read() -> Call:
    """Return the call in the request's body. Raises RpcError."""
    return call_of(_body())


def read_body() -> Any:
    """Return the JSON of the request's body. Raises RpcError, also if the body is of another type."""
    if request.mimetype != JSON:
        message = f"The Content-Type must be {JSON}"
        raise RpcError(INVALID_REQUEST, message, status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    return _body()


def call_of(body: Any) -> Call:
    """Return the call in a body. Raises RpcError."""
    if isinstance(body, list):
        raise RpcError(INVALID_REQUEST, "Batches are not supported: send one call per request")
    if not isinstance(body, dict):
        raise RpcError(INVALID_REQUEST, "The body must be an object")
    if _is_answer(body):
        return Call("")
    try:
        call = checked(JsonRpcCall, body)
    except SchemaViolation as error:
        is_in_params = error.violations[0].loc[:1] == ("params",)
        code = INVALID_PARAMS if is_in_params else INVALID_REQUEST
        message = "; ".join(f"{'.'.join(map(str, v.loc))}: {v.message}" for v in error.violations)
        raise RpcError(code, message, id=id_of(body)) from error
    return Call(call["method"], call.get("params", {}), call.get("id"))


def _body() -> Any:
    try:
        return parse_body(raw_body())
    except Invalid as error:
        is_json = error.kind not in ("json_invalid", "missing")
        raise RpcError(INVALID_REQUEST if is_json else PARSE_ERROR, error.message) from error


def _is_answer(body: Mapping[str, Any]) -> bool:
    return body.get("jsonrpc") == "2.0" and "method" not in body and ("result" in body or "error" in body)


def id_of(body: Any) -> Any:
    """Return the id of a body that is not a valid call, or None if it has no valid id."""
    try:
        return IdField().deserialize(body.get("id") if isinstance(body, dict) else None)
    except ValidationError:
        return None


def result(id: Id | None, value: Any) -> bytes:
    return dumps({"jsonrpc": "2.0", "id": id, "result": value}).encode()


def failure(id: Id | None, error: RpcError) -> bytes:
    details: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        details["data"] = error.data
    return dumps({"jsonrpc": "2.0", "id": id, "error": details}).encode()


def timestamp(at: datetime) -> str:
    """Return a time in UTC as clients parse it: RFC 3339 with milliseconds."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def answer(body: bytes, status: int = 200) -> Response:
    return Response(body, status=status, mimetype=JSON)


def event(body: bytes) -> bytes:
    """Encode one message of a stream as a server-sent event."""
    return b"event: message\ndata: " + body + b"\n\n"


def accepts(*kinds: str) -> bool:
    """Return whether the request's Accept header names one of these types."""
    named = request.headers.get("Accept", "").lower()
    return any(kind in named for kind in kinds)


def accepts_stream() -> bool:
    return accepts(SSE)
