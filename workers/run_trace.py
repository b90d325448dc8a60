"""OpenTelemetry spans of a run, if spans are exported: the run, its wait, its attempts, their nodes and calls.

The process that ends the run writes the run's span. Its ids derive from the run's id, so every attempt knows them
before the span exists. The ids of nodes and calls derive from the attempt's span in the same way: a call within a tool
ends before it, and a call may be reported before its node.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any, NamedTuple

import orjson

from shared.infra import trace_context, tracing
from shared.infra.trace_context import SAMPLED, Context
from shared.models import RunStatus
from shared.runs.claims import Claimed
from workers import call_spans

MAX_NODES = 1_000  # of an attempt
MAX_NAME = 200
# Limits of numbers from a graph host. A number that OTLP cannot encode would cost the spans of other runs, too.
MAX_SECONDS = 1 << 33  # since 1970
MAX_DROPPED = 1 << 31
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
        **_shared_attributes(run),
    }


def _shared_attributes(run: Claimed) -> dict[str, Any]:
    """Return the attributes that the spans of a run and of its calls have."""
    attributes: dict[str, Any] = {}
    if not run.temporary:
        attributes["gen_ai.conversation.id"] = str(run.thread_id)
    if run.kwargs.get("replay"):
        attributes["runyard.replay"] = True
    return attributes


def _context_of(run: Claimed) -> Context:
    tracer = tracing.tracer()
    is_sampled = tracer is None or tracer.samples(run.run_id.int)
    return trace_context.of_run(run.run_id, trace_context.of_kwargs(run.kwargs), is_sampled=is_sampled)


def _created_ns(run: Claimed) -> int:
    """Return the run's creation time in nanoseconds, from its id, a UUID of version 7."""
    return (run.run_id.int >> 80) * 1_000_000


def _nanoseconds(seconds: float) -> int:
    """Convert a time that a graph host reports. Raises ValueError for a number that is no time."""
    if not 0 <= seconds < MAX_SECONDS:
        raise ValueError(f"time {seconds!r:.40}")
    return int(seconds * 1e9)


class _OpenNode(NamedTuple):
    """A node that has begun."""

    name: str
    context: Context
    parent: Context
    from_ns: int


class RunTrace:
    """The span of one attempt and the spans of its nodes and calls."""

    def __init__(self, run: Claimed) -> None:
        tracer = tracing.tracer()
        assert tracer is not None
        self._tracer = tracer
        context = _context_of(run)
        if run.attempt == 1:
            tracer.start("wait", parent=context, at_ns=_created_ns(run)).end()
        self._shared_attributes = _shared_attributes(run)
        self._span = tracer.start(
            f"attempt {run.attempt}",
            parent=context,
            runyard__attempt=run.attempt,
            runyard__worker=run.owner,
            gen_ai__operation__name="invoke_agent",
            gen_ai__agent__id=str(run.assistant_id),
            gen_ai__agent__name=run.graph_id,
            **_of_run(run),
        )
        self.context = self._span.context  # where the graph's own spans belong
        self._key = self.context.span_id.to_bytes(8)
        self._nodes: dict[str, _OpenNode] = {}
        self._node_count = self._call_count = 0
        self._dropped_nodes = self._dropped_calls = 0
        self._error: str | None = None

    @property
    def is_sampled(self) -> bool:
        """Whether the spans are exported. A graph host reports no nodes and calls otherwise."""
        return bool(self.context.flags & SAMPLED)

    def node(self, body: bytes) -> None:
        """Begin or end the span of a node as a graph host reports it."""
        frame = orjson.loads(body)
        id, at_ns = str(frame["id"]), _nanoseconds(frame["at"])
        if frame["ended"]:
            node = self._nodes.pop(id, None)
            if node is not None:
                self._write_node(node, at_ns, frame.get("error"))
            return
        if self._node_count >= MAX_NODES:
            self._dropped_nodes += 1
            return
        self._node_count += 1
        above = self._nodes.get(str(frame.get("within")))
        parent = self.context if above is None else above.context
        self._nodes[id] = _OpenNode(str(frame["name"])[:MAX_NAME], self._derived(id), parent, at_ns)

    def call(self, body: bytes) -> None:
        """Write the span of a model or tool call that has ended in a graph host."""
        record = orjson.loads(body)
        if "dropped" in record:
            self._dropped_calls += min(int(record["dropped"]), MAX_DROPPED)
            return
        if self._call_count >= call_spans.MAX_CALLS:
            self._dropped_calls += 1
            return
        self._call_count += 1
        is_tool = record["operation"] == call_spans.TOOL
        self._tracer.write(
            call_spans.name_of(record),
            kind="internal" if is_tool else "client",
            parent=self._parent(record.get("within")),
            context=self._derived(str(record["id"])),
            from_ns=_nanoseconds(record["from"]),
            until_ns=_nanoseconds(record["until"]),
            attributes={**self._shared_attributes, **call_spans.attributes_of(record)},
            error=call_spans.failure_of(record),
        )

    def _write_node(self, node: _OpenNode, until_ns: int, error: str | None) -> None:
        self._tracer.write(
            f"node {node.name}",
            parent=node.parent,
            context=node.context,
            from_ns=node.from_ns,
            until_ns=until_ns,
            attributes={"runyard.node": node.name},
            error=None if error is None else str(error),
        )

    def _derived(self, id: str) -> Context:
        """Return the context of a node or call of this attempt, whose span id derives from the id in the host."""
        attempt = self.context
        digest = hashlib.blake2b(id.encode(), digest_size=8, key=self._key).digest()
        return Context(attempt.trace_id, int.from_bytes(digest) or 1, attempt.flags, attempt.state)

    def _parent(self, within: object) -> Context:
        """Return the context around a call. Spans of nodes may be missing if the attempt has too many."""
        if within is None:
            return self.context
        node = self._nodes.get(str(within))
        if node is not None:
            return node.context
        return self.context if self._dropped_nodes else self._derived(str(within))

    def failed(self, why: str) -> None:
        """Mark the attempt as failed, with the reason. Without a call the attempt counts as successful."""
        self._error = why[:1_000]

    def end(self) -> None:
        for node in self._nodes.values():
            self._write_node(node, time.time_ns(), "did not end")
        self._nodes.clear()
        self._span.set(
            runyard__dropped_nodes=self._dropped_nodes or None,
            runyard__dropped_calls=self._dropped_calls or None,
        )
        self._span.end(error=self._error, at_ns=time.time_ns())
