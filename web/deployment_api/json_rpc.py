"""JSON-RPC 2.0 as MCP and A2A carry it: one call in a request's body, and the answers to it.

What is wrong with a call is answered in its own form, as a `RpcError`; what is wrong with the caller (no key, no role,
too many requests) has its HTTP status as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flask import Response, request
from marshmallow import ValidationError

from shared.errors import Invalid
from shared.infra.postgres import dumps
from web import sse
from web.fields import Field, JsonObject, OneOf, Rule, Schema, StrictString
from web.json_schema import JsonSchema, record
from web.openapi_responses import SSE
from web.operations import JSON
from web.validation import SchemaViolation, checked, parse_body, raw_body

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602

Id = str | int | float
MAX_ID = 1024  # characters: of what a caller names a call by, each message of its stream repeats it


class RpcError(Exception):
    """A refusal in the form of JSON-RPC; `id` is that of the call, where it is known."""

    def __init__(self, code: int, message: str, *, id: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.id = code, message, id


class IdField(Field):
    """What a caller knows its call by; without it there is no answer."""

    type_rule = Rule("must be a string or a number", "value_error")
    json_schema: ClassVar[dict[str, Any]] = {"type": ["string", "number"], "maxLength": MAX_ID}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValidationError([self.type_rule])
        if isinstance(value, str) and len(value) > MAX_ID:
            raise ValidationError([Rule(f"must have at most {MAX_ID} characters", "string_too_long")])
        return value


class JsonRpcCall(Schema):
    jsonrpc = OneOf("2.0", required=True)
    id = IdField()
    method = StrictString(required=True, min_length=1)
    params = JsonObject()


ANYTHING: JsonSchema = {"description": "Any JSON value"}
ANSWER = record(
    "JsonRpcAnswer",
    ("result", "error"),
    jsonrpc={"type": "string", "enum": ["2.0"]},
    id={"type": ["string", "number", "null"]},
    result=ANYTHING,
    error=record(code={"type": "integer"}, message={"type": "string"}),
)


@dataclass(frozen=True)
class Call:
    """A call; `id` None: a notification, or an answer to us (`method` empty), which has no answer itself."""

    method: str
    params: dict[str, Any] = field(default_factory=dict)
    id: Id | None = None

    def read(self, schema: type[Schema]) -> dict[str, Any]:
        """The checked parameters; raises RpcError naming what is wrong with them."""
        try:
            return checked(schema, self.params, "params")
        except SchemaViolation as error:
            raise RpcError(INVALID_PARAMS, error.message) from error


def read() -> Call:
    """The call in the request's body; raises RpcError."""
    body = _body()
    if isinstance(body, list):
        raise RpcError(INVALID_REQUEST, "Batches are not supported: send one call a request")
    if not isinstance(body, dict):
        raise RpcError(INVALID_REQUEST, "The body must be an object")
    if _is_answer(body):
        return Call("")
    try:
        found = checked(JsonRpcCall, body)
    except SchemaViolation as error:
        is_in_params = error.violations[0].loc[:1] == ("params",)
        code = INVALID_PARAMS if is_in_params else INVALID_REQUEST
        said = "; ".join(f"{'.'.join(map(str, v.loc))}: {v.message}" for v in error.violations)
        raise RpcError(code, said, id=_id_of(body)) from error
    return Call(found["method"], found.get("params", {}), found.get("id"))


def _body() -> Any:
    try:
        return parse_body(raw_body())
    except Invalid as error:
        is_json = error.kind not in ("json_invalid", "missing")
        raise RpcError(INVALID_REQUEST if is_json else PARSE_ERROR, error.message) from error


def _is_answer(body: Mapping[str, Any]) -> bool:
    return body.get("jsonrpc") == "2.0" and "method" not in body and ("result" in body or "error" in body)


def _id_of(body: Mapping[str, Any]) -> Any:
    """The id of what may be no call; None where it has none that may be."""
    try:
        return IdField().deserialize(body.get("id"))
    except ValidationError:
        return None


def result(id: Id | None, value: Any) -> bytes:
    return dumps({"jsonrpc": "2.0", "id": id, "result": value}).encode()


def failure(id: Id | None, error: RpcError) -> bytes:
    said = {"code": error.code, "message": error.message}
    return dumps({"jsonrpc": "2.0", "id": id, "error": said}).encode()


def answer(body: bytes, status: int = 200) -> Response:
    return Response(body, status=status, mimetype=JSON)


def event(body: bytes) -> bytes:
    """One message of a stream."""
    return sse.encode_parts("message", body, b"")


def accepts(*kinds: str) -> bool:
    """Whether the request's Accept header names one of these types."""
    named = request.headers.get("Accept", "").lower()
    return any(kind in named for kind in kinds)


def accepts_stream() -> bool:
    return accepts(SSE)
