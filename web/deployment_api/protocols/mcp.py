"""The Model Context Protocol at a deployment's address: assistants are tools, and a tool call is a run.

The transport is Streamable HTTP without sessions: each request holds one call and gets the answer to it. Only a tool
call costs more than a database query. Its run has no thread, is deleted at its end, and is cancelled if the client
disconnects. The result is JSON, preceded by line feeds while the run is in progress. A client that requests progress
notifications gets the result as the last event of a stream.

`mcp_tools` determines which assistants a caller may see. `initialize` returns only the server's name and version, so it
needs no authorization.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from flask import Response
from sqlalchemy import Connection

from shared import __version__
from shared.deployments.deployments import DeploymentRef
from shared.errors import Invalid, NotFound, Refused
from shared.eventlog.events import Event
from shared.eventlog.hub import hub
from shared.infra.postgres import Row, dumps, loads
from shared.models import RunStatus
from shared.runs import create, end_event
from shared.runs.drafts import RunRequest
from web.deployment_api.protocols import json_rpc, mcp_tools
from web.deployment_api.protocols.conversation import messages_of, takes_messages, text_of
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, MAX_ID, METHOD_NOT_FOUND, Call, RpcError
from web.deployment_api.runs.creation import create_run
from web.deployment_api.runs.follower import RunFollower
from web.gate.context import run_headers, unchecked_deployment
from web.gate.observation import take_slot
from web.http import sse
from web.schemas import fields
from web.schemas.operations import JSON, SSE, RouteGroup

bp = RouteGroup("mcp", section="MCP and A2A", switches=("disable_mcp",))

NEWEST = "2025-11-25"  # version of the protocol


class McpCall(json_rpc.JsonRpcCall):
    example: ClassVar[dict[str, Any]] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


class Initialize(fields.Schema):
    protocolVersion = fields.StrictString(max_length=64, load_default=NEWEST, allow_none=True)


class ToolsList(fields.Schema):
    cursor = fields.StrictString(allow_none=True)


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
        return _answer(call)
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


def _answer(call: Call) -> Response:
    if call.method == "tools/call":
        return call_tool(call)
    method = METHODS.get(call.method)
    if method is None:
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
    return json_rpc.answer(json_rpc.result(call.id, method(call)))


def _initialize(call: Call) -> dict[str, Any]:
    return {
        "protocolVersion": call.read(Initialize)["protocolVersion"] or NEWEST,
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": unchecked_deployment().name, "version": __version__},
    }


def _ping(call: Call) -> dict[str, Any]:
    return {}


def _list_tools(call: Call) -> dict[str, Any]:
    return mcp_tools.page(call.read(ToolsList).get("cursor"))


METHODS: dict[str, Callable[[Call], dict[str, Any]]] = {
    "initialize": _initialize,
    "ping": _ping,
    "tools/list": _list_tools,
}


PROGRESS_SECONDS = 0.5  # minimum time between two progress notifications
METADATA = {"mcp": True}


class ToolCall(fields.Schema):
    name = fields.StrictString(required=True)
    arguments = fields.JsonObject(load_default=dict, allow_none=True)
    meta = fields.AnyJson(data_key="_meta")


def call_tool(call: Call) -> Response:
    """Run an assistant and answer with its output. Raises RpcError."""
    loaded = call.read(ToolCall)
    tool = mcp_tools.find(loaded["name"])
    token = _progress_token(loaded.get("meta")) if json_rpc.accepts_stream() else None
    run_request = _run_request(tool, loaded, modes=() if token is None else ("updates",))
    take_slot()
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(run_request.run_id, before_creation=True))
        try:
            created = create_run(run_request)
        except (NotFound, Invalid) as error:  # also if the assistant was deleted in the meantime
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {loaded['name']}") from error
        except mcp_tools.ArgumentsMisfit as misfit:
            return json_rpc.answer(json_rpc.result(call.id, _tool_error(str(misfit))))
        assert tool is not None  # no run is created without a tool
        follower = RunFollower(created.run_id, created.thread_id, cancels=True)
        batches = follower.batches(reader, after=0, end_alone=True)

        def result(last: Event | None) -> bytes:
            return json_rpc.result(call.id, _tool_result(follower, tool, last))

        if token is None:
            body = sse.waiting(batches, follower.heartbeat, result)
            return sse.late_json(follower.stream(body, stack.pop_all(), may_end_early=False), {})
        body = _with_progress(batches, follower.heartbeat, token, result)
        return sse.event_stream(follower.stream(body, stack.pop_all()), {})


def _run_request(tool: Row | None, loaded: Mapping[str, Any], *, modes: Sequence[str]) -> RunRequest:
    """Return the request for the run of a call.

    An invalid call is refused after authorization, so a caller without access cannot probe for tools.
    """
    request = RunRequest(
        assistant_id="" if tool is None else str(tool["assistant_id"]),
        service_metadata=dict(METADATA),
        stream_mode=modes,
        extras=run_headers(),
    )
    if tool is None:
        return replace(request, rule=RefusedCall(NotFound()))
    try:
        return replace(request, input=mcp_tools.graph_input(tool["input_schema"], loaded["arguments"] or {}))
    except mcp_tools.ArgumentsMisfit as misfit:
        return replace(request, rule=RefusedCall(misfit))


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """The rule of an invalid call: refuses the run."""

    error: Refused

    def complete(self, conn: Connection, deployment: DeploymentRef, request: RunRequest) -> RunRequest:
        raise self.error

    def missing(self) -> Refused:
        return create.missing()


def _progress_token(meta: Any) -> str | int | None:
    """Return the token that progress notifications repeat, or None if the client requests none. Raises RpcError."""
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    if isinstance(token, str) and len(token) > MAX_ID:
        raise RpcError(INVALID_PARAMS, f"_meta.progressToken: must have at most {MAX_ID} characters")
    return token if isinstance(token, str | int) and not isinstance(token, bool) else None


def _with_progress(
    batches: sse.Batches,
    heartbeat: sse.HeartbeatTimer,
    token: str | int,
    result: Callable[[Event | None], bytes],
) -> Generator[bytes]:
    """Yield a progress notification after steps of the graph and with each heartbeat, then the result."""
    last: Event | None = None
    count, next_at = 0, 0.0
    heartbeat.send_headers_first()
    for batch in batches:
        if batch and batch[-1].is_last:
            last = batch[-1]
        is_due, now = heartbeat.take_due(), time.monotonic()
        if is_due or (batch and last is None and now >= next_at):
            count, next_at = count + 1, now + PROGRESS_SECONDS
            heartbeat.take_headers()
            yield json_rpc.event(_progress(token, count))
        elif heartbeat.take_headers():
            yield sse.HEADERS
    yield json_rpc.event(result(last))


def _progress(token: str | int, count: int) -> bytes:
    params = {"progressToken": token, "progress": count}
    return dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode()


def _tool_result(follower: RunFollower, tool: Row, last: Event | None) -> dict[str, Any]:
    """Return the result of a tool for a run that has ended."""
    if last is not None and end_event.status_of(last) == RunStatus.INTERRUPTED:
        return _tool_error("The run was cancelled")
    output = follower.output(last)
    values = loads(output)
    error = values.get("__error__") if isinstance(values, dict) else None
    if error is not None:
        return _tool_error(f"{error.get('error')}: {error.get('message')}")
    last_text = _last_text(values) if takes_messages(tool["input_schema"]) else ""
    return {
        "content": [_text_content(text) for text in (last_text, output.decode()) if text],
        "isError": False,
    }


def _last_text(values: Any) -> str:
    messages = messages_of(values)
    return text_of(messages[-1]) if messages else ""


def _tool_error(reason: str) -> dict[str, Any]:
    return {"content": [_text_content(reason)], "isError": True}


def _text_content(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
