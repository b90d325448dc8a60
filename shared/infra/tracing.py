"""Where a run belongs in a distributed trace (W3C Trace Context), and the tracer of this process, if there is one.

A `traceparent` that a caller sends is kept with the run, handed to its graph and sent with its webhook, whether or not
this service exports spans of its own. It does where OTEL_EXPORTER_OTLP_ENDPOINT is set; without it the library is not
even imported (`shared/infra/otel.py` does), and nothing is made.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

HEADER, STATE_HEADER = "traceparent", "tracestate"
# Where a graph finds them in `configurable`, by the field's words.
PARENT, STATE = "__otel_traceparent__", "__otel_tracestate__"
KEYS = (PARENT, STATE)
FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
MAX_STATE = 512
SAMPLED = 1


@dataclass(frozen=True, slots=True)
class Context:
    """A place in a trace: the span that what follows belongs to."""

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
        """What a graph finds of it in its `configurable`."""
        return {PARENT: self.traceparent, **({STATE: self.state} if self.state else {})}


def context_of(traceparent: object, state: object = None) -> Context | None:
    """The place that a header names; None for what is no such header."""
    found = FORM.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if found is None:
        return None
    is_kept = isinstance(state, str) and len(state) <= MAX_STATE and state.isascii() and state.isprintable()
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return Context(trace_id, span_id, flags & SAMPLED, state if is_kept and isinstance(state, str) else "")


def of_kwargs(kwargs: Mapping[str, Any]) -> Context | None:
    """The place that a run was created at, by what is kept of it."""
    configurable = (kwargs.get("config") or {}).get("configurable") or {}
    return context_of(configurable.get(PARENT), configurable.get(STATE))


def of_run(run_id: UUID, created_at: Context | None, *, is_sampled: bool = True) -> Context:
    """A run's own place, the same in every process that has to do with it.

    A run that nobody's trace has created, as a cron's, begins one of its own.
    """
    span_id = int.from_bytes(hashlib.sha256(run_id.bytes).digest()[:8]) or 1
    if created_at is None:
        return Context(run_id.int, span_id, SAMPLED if is_sampled else 0)
    return Context(created_at.trace_id, span_id, created_at.flags, created_at.state)


class AnySpan(Protocol):
    """A span that has begun."""

    @property
    def context(self) -> Context: ...

    def set(self, **attributes: Any) -> None: ...

    def end(self, *, error: str | None = None, at_ns: int | None = None) -> None: ...


class AnyTracer(Protocol):
    """What makes spans."""

    def start(
        self,
        name: str,
        *,
        kind: str = "internal",
        parent: Context | None = None,
        own: Context | None = None,
        at_ns: int | None = None,
        **attributes: Any,
    ) -> AnySpan: ...

    def samples(self, trace_id: int) -> bool: ...

    def flush(self) -> None: ...


_tracer: AnyTracer | None = None


def use(tracer: AnyTracer | None) -> None:
    """Make this the tracer of the process."""
    global _tracer
    _tracer = tracer


def tracer() -> AnyTracer | None:
    """The tracer of this process; None where nothing is exported."""
    return _tracer
