"""The Model Context Protocol at a deployment's address: assistants are tools, and a tool call is a run.

The transport is Streamable HTTP without sessions: each request holds one call and gets the answer to it. Only a tool
call costs more than a database query.

The caller is `web.gate.context.caller()`, as in all other interfaces. `tools` determines which assistants a caller may see, and
`calls` what a run is created with. `initialize` returns only the server's name and version, so it needs no
authorization.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from flask import Response

from shared import __version__
from shared.errors import NotFound
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.json_rpc import METHOD_NOT_FOUND, Call, RpcError
from web.deployment_api.protocols.mcp import calls, tools
from web.gate.context import unasked
from web.schemas.fields import Schema, StrictString
from web.schemas.openapi_responses import SSE
from web.schemas.operations import JSON, RouteGroup

bp = RouteGroup("mcp", section="MCP and A2A", switches=("disable_mcp",))

NEWEST = "2025-11-25"  # version of the protocol


class McpCall(json_rpc.JsonRpcCall):
    example: ClassVar[dict[str, Any]] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


class Initialize(Schema):
    protocolVersion = StrictString(max_length=64, load_default=NEWEST, allow_none=True)


class ToolsList(Schema):
    cursor = StrictString(allow_none=True)


@bp.operation(
    "POST /mcp",
    "Call a method of the Model Context Protocol",
    role="run",
    body=McpCall,
    answer=json_rpc.ANSWER,
    media=(JSON, SSE),
    also=(400,),
    empty=(202,),
    errors=(404, 409),
    strict_slashes=False,
)
def call_method() -> Response:
    """Call `initialize`, `ping`, `tools/list` or `tools/call`. Each tool is an assistant."""
    if not json_rpc.accepts(JSON, SSE):
        error = RpcError(json_rpc.INVALID_REQUEST, f"The Accept header must name {JSON} or {SSE}")
        return json_rpc.answer(json_rpc.failure(None, error), 400)
    try:
        call = json_rpc.read()
    except RpcError as error:
        status = 200 if error.code == json_rpc.INVALID_PARAMS else 400
        return json_rpc.answer(json_rpc.failure(error.id, error), status)
    if call.id is None:
        return Response(status=202)
    try:
        return _answered(call)
    except RpcError as error:
        return json_rpc.answer(json_rpc.failure(call.id, error))


@bp.operation(
    "DELETE /mcp",
    "End a session of the Model Context Protocol (not supported)",
    role="read",
    status=404,
    strict_slashes=False,
)
def end_session() -> Response:
    raise NotFound("Not Found")


def _answered(call: Call) -> Response:
    if call.method == "tools/call":
        return calls.call_tool(call)
    method = METHODS.get(call.method)
    if method is None:
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
    return json_rpc.answer(json_rpc.result(call.id, method(call)))


def _initialize(call: Call) -> dict[str, Any]:
    return {
        "protocolVersion": call.read(Initialize)["protocolVersion"] or NEWEST,
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": unasked().name, "version": __version__},
    }


def _ping(call: Call) -> dict[str, Any]:
    return {}


def _list_tools(call: Call) -> dict[str, Any]:
    return tools.page(call.read(ToolsList).get("cursor"))


METHODS: dict[str, Callable[[Call], dict[str, Any]]] = {
    "initialize": _initialize,
    "ping": _ping,
    "tools/list": _list_tools,
}
