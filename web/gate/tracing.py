"""The current request's context in a distributed trace, and its span if spans are exported."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus

from flask import Flask, Response, g, request
from werkzeug.http import HTTP_STATUS_CODES

from shared.infra import tracing
from shared.infra.tracing import Context
from shared.runs.drafts import RunRequest

# Routes that are called all the time and tell nothing about runs.
UNTRACED = ("/ok", "/metrics", "/o/static/<version>/<path:name>")


def register(app: Flask) -> None:
    """Trace every request of the app, if this process has a tracer."""
    app.before_request(begin)
    app.after_request(finish)
    app.teardown_request(end)


def begin() -> None:
    g.trace = tracing.context_of(
        request.headers.get(tracing.HEADER), request.headers.get(tracing.STATE_HEADER)
    )
    tracer = tracing.tracer()
    route = "" if request.url_rule is None else request.url_rule.rule
    if tracer is None or route.endswith(UNTRACED):
        return
    g.span = tracer.start(
        f"{request.method} {route}".strip(),
        kind="server",
        parent=g.trace,
        http__request__method=request.method,
        http__route=route or None,
        url__path=request.path,
        runyard__request_id=g.get("request_id"),
    )
    g.trace = g.span.context


def finish(response: Response) -> Response:
    """End the span when the response begins. The rest of a stream belongs to the run's span."""
    span = g.pop("span", None)
    if span is not None:
        status = response.status_code
        span.set(http__response__status_code=status)
        failed = status >= HTTPStatus.INTERNAL_SERVER_ERROR  # a project's app may use a status without a name
        span.end(error=HTTP_STATUS_CODES.get(status, str(status)) if failed else None)
    return response


def end(error: BaseException | None) -> None:
    """End the span of a request without a response."""
    span = g.pop("span", None)
    if span is not None:
        span.end(error=type(error).__name__ if error is not None else None)


def placed(asked: RunRequest) -> RunRequest:
    """Return the run request with the trace context of the current request."""
    found: Context | None = g.get("trace")
    return asked if found is None else replace(asked, extras={**asked.extras, **found.entries})
