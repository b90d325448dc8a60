"""The Model Context Protocol at a deployment's address: assistants are tools, and a tool call is a run.

The transport is Streamable HTTP without sessions: each request holds one call and gets the answer to it. Only a tool
call costs more than a database query. `envelope` distinguishes calls of version 2026-07-28 from older ones, checks
them and shapes their answers. `tools` determines which assistants a caller may see, and `tool_calls` runs them.
`thread_calls` are calls that may ask their client or become tasks; `task_methods` and `subscriptions` serve tasks.

METHODS holds the methods. Each gets an `McpRequest` and returns a response, or raises RpcError. `server/discover` and
`initialize` return only the server's name and versions, so they need no authorization.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from flask import Response

from shared.errors import Denied
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.access import refuse_foreign_page
from web.deployment_api.protocols.json_rpc import METHOD_NOT_FOUND, RpcError
from web.deployment_api.protocols.mcp import envelope, subscriptions, task_methods, tool_calls, tools
from web.deployment_api.protocols.mcp.envelope import LEGACY, SUPPORTED, TASKS_EXTENSION, McpRequest
from web.gate import challenges
from web.gate.context import unchecked_deployment, user
from web.schemas import fields
from web.schemas.operations import JSON, SSE, RouteGroup

bp = RouteGroup("mcp", section="MCP and A2A", switches=("disable_mcp",))
bp.before_request(refuse_foreign_page)

CAPABILITIES = {"tools": {"listChanged": False}}
EXTENSIONS: dict[str, Any] = {TASKS_EXTENSION: {}}  # extensions of the protocol that modern calls may use
DISCOVERY_SECONDS = 300  # time for which a client may keep the result of `server/discover`


class McpCall(json_rpc.JsonRpcCall):
    example: ClassVar[dict[str, Any]] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


class Initialize(fields.Schema):
    protocolVersion = fields.StrictString(max_length=64, load_default=LEGACY[0], allow_none=True)


@bp.operation(
    "POST /mcp",
    "Call a method of the Model Context Protocol",
    role="run",
    body=McpCall,
    answer=json_rpc.ANSWER,
    media=(JSON, SSE),
    also=(400, 404, 406, 415),
    empty=(202,),
    errors=(409,),
    strict_slashes=False,
)
def call_method() -> Response:
    """Call a method. Each tool is an assistant.

    The methods are `server/discover`, `initialize`, `ping`, `tools/list`, `tools/call`, `tasks/get`, `tasks/update`,
    `tasks/cancel` and `subscriptions/listen`.
    """
    mcp = envelope.read()
    if isinstance(mcp, Response):
        return mcp
    try:
        method = METHODS.get(mcp.call.method)
        if method is None or not (method.is_modern if mcp.is_modern else method.is_legacy):
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {mcp.call.method}")
        return method.answer(mcp)
    except RpcError as error:
        return envelope.refuse(mcp, error)
    except Denied as refusal:
        raise challenges.forbidden(refusal, unchecked_deployment(), user()) from refusal


def _discover(mcp: McpRequest) -> Response:
    return mcp.answer(
        {
            "supportedVersions": SUPPORTED,
            "capabilities": {**CAPABILITIES, "extensions": EXTENSIONS},
            "ttlMs": DISCOVERY_SECONDS * 1000,
            "cacheScope": "private",
        }
    )


def _initialize(mcp: McpRequest) -> Response:
    version = mcp.call.read(Initialize)["protocolVersion"]
    return mcp.answer(
        {
            "protocolVersion": version if version in LEGACY else LEGACY[0],
            "capabilities": CAPABILITIES,
            "serverInfo": mcp.server_info,
        }
    )


def _ping(mcp: McpRequest) -> Response:
    return mcp.answer({})


class Method(NamedTuple):
    """A method, and the eras in which it exists."""

    answer: Callable[[McpRequest], Response]
    is_legacy: bool = True
    is_modern: bool = True


METHODS = {
    "initialize": Method(_initialize, is_modern=False),
    "ping": Method(_ping, is_modern=False),
    "server/discover": Method(_discover, is_legacy=False),
    "tools/list": Method(tools.list_tools),
    "tools/call": Method(tool_calls.call_tool),
    "tasks/get": Method(task_methods.get_task, is_legacy=False),
    "tasks/update": Method(task_methods.update_task, is_legacy=False),
    "tasks/cancel": Method(task_methods.cancel_task, is_legacy=False),
    "subscriptions/listen": Method(subscriptions.listen, is_legacy=False),
}
