"""A trace collector on a loopback port: accepts OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flask import Flask, Response, request
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.outside import serving

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
FAILED = 2  # status code of a failed span


@dataclass(frozen=True)
class Seen:
    """A received span."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    started_ns: int
    ended_ns: int
    has_failed: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    url: str = ""
    spans: list[Seen] = field(default_factory=list)

    def named(self, name: str) -> list[Seen]:
        return [span for span in self.spans if span.name == name]

    def of_run(self, run_id: str) -> list[Seen]:
        """Return the spans of the trace that a run belongs to, by start time."""
        traces = {span.trace_id for span in self.spans if span.attributes.get("runyard.run_id") == run_id}
        return sorted(
            (span for span in self.spans if span.trace_id in traces), key=lambda span: span.started_ns
        )

    def app(self) -> Flask:
        app = Flask("collector")

        @app.post("/v1/traces")
        def take() -> Response:
            body = request.get_data()
            if request.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = _attributes(of_resource.resource)
                for of_scope in of_resource.scope_spans:
                    self.spans += [_seen(span, resource) for span in of_scope.spans]
            return Response(b"", content_type="application/x-protobuf")

        return app


def _seen(span: Any, resource: dict[str, Any]) -> Seen:
    return Seen(
        span.name,
        KINDS[span.kind],
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == FAILED,
        _attributes(span),
        resource,
    )


def _attributes(said: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in said.attributes}


def _value(value: Any) -> Any:
    plain = getattr(value, value.WhichOneof("value"))
    return [_value(each) for each in plain.values] if value.HasField("array_value") else plain


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    with serving(collector.app()) as port:
        collector.url = f"http://127.0.0.1:{port}"
        yield collector
