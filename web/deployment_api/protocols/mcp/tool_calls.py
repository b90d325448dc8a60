"""Calls of tools: a call runs an assistant, and answers with its output.

The run has no thread, is deleted at its end, and is cancelled if the client disconnects. The result is JSON, preceded
by line feeds while the run is in progress. A client that requests progress notifications gets the result as the last
event of a stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from flask import Response
from sqlalchemy import Connection

from shared.deployments.deployments import DeploymentRef
from shared.errors import Invalid, NotFound, Refused
from shared.eventlog.events import Event
from shared.eventlog.hub import hub
from shared.infra.postgres import Row, dumps, loads
from shared.models import RunStatus
from shared.runs import create, end_event
from shared.runs.drafts import RunRequest
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.conversation import messages_of, takes_messages, text_of
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, MAX_ID, RpcError
from web.deployment_api.protocols.mcp import tools
from web.deployment_api.protocols.mcp.envelope import McpRequest
from web.deployment_api.runs.creation import create_run
from web.deployment_api.runs.follower import RunFollower
from web.gate.context import run_headers
from web.gate.observation import take_slot
from web.http import sse
from web.schemas import fields

PROGRESS_SECONDS = 0.5  # minimum time between two progress notifications
METADATA = {"mcp": True}


class ToolCall(fields.Schema):
    name = fields.StrictString(required=True)
    arguments = fields.JsonObject(load_default=dict, allow_none=True)


def call_tool(mcp: McpRequest) -> Response:
    """Run an assistant and answer with its output. Raises RpcError."""
    loaded = mcp.call.read(ToolCall)
    tool = tools.find(loaded["name"])
    token = _progress_token(mcp.meta) if json_rpc.accepts_stream() else None
    run_request = _run_request(tool, loaded, modes=() if token is None else ("updates",))
    take_slot()
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(run_request.run_id, before_creation=True))
        try:
            created = create_run(run_request)
        except (NotFound, Invalid) as error:  # also if the assistant was deleted in the meantime
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {loaded['name']}") from error
        except tools.ArgumentsMisfit as misfit:
            return mcp.answer(_tool_error(str(misfit)))
        assert tool is not None  # no run is created without a tool
        follower = RunFollower(created.run_id, created.thread_id, cancels=True)
        batches = follower.batches(reader, after=0, end_alone=True)

        def result(last: Event | None) -> bytes:
            return mcp.result(_tool_result(follower, tool, last))

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
        return replace(request, input=tools.graph_input(tool["input_schema"], loaded["arguments"] or {}))
    except tools.ArgumentsMisfit as misfit:
        return replace(request, rule=RefusedCall(misfit))


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """The rule of an invalid call: refuses the run."""

    error: Refused

    def complete(self, conn: Connection, deployment: DeploymentRef, request: RunRequest) -> RunRequest:
        raise self.error

    def missing(self) -> Refused:
        return create.missing()


def _progress_token(meta: Mapping[str, Any]) -> str | int | None:
    """Return the token that progress notifications repeat, or None if the client requests none. Raises RpcError."""
    token = meta.get("progressToken")
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
