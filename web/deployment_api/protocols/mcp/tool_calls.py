"""Calls of tools: a call runs an assistant, and answers with its output.

The run has no thread, is deleted at its end, and is cancelled if the client disconnects. The result is JSON, preceded
by line feeds while the run is in progress. A client that requests progress notifications gets the result as the last
event of a stream.
"""

from __future__ import annotations

import re
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
from shared.infra.trace_context import BAGGAGE, MAX_BAGGAGE, context_of
from shared.models import RunStatus
from shared.runs import create, end_event
from shared.runs.drafts import RunRequest
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, MAX_ID, RpcError
from web.deployment_api.protocols.mcp import results, tools
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
    run_request = _run_request(tool, loaded, mcp.meta, modes=() if token is None else ("updates",))
    take_slot()
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(run_request.run_id, before_creation=True))
        try:
            created = create_run(
                run_request, trace=context_of(mcp.meta.get("traceparent"), mcp.meta.get("tracestate"))
            )
        except (NotFound, Invalid) as error:  # also if the assistant was deleted in the meantime
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {loaded['name']}") from error
        except tools.ArgumentsMisfit as misfit:
            return mcp.answer(results.failed(str(misfit)))
        assert tool is not None  # no run is created without a tool
        follower = RunFollower(created.run_id, created.thread_id, cancels=True)
        batches = follower.batches(reader, after=0, end_alone=True)

        def result(last: Event | None) -> dict[str, Any]:
            if last is not None and end_event.status_of(last) == RunStatus.INTERRUPTED:
                return results.failed("The run was cancelled")
            return results.tool_result(tool, follower.output(last))

        if token is None:
            body = sse.waiting(batches, follower.heartbeat, lambda last: mcp.result(result(last)))
            return sse.late_json(follower.stream(body, stack.pop_all(), may_end_early=False), {})
        body = _with_progress(batches, follower.heartbeat, token, lambda last: event_of(mcp, result(last)))
        return sse.event_stream(follower.stream(body, stack.pop_all()), {})


def _baggage(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the entry of `configurable` with the baggage of the caller's trace, which only the graph reads."""
    baggage = meta.get("baggage")
    is_kept = (
        isinstance(baggage, str)
        and len(baggage) <= MAX_BAGGAGE
        and baggage.isascii()
        and baggage.isprintable()
    )
    return {BAGGAGE: baggage} if is_kept and isinstance(baggage, str) else {}


def _run_request(
    tool: Row | None, loaded: Mapping[str, Any], meta: Mapping[str, Any], *, modes: Sequence[str]
) -> RunRequest:
    """Return the request for the run of a call.

    An invalid call is refused after authorization, so a caller without access cannot probe for tools.
    """
    request = RunRequest(
        assistant_id="" if tool is None else str(tool["assistant_id"]),
        service_metadata=dict(METADATA),
        stream_mode=modes,
        extras={**run_headers(), **_baggage(meta)},
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


MAX_EVENT = 1024 * 1024  # bytes: the client of the Python SDK fails at a larger event of a stream


def event_of(mcp: McpRequest, result: Mapping[str, Any]) -> bytes:
    """Encode a result as an event. Leaves the state out if the event would be larger than clients take."""
    event = json_rpc.event(mcp.result(result))
    if len(event) <= MAX_EVENT:
        return event
    reason = f"The state is left out: the result has more than {MAX_EVENT} bytes. Call without a progressToken to get it."
    event = json_rpc.event(mcp.result(results.without_state(result, reason)))
    return event if len(event) <= MAX_EVENT else json_rpc.event(mcp.result(results.failed(reason)))


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
    """Yield a progress notification after steps of the graph and with each heartbeat, then the event of the result."""
    last: Event | None = None
    node = ""
    count, next_at = 0, 0.0
    heartbeat.send_headers_first()
    for batch in batches:
        if batch and batch[-1].is_last:
            last = batch[-1]
        node = next(filter(None, map(node_of, reversed(batch))), node)
        is_due, now = heartbeat.take_due(), time.monotonic()
        if is_due or (batch and last is None and now >= next_at):
            count, next_at = count + 1, now + PROGRESS_SECONDS
            heartbeat.take_headers()
            yield json_rpc.event(_progress(token, count, node))
        elif heartbeat.take_headers():
            yield sse.HEADERS
    yield result(last)


NODE = re.compile(rb'\{("(?:[^"\\]|\\.)*"):')  # how an update begins: the node's name is the first key


def node_of(event: Event) -> str:
    """Return the name of the node whose end an event reports, or an empty text."""
    match = NODE.match(event.data) if event.name == "updates" else None
    name = loads(match[1]) if match is not None else ""
    return "" if name.startswith("__") else name


def _progress(token: str | int, count: int, node: str) -> bytes:
    params = {"progressToken": token, "progress": count} | ({"message": node} if node else {})
    return dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode()
