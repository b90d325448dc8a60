"""OpenTelemetry spans of a run, if spans are exported: the run, its wait, its attempts and their nodes.

The process that ends the run writes the run's span. Its ids derive from the run's id, so every attempt knows them
before the span exists.
"""

from __future__ import annotations

import time
from typing import Any

import orjson

from shared.infra import trace_context, tracing
from shared.infra.trace_context import Context
from shared.models import RunStatus
from shared.runs.claims import Claimed

MAX_NODES = 1_000  # of an attempt
MAX_NAME = 200
FAILED = (RunStatus.ERROR, RunStatus.TIMEOUT)


def begin(run: Claimed) -> RunTrace | None:
    """Return the trace of a new attempt, or None if no spans are exported."""
    return None if tracing.tracer() is None else RunTrace(run)


def write_run_span(run: Claimed, status: str, error: str | None = None) -> None:
    """Write the span of an ended run, from its creation until now."""
    tracer = tracing.tracer()
    if tracer is None:
        return
    span = tracer.start(
        f"run {run.graph_id}",
        kind="consumer",
        parent=trace_context.of_kwargs(run.kwargs),
        context=_context_of(run),
        at_ns=_created_ns(run),
        runyard__status=status,
        runyard__attempts=run.attempt,
        **_of_run(run),
    )
    span.end(error=(error or status) if status in FAILED else None)


def _of_run(run: Claimed) -> dict[str, Any]:
    return {
        "runyard__run_id": str(run.run_id),
        "runyard__thread_id": str(run.thread_id),
        "runyard__assistant_id": str(run.assistant_id),
        "runyard__deployment_id": str(run.deployment_id),
        "runyard__revision_id": str(run.revision_id),
        "runyard__graph_id": run.graph_id,
    }


def _context_of(run: Claimed) -> Context:
    tracer = tracing.tracer()
    is_sampled = tracer is None or tracer.samples(run.run_id.int)
    return trace_context.of_run(run.run_id, trace_context.of_kwargs(run.kwargs), is_sampled=is_sampled)


def _created_ns(run: Claimed) -> int:
    """Return the run's creation time in nanoseconds, from its id, a UUID of version 7."""
    return (run.run_id.int >> 80) * 1_000_000


class RunTrace:
    """The span of one attempt and the spans of its nodes."""

    def __init__(self, run: Claimed) -> None:
        tracer = tracing.tracer()
        assert tracer is not None
        self._tracer = tracer
        context = _context_of(run)
        if run.attempt == 1:
            tracer.start("wait", parent=context, at_ns=_created_ns(run)).end()
        self._span = tracer.start(
            f"attempt {run.attempt}",
            parent=context,
            runyard__attempt=run.attempt,
            runyard__worker=run.owner,
            **_of_run(run),
        )
        self._nodes: dict[str, Any] = {}
        self._counted = 0
        self._error: str | None = None

    @property
    def context(self) -> Context:
        """The trace context in which the graph's own spans belong."""
        return self._span.context

    def node(self, body: bytes) -> None:
        """Begin or end the span of a node as a graph host reports it."""
        frame = orjson.loads(body)
        id, at_ns = str(frame["id"]), int(frame["at"] * 1e9)
        if frame["ended"]:
            span = self._nodes.pop(id, None)
            if span is not None:
                span.end(error=frame.get("error"), at_ns=at_ns)
            return
        if self._counted >= MAX_NODES:
            return
        self._counted += 1
        above = self._nodes.get(str(frame.get("within")), self._span)
        name = str(frame["name"])[:MAX_NAME]
        self._nodes[id] = self._tracer.start(
            f"node {name}", parent=above.context, at_ns=at_ns, runyard__node=name
        )

    def failed(self, why: str) -> None:
        """Mark the attempt as failed, with the reason. Without a call the attempt counts as successful."""
        self._error = why[:1_000]

    def end(self) -> None:
        for span in self._nodes.values():
            span.end(error="did not end")
        self._nodes.clear()
        self._span.end(error=self._error, at_ns=time.time_ns())
