"""Calls of tools: a call runs an assistant, and answers with its output.

The run is deleted at its end, and is cancelled if the client disconnects. It has no thread unless the client can answer
questions or resolve tasks (`thread_calls`). The result is JSON, preceded by line feeds while the run is in progress. A
client that requests progress notifications gets the result as the last event of a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from flask import Response

from shared.errors import Invalid, NotFound, Refused
from shared.eventlog.events import Event
from shared.eventlog.hub import hub
from shared.infra.postgres import Row
from shared.infra.trace_context import BAGGAGE, MAX_BAGGAGE
from shared.runs import mcp_calls
from shared.runs.drafts import RunRequest
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, RpcError
from web.deployment_api.protocols.mcp import progress, results, thread_calls, tools
from web.deployment_api.protocols.mcp.envelope import McpRequest
from web.deployment_api.protocols.mcp.thread_calls import RefusedCall, Terms
from web.deployment_api.runs.creation import create_run
from web.deployment_api.runs.follower import RunFollower
from web.gate.context import run_headers
from web.gate.observation import take_slot
from web.http import sse
from web.schemas import fields


class ToolCall(fields.Schema):
    name = fields.StrictString(required=True)
    arguments = fields.JsonObject(load_default=dict, allow_none=True)
    inputResponses = fields.JsonObject(load_default=dict)
    requestState = fields.StrictString()


def call_tool(mcp: McpRequest) -> Response:
    """Run an assistant and answer with its output, with a task or with questions. Raises RpcError."""
    loaded = mcp.call.read(ToolCall)
    tool = tools.find(loaded["name"])
    token = progress.token_of(mcp.meta) if json_rpc.accepts_stream() else None
    terms, refusal = None, None
    try:
        terms = thread_calls.terms_of(mcp, tool, has_progress=token is not None)
    except RpcError as error:
        refusal = error
    follows = token is not None or (terms is not None and terms.task_after is not None)
    request = _run_request(mcp, tool, loaded, refusal, modes=thread_calls.STEPS if follows else ())
    sealed = loaded.get("requestState") if mcp.is_modern else None
    try:
        if tool is not None and sealed is not None:
            terms, responses = terms or Terms(asks=False), loaded["inputResponses"]
            return thread_calls.retry(
                mcp, tool, request, terms, sealed=sealed, responses=responses, token=token
            )
        if terms is not None:
            return thread_calls.start(mcp, tool, request, terms, token=token)
        return _run(mcp, tool, request, token)
    except (NotFound, Invalid) as error:  # also if the assistant was deleted in the meantime
        raise RpcError(INVALID_PARAMS, f"Unknown tool: {loaded['name']}") from error
    except tools.ArgumentsMisfit as misfit:
        return mcp.answer(results.failed(str(misfit)))


def _run(mcp: McpRequest, tool: Row | None, request: RunRequest, token: str | int | None) -> Response:
    """Run an assistant without a thread. Raises RpcError, and what refuses the run."""
    take_slot()
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(request.run_id, before_creation=True))
        created = create_run(request, trace=mcp.trace)
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
    if not isinstance(baggage, str) or len(baggage) > MAX_BAGGAGE:
        return {}
    return {BAGGAGE: baggage} if baggage.isascii() and baggage.isprintable() else {}


def _run_request(
    mcp: McpRequest,
    tool: Row | None,
    loaded: Mapping[str, Any],
    refusal: Refused | None,
    *,
    modes: Sequence[str],
) -> RunRequest:
    """Return the request for the run of a call.

    An invalid call is refused after authorization, so a caller without access cannot probe for tools.
    """
    request = RunRequest(
        assistant_id="" if tool is None else str(tool["assistant_id"]),
        service_metadata=dict(mcp_calls.METADATA),
        stream_mode=modes,
        extras={**run_headers(), **_baggage(mcp.meta)},
    )
    if tool is None:
        return replace(request, rule=RefusedCall(NotFound()))
    if refusal is not None:
        return replace(request, rule=RefusedCall(refusal))
    try:
        return replace(request, input=tools.graph_input(tool["input_schema"], loaded["arguments"] or {}))
    except tools.ArgumentsMisfit as misfit:
        return replace(request, rule=RefusedCall(misfit))
