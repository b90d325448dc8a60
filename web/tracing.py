"""The place of the current request in a distributed trace, and its span where spans are exported."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus

from flask import Flask, Response, g, request
from werkzeug.http import HTTP_STATUS_CODES

from shared.infra import tracing
from shared.infra.tracing import Context
from shared.runs.drafts import RunRequest

# Asked all the time, and says nothing of runs.
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
    """An answer has begun; of a stream, what follows is the run's."""
    span = g.pop("span", None)
    if span is not None:
        status = response.status_code
        span.set(http__response__status_code=status)
        failed = (
            status >= HTTPStatus.INTERNAL_SERVER_ERROR
        )  # a project's app may answer a number that has no name
        span.end(error=HTTP_STATUS_CODES.get(status, str(status)) if failed else None)
    return response


def end(error: BaseException | None) -> None:
    """There was no answer."""
    span = g.pop("span", None)
    if span is not None:
        span.end(error=type(error).__name__ if error is not None else None)


def placed(asked: RunRequest) -> RunRequest:
    """The run that is asked for, at the current request's place in its trace."""
    found: Context | None = g.get("trace")
    return asked if found is None else replace(asked, extras={**asked.extras, **found.entries})
