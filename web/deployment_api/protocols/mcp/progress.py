"""Progress notifications: a call that answers with a stream, whose last event is the result."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from shared.eventlog.events import Event
from shared.infra.postgres import dumps, loads
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, MAX_ID, RpcError
from web.deployment_api.protocols.mcp import results
from web.deployment_api.protocols.mcp.envelope import McpRequest
from web.http import sse

PROGRESS_SECONDS = 0.5  # minimum time between two progress notifications
MAX_EVENT = 1024 * 1024  # bytes: the client of the Python SDK fails at a larger event of a stream
TOO_LARGE = f"the result has more than {MAX_EVENT} bytes"


def event_of(mcp: McpRequest, result: Mapping[str, Any]) -> bytes:
    """Encode a result as an event."""
    return fitted(
        lambda shown: json_rpc.event(mcp.result(shown)),
        result,
        f"The state is left out: {TOO_LARGE}. Call without a progressToken to get it.",
    )


def fitted(encode: Callable[[Mapping[str, Any]], bytes], result: Mapping[str, Any], reason: str) -> bytes:
    """Encode a result as an event. If it has more than MAX_EVENT bytes, the reason takes the place of the state."""
    event = encode(result)
    if len(event) > MAX_EVENT and "content" in result:
        event = encode(results.without_state(result, reason))
    return event if len(event) <= MAX_EVENT else encode(results.failed(reason))


def token_of(meta: Mapping[str, Any]) -> str | int | None:
    """Return the token that progress notifications repeat, or None if the client requests none. Raises RpcError."""
    token = meta.get("progressToken")
    if isinstance(token, str) and len(token) > MAX_ID:
        raise RpcError(INVALID_PARAMS, f"_meta.progressToken: must have at most {MAX_ID} characters")
    return token if isinstance(token, str | int) and not isinstance(token, bool) else None


def stream(
    mcp: McpRequest,
    batches: sse.Batches,
    heartbeat: sse.HeartbeatTimer,
    token: str | int,
    result: Callable[[Event | None], Mapping[str, Any]],
) -> Generator[bytes]:
    """Yield a progress notification after steps of the graph and with each heartbeat, then the result."""
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
    yield event_of(mcp, result(last))


NODE = re.compile(rb'\{("(?:[^"\\]|\\.)*"):')  # how an update begins: the node's name is the first key


def node_of(event: Event) -> str:
    """Return the name of the node whose end an event reports, or an empty text."""
    match = NODE.match(event.data) if event.name == "updates" else None
    name = loads(match[1]) if match is not None else ""
    return "" if name.startswith("__") else name


def _progress(token: str | int, count: int, node: str) -> bytes:
    params = {"progressToken": token, "progress": count} | ({"message": node} if node else {})
    return dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode()
