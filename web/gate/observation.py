"""The observation of a request from its first step to its end: id, log fields, span, counters, stream slot.

Several processes of one server (`web/gunicorn.py`) count in files of a common folder, and each returns the sums.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any

from flask import Response, current_app, g, request
from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from werkzeug.http import HTTP_STATUS_CODES

from shared.infra import logs, trace_context, tracing
from shared.infra.tracing import AnySpan
from web.gate.context import caller, settings
from web.gate.forwarding import headers_for_log
from web.gate.limits import StreamSlot
from web.http import headers
from web.schemas import operations

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client when it is imported
UNKNOWN = "unknown"  # label of requests without a route, since callers must not be able to create labels
SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# A process that starts creates its files empty and writes them afterwards.
READ_TRIES, READ_PAUSE_SECONDS = 20, 0.05

disable_created_metrics()


def _collect_from_all() -> Iterable[Any]:
    """Return the sums over the processes of this server. Waits for files that a starting process has not written yet."""
    collector = MultiProcessCollector(None)
    for _ in range(READ_TRIES):
        try:
            return collector.collect()
        except struct.error:
            time.sleep(READ_PAUSE_SECONDS)
    return collector.collect()


class Traffic(Collector):
    """Counts since the server started. Excludes the seconds of long responses, which depend on the run."""

    def __init__(self) -> None:
        self._requests = Counter(
            "runyard_http_requests",
            "Number of requests that this web server has answered",
            ("method", "route", "status"),
            registry=None,
        )
        self._seconds = Histogram(
            "runyard_http_request_seconds",
            "Seconds until a response began, without streams and waits for runs",
            buckets=SECONDS,
            registry=None,
        )
        self.open_streams = Gauge(
            "runyard_open_streams",
            "Number of open long responses of this web server: streams, waits and long polls",
            registry=None,
            multiprocess_mode="livesum",
        )

    def count_response(self, status: int, seconds: float | None) -> None:
        """Count the current request. `seconds` is None for a long response."""
        rule = request.url_rule
        self._requests.labels(request.method, UNKNOWN if rule is None else rule.rule, status).inc()
        if seconds is not None:
            self._seconds.observe(seconds)

    def collect(self) -> Iterator[Any]:
        if SHARED_FOLDER in os.environ:
            yield from _collect_from_all()
            return
        for metric in (self._requests, self._seconds, self.open_streams):
            yield from metric.collect()

    def totals(self) -> dict[str, Any]:
        """Return the sums over all routes. The mean is None before the first response."""
        samples = [one for family in self.collect() for one in family.samples]
        counted = [one for one in samples if one.name == "runyard_http_requests_total"]
        failed = sum(one.value for one in counted if one.labels["status"].startswith("5"))
        sums = {one.name: one.value for one in samples if not one.labels}
        timed = sums.get("runyard_http_request_seconds_count")
        return {
            "open_streams": int(sums.get("runyard_open_streams", 0)),
            "n_requests": int(sum(one.value for one in counted)),
            "n_server_errors": int(failed),
            "latency_mean_secs": sums["runyard_http_request_seconds_sum"] / timed if timed else None,
        }


# Routes that are called all the time and tell nothing about runs.
UNTRACED = ("/ok", "/metrics", "/o/static/<version>/<path:name>", "/o/guide/<path:name>")


class Observation:
    """The changing state of one request, for the handlers at its end."""

    __slots__ = ("_began_at", "_logs", "_span", "http", "request_id", "slot", "trace")

    def __init__(self) -> None:
        self._began_at = time.perf_counter()
        self.request_id = headers.request_id()
        self.trace = trace_context.context_of(
            headers.request_header(trace_context.HEADER), headers.request_header(trace_context.STATE_HEADER)
        )
        self.http: Mapping[str, Any] = {}  # the `http` section of the deployment's langgraph.json
        self.slot = StreamSlot()
        self._span: AnySpan | None = None
        self._logs = ExitStack()
        self._logs.enter_context(logs.bound(request_id=self.request_id))

    def select_headers(self, http: Mapping[str, Any]) -> None:
        """Apply the deployment's `http` section: it selects headers for log lines now, and headers of the response later."""
        self.http = http
        if fields := headers_for_log(http, settings()):
            self._logs.enter_context(logs.bound(**fields))

    def start_span(self) -> None:
        """Begin the span of the request, if this process exports spans."""
        tracer = tracing.tracer()
        route = "" if request.url_rule is None else request.url_rule.rule
        if tracer is None or route.endswith(UNTRACED):
            return
        self._span = tracer.start(
            f"{request.method} {route}".strip(),
            kind="server",
            parent=self.trace,
            http__request__method=request.method,
            http__route=route or None,
            url__path=request.path,
            runyard__request_id=self.request_id,
        )
        self.trace = self._span.context

    def finish(self, response: Response) -> None:
        """Complete the response, end the span and count the request. A stream may go on for long after that."""
        self.slot.transfer(response)
        self._end_span(response.status_code)
        headers.finish(response, self.request_id, self.http)
        traffic: Traffic = current_app.extensions["runyard_traffic"]
        seconds = None if operations.may_take_long() else time.perf_counter() - self._began_at
        traffic.count_response(response.status_code, seconds)

    def _end_span(self, status: int) -> None:
        """End the span when the response begins. The rest of a stream belongs to the run's span."""
        span, self._span = self._span, None
        if span is not None:
            span.set(http__response__status_code=status)
            has_failed = status >= HTTPStatus.INTERNAL_SERVER_ERROR
            # A project's app may use a status without a name.
            span.end(error=HTTP_STATUS_CODES.get(status, str(status)) if has_failed else None)

    def release(self, error: BaseException | None) -> None:
        """Release what the request still holds at its end, with or without a response."""
        self.slot.release()
        span, self._span = self._span, None
        if span is not None:
            span.end(error=type(error).__name__ if error is not None else None)
        self._logs.close()


def begin() -> Observation:
    g.observation = observed = Observation()
    request.environ[headers.REQUEST_ID_KEY] = observed.request_id
    return observed


def current() -> Observation | None:
    """Return the observation of the current request, or None if it failed before the gate."""
    observed: Observation | None = g.get("observation")
    return observed


def take_slot() -> None:
    """Take a stream slot for the caller of the current request. Raises TooMany and Unavailable.

    For views whose response takes long only in some cases. The gate takes the slot for all others.
    """
    g.observation.slot.take(caller())
