"""The OpenTelemetry tracer. This module alone imports OpenTelemetry, and is loaded only if spans are exported.

The caller may choose the ids of a span. The id of a run's span derives from the run, so all attempts in all processes
know it before the process that ends the run writes the span.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from shared import __version__
from shared.infra.trace_context import Context

SERVICE = "runyard"
PATH = "/v1/traces"
SCOPE = "runyard"
MAX_ATTRIBUTES = 64  # of a span that is written at once

Value = str | int | float | bool | Sequence[str]
UNSET = Status(StatusCode.UNSET)
KINDS = {
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "consumer": SpanKind.CONSUMER,
    "internal": SpanKind.INTERNAL,
}


class _Ids(RandomIdGenerator):
    """Generates random ids, except for the next span if `next_ids` are set."""

    def __init__(self) -> None:
        self.next_ids: tuple[int | None, int | None] = (None, None)

    def generate_trace_id(self) -> int:
        return self.next_ids[0] or super().generate_trace_id()

    def generate_span_id(self) -> int:
        return self.next_ids[1] or super().generate_span_id()


class Span:
    """A started span."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def context(self) -> Context:
        known = self._span.get_span_context()
        return Context(known.trace_id, known.span_id, known.trace_flags, known.trace_state.to_header())

    def set(self, **attributes: Value | None) -> None:
        """Set attributes. `__` in a name stands for `.`."""
        self._span.set_attributes(_named(attributes))

    def end(self, *, error: str | None = None, at_ns: int | None = None) -> None:
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(at_ns)


class OtelTracer:
    """Creates spans and exports them in the background."""

    def __init__(self, endpoint: str, *, process: str, instance: str) -> None:
        self._ids = _Ids()
        self._provider = TracerProvider(
            resource=_resource(process, instance), id_generator=self._ids, shutdown_on_exit=True
        )
        exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + PATH)
        self._processor = BatchSpanProcessor(exporter)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer(SCOPE, __version__)
        self._scope = InstrumentationScope(SCOPE, __version__)
        self._limits = SpanLimits()  # from OpenTelemetry's variables

    def start(
        self,
        name: str,
        *,
        kind: str = "internal",
        parent: Context | None = None,
        context: Context | None = None,
        at_ns: int | None = None,
        **attributes: Value | None,
    ) -> Span:
        """Start a span below `parent`, or a new trace without one. `context` gives the span's ids."""
        above = None if parent is None else trace.set_span_in_context(NonRecordingSpan(_remote(parent)))
        if context is not None:
            self._ids.next_ids = context.trace_id, context.span_id
        try:
            span = self._tracer.start_span(
                name,
                above or trace.set_span_in_context(trace.INVALID_SPAN),
                KINDS[kind],
                _named(attributes),
                start_time=at_ns or time.time_ns(),
            )
        finally:
            self._ids.next_ids = None, None
        return Span(span)

    def write(
        self,
        name: str,
        *,
        kind: str = "internal",
        parent: Context,
        context: Context,
        from_ns: int,
        until_ns: int,
        attributes: Mapping[str, Value],
        error: str | None = None,
    ) -> None:
        """Export a span that has ended, below a parent that is sampled.

        A span that nothing can change any more costs a third of one that is started and ended.
        """
        span = ReadableSpan(
            name,
            _local(context),
            _local(parent),
            self._provider.resource,
            self._limited(attributes),
            kind=KINDS[kind],
            status=UNSET if error is None else Status(StatusCode.ERROR, error),
            start_time=from_ns,
            end_time=until_ns,
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(span)

    def _limited(self, attributes: Mapping[str, Value]) -> Mapping[str, Any]:
        """Apply the limits that the operator has set with OpenTelemetry's variables."""
        count, length = self._limits.max_span_attributes, self._limits.max_span_attribute_length
        if length is None and (count is None or count >= MAX_ATTRIBUTES):
            return attributes
        return BoundedAttributes(count, attributes, max_value_len=length)

    def samples(self, trace_id: int) -> bool:
        """Whether a new trace with this id would be exported."""
        decided = self._provider.sampler.should_sample(None, trace_id, "run")
        return decided.decision.is_sampled()

    def flush(self) -> None:
        """Export all waiting spans now."""
        self._provider.force_flush()

    def close(self) -> None:
        self._provider.shutdown()


def _resource(process: str, instance: str) -> Resource:
    """Return the resource from OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, with defaults for the rest."""
    configured = Resource.create()
    defaults = {"service.version": __version__, "service.instance.id": instance, "runyard.process": process}
    if str(configured.attributes.get(SERVICE_NAME, "")).partition(":")[0] == "unknown_service":
        defaults[SERVICE_NAME] = SERVICE
    return configured.merge(Resource(defaults))


def _remote(context: Context) -> SpanContext:
    return SpanContext(
        context.trace_id,
        context.span_id,
        is_remote=True,
        trace_flags=TraceFlags(context.flags),
        trace_state=TraceState.from_header([context.state]) if context.state else None,
    )


def _local(context: Context) -> SpanContext:
    """Return the context of a span of this process. It needs no state, which is the parent's."""
    return SpanContext(
        context.trace_id, context.span_id, is_remote=False, trace_flags=TraceFlags(context.flags)
    )


def _named(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name.replace("__", "."): value for name, value in attributes.items() if value is not None}
