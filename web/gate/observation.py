"""The observation of a request from its first step to its end: id, log fields, span, counters, stream slot."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any

from flask import Response, current_app, g, request
from werkzeug.http import HTTP_STATUS_CODES

from shared.infra import logs, trace_context, tracing
from shared.infra.tracing import AnySpan
from web.gate.context import caller, settings
from web.gate.forwarding import headers_for_log
from web.gate.limits import StreamSlot
from web.gate.request_metrics import Traffic
from web.http import headers
from web.schemas import operations

# Routes that are called all the time and tell nothing about runs.
UNTRACED = ("/ok", "/metrics", "/o/static/<version>/<path:name>")


class Observation:
    """The changing state of one request, for the handlers at its end."""

    __slots__ = ("_began_at", "_logs", "_span", "http", "request_id", "slot", "trace")

    def __init__(self) -> None:
        self._began_at = time.perf_counter()
        self.request_id = headers.request_id(request.headers.get(headers.REQUEST_ID))
        self.trace = trace_context.context_of(
            request.headers.get(trace_context.HEADER), request.headers.get(trace_context.STATE_HEADER)
        )
        self.http: Mapping[str, Any] = {}  # the `http` section of the deployment's langgraph.json
        self.slot = StreamSlot()
        self._span: AnySpan | None = None
        self._logs = ExitStack()
        self._logs.enter_context(logs.bound(request_id=self.request_id))

    def describe(self, http: Mapping[str, Any]) -> None:
        """Add the headers that the deployment selects to the request's log lines."""
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
        traffic.answered(response.status_code, seconds)

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
    """Begin to observe the current request."""
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
