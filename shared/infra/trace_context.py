"""The place of a run in a distributed trace (W3C Trace Context).

A caller's `traceparent` is stored with the run, passed to its graph and sent with its webhook, whether or not this
service exports spans.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

HEADER, STATE_HEADER = "traceparent", "tracestate"
# Keys in a graph's `configurable`.
PARENT, STATE = "__otel_traceparent__", "__otel_tracestate__"
BAGGAGE = "__otel_baggage__"
KEYS = (PARENT, STATE, BAGGAGE)
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
MAX_STATE = 512
MAX_BAGGAGE = 8192
SAMPLED = 1


@dataclass(frozen=True, slots=True)
class Context:
    """A place in a trace: the parent span of what follows."""

    trace_id: int
    span_id: int
    flags: int = SAMPLED
    state: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"

    @property
    def headers(self) -> dict[str, str]:
        return {HEADER: self.traceparent, **({STATE_HEADER: self.state} if self.state else {})}

    @property
    def entries(self) -> dict[str, str]:
        """The entries for a graph's `configurable`."""
        return {PARENT: self.traceparent, **({STATE: self.state} if self.state else {})}


def context_of(traceparent: object, state: object = None) -> Context | None:
    """Parse a `traceparent` and its `tracestate`. Returns None for an invalid `traceparent`."""
    match = TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if match is None:
        return None
    is_kept = isinstance(state, str) and len(state) <= MAX_STATE and state.isascii() and state.isprintable()
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    return Context(trace_id, span_id, flags & SAMPLED, state if is_kept and isinstance(state, str) else "")


def of_kwargs(kwargs: Mapping[str, Any]) -> Context | None:
    """Return the trace context in which a run was created, from its stored arguments, or None."""
    configurable = (kwargs.get("config") or {}).get("configurable") or {}
    return context_of(configurable.get(PARENT), configurable.get(STATE))


def of_run(run_id: UUID, parent: Context | None, *, is_sampled: bool = True) -> Context:
    """Return a run's own trace context, which every process derives alike. `parent` is the context of its creator.

    A run without a parent, such as a cron's, begins its own trace.
    """
    span_id = int.from_bytes(hashlib.sha256(run_id.bytes).digest()[:8]) or 1
    if parent is None:
        return Context(run_id.int, span_id, SAMPLED if is_sampled else 0)
    return Context(parent.trace_id, span_id, parent.flags, parent.state)
