"""Calls of tools: a call runs an assistant, and answers with its output.

The run has no thread, is deleted at its end, and is cancelled if the client disconnects. The result is JSON, preceded
by line feeds while the run is in progress. A client that requests progress notifications gets the result as the last
event of a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from flask import Response
from sqlalchemy import Connection

from shared.deployments.deployments import DeploymentRef
from shared.errors import Invalid, NotFound, Refused
from shared.eventlog.events import Event
from shared.eventlog.hub import hub
from shared.infra.postgres import Row
from shared.infra.trace_context import BAGGAGE, MAX_BAGGAGE, context_of
from shared.runs import create
from shared.runs.drafts import RunRequest
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, RpcError
from web.deployment_api.protocols.mcp import progress, results, tools
from web.deployment_api.protocols.mcp.envelope import McpRequest
from web.deployment_api.runs.creation import create_run
from web.deployment_api.runs.follower import RunFollower
from web.gate.context import run_headers
from web.gate.observation import take_slot
from web.http import sse
from web.schemas import fields

METADATA = {"mcp": True}


class ToolCall(fields.Schema):
    name = fields.StrictString(required=True)
    arguments = fields.JsonObject(load_default=dict, allow_none=True)


def call_tool(mcp: McpRequest) -> Response:
    """Run an assistant and answer with its output. Raises RpcError."""
    loaded = mcp.call.read(ToolCall)
    tool = tools.find(loaded["name"])
    token = progress.token_of(mcp.meta) if json_rpc.accepts_stream() else None
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
            return results.of_run(tool, follower, last)

        if token is None:
            body = sse.waiting(batches, follower.heartbeat, lambda last: mcp.result(result(last)))
            return sse.late_json(follower.stream(body, stack.pop_all(), may_end_early=False), {})
        body = progress.stream(mcp, batches, follower.heartbeat, token, result)
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
