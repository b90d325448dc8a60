"""Envelopes of MCP calls: the era of a call, the checks of a modern one, and the form of its answers.

A modern call (2026-07-28) is complete in itself: `_meta` has the protocol version and what the client is capable of,
and headers repeat the version, the method and the name of what is called. A legacy call (2025-03-26 to 2025-11-25) has
neither. Both are served at one address, and nothing is remembered between calls.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from flask import Response, request

from shared import __version__
from shared.infra.postgres import dumps
from shared.infra.trace_context import Context, context_of
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.json_rpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Call,
    RpcError,
)
from web.gate.context import unchecked_deployment
from web.schemas.operations import JSON, SSE

HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION = -32020, -32021, -32022

MODERN = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26")  # newest first
SUPPORTED = (MODERN, *LEGACY)
NAMES_OF_LEGACY = frozenset({*LEGACY, "2024-11-05"})  # versions whose clients know no modern envelope

VERSION_HEADER, METHOD_HEADER, NAME_HEADER = "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"
PREFIX = "io.modelcontextprotocol/"
VERSION, CAPABILITIES = f"{PREFIX}protocolVersion", f"{PREFIX}clientCapabilities"
SERVER_INFO = f"{PREFIX}serverInfo"
TASKS_EXTENSION = f"{PREFIX}tasks"

# The parameter that `Mcp-Name` repeats, by method.
NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}


@dataclass(frozen=True, slots=True)
class McpRequest:
    """A call with its envelope. Holds all that answers need after the request context has ended."""

    call: Call
    is_modern: bool
    server_info: Mapping[str, str]
    capabilities: Mapping[str, Any] = field(default_factory=dict)  # of the client; empty for a legacy call

    @property
    def meta(self) -> Mapping[str, Any]:
        return _meta(self.call.params)

    @property
    def trace(self) -> Context | None:
        """The place of the call in a distributed trace, if the client names one."""
        return context_of(self.meta.get("traceparent"), self.meta.get("tracestate"))

    def has_extension(self, name: str) -> bool:
        """Return whether the client declares this extension."""
        extensions = self.capabilities.get("extensions")
        return isinstance(extensions, dict) and isinstance(extensions.get(name), dict)

    def shape(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return a result in the form of the call's era. The default `resultType` is `complete`."""
        if not self.is_modern:
            return dict(value)
        return {"resultType": "complete", **value, "_meta": {SERVER_INFO: self.server_info}}

    def result(self, value: Mapping[str, Any]) -> bytes:
        return json_rpc.result(self.call.id, self.shape(value))

    def answer(self, value: Mapping[str, Any]) -> Response:
        return json_rpc.answer(self.result(value))


def read() -> McpRequest | Response:
    """Return the call of the current request, or the response to one that is invalid or needs no answer."""
    is_modern = _names_modern_version()
    try:
        body = json_rpc.read_body()
        is_modern = is_modern or VERSION in _meta(body.get("params") if isinstance(body, dict) else None)
        if not json_rpc.accepts(JSON, SSE):
            status = HTTPStatus.NOT_ACCEPTABLE if is_modern else HTTPStatus.BAD_REQUEST
            message = f"The Accept header must name {JSON} or {SSE}"
            raise RpcError(INVALID_REQUEST, message, id=json_rpc.id_of(body), status=status)
        call = json_rpc.call_of(body)
        if call.id is None:
            return Response(status=HTTPStatus.ACCEPTED)
        return _modern(call) if is_modern else McpRequest(call, False, _server_info())
    except RpcError as error:
        status = HTTPStatus.BAD_REQUEST
        if not is_modern and error.code == INVALID_PARAMS:
            status = HTTPStatus.OK
        return json_rpc.answer(json_rpc.failure(error.id, error), error.status or status)


def refuse(mcp: McpRequest, error: RpcError) -> Response:
    """Return the response for a call that is refused. In the legacy era, its status is 200."""
    status = HTTPStatus.OK
    if mcp.is_modern:
        status = HTTPStatus.NOT_FOUND if error.code == METHOD_NOT_FOUND else HTTPStatus.BAD_REQUEST
    return json_rpc.answer(json_rpc.failure(mcp.call.id, error), status)


def missing_capability(required: Mapping[str, Any]) -> RpcError:
    """Return the error for a call that needs capabilities which the client does not declare."""
    message = f"The client does not declare a required capability: {dumps(required)}"
    return RpcError(MISSING_CAPABILITY, message, data={"requiredCapabilities": required})


def _names_modern_version() -> bool:
    """Return whether the version header names another version than the legacy ones."""
    version = request.headers.get(VERSION_HEADER)
    return version is not None and version.strip() not in NAMES_OF_LEGACY


def _server_info() -> dict[str, str]:
    return {"name": unchecked_deployment().name, "version": __version__}


def _meta(params: Any) -> Mapping[str, Any]:
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta if isinstance(meta, dict) else {}


def _modern(call: Call) -> McpRequest:
    """Return a modern call after the checks of its envelope. Raises RpcError."""
    meta = _meta(call.params)
    version, capabilities = meta.get(VERSION), meta.get(CAPABILITIES)
    try:
        if isinstance(call.id, float):
            raise RpcError(INVALID_REQUEST, "id: must be a string or an integer")
        if not isinstance(version, str):
            raise RpcError(INVALID_PARAMS, f"params._meta.{VERSION}: must be a string")
        if not isinstance(capabilities, dict):
            raise RpcError(INVALID_PARAMS, f"params._meta.{CAPABILITIES}: must be an object")
        _check_headers(call, version)
        if version != MODERN:
            raise RpcError(
                UNSUPPORTED_VERSION,
                "This protocol version is not supported",
                data={"supported": SUPPORTED, "requested": version},
            )
    except RpcError as error:
        error.id = call.id
        raise
    return McpRequest(call, True, _server_info(), capabilities)


def _check_headers(call: Call, version: str) -> None:
    """Require the headers to repeat what the body says. Raises RpcError.

    The server joins repeated headers with commas, so a repeated header never equals the value in the body.
    """
    _check_header(VERSION_HEADER, version)
    _check_header(METHOD_HEADER, call.method)
    parameter = NAMED_BY.get(call.method)
    name = call.params.get(parameter) if parameter is not None else None
    if isinstance(name, str):
        _check_header(NAME_HEADER, name)


def _check_header(header: str, expected: str) -> None:
    sent = request.headers.get(header)
    if sent is None:
        raise RpcError(HEADER_MISMATCH, f"The header {header} is missing")
    if _decoded(sent.strip()) != expected:
        raise RpcError(HEADER_MISMATCH, f"The header {header} differs from the body")


def _decoded(value: str) -> str | None:
    """Return the text of a header's value: `=?base64?…?=` is the base64 of UTF-8. None for text that is no base64."""
    if not (value.startswith("=?base64?") and value.endswith("?=") and len(value) >= len("=?base64??=")):
        return value
    try:
        encoded = value.removeprefix("=?base64?").removesuffix("?=")
        return b64decode(encoded, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
