"""What every answer carries beside its body: a request id, CORS for browsers, safe defaults.

CORS is for the deployment API: any origin may call it, since only a key opens it and no cookie does.
"""

from __future__ import annotations

from contextlib import ExitStack
from http import HTTPStatus
from uuid import UUID, uuid4

from flask import Flask, Response, g, request

from shared.infra import logs
from web.addresses import DEPLOYMENT_PREFIX

REQUEST_ID = "x-request-id"
EXPOSED = "location, content-location, x-pagination-total, x-pagination-next, x-request-id"
METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
JSON_POLICY = "default-src 'none'; frame-ancestors 'none'"


class ForeignResponse(Response):
    """An answer that is not ours: what pages may do is for its author to say."""


def register(app: Flask) -> None:
    """Put the headers on every answer of the app, and answer preflights."""
    app.before_request(begin)
    app.before_request(preflight)
    app.after_request(finish)
    app.teardown_request(unbind)


def begin() -> None:
    g.request_id = request_id(request.headers.get(REQUEST_ID))
    g.log_context = ExitStack()
    g.log_context.enter_context(logs.bound(request_id=g.request_id))


def unbind(error: BaseException | None) -> None:
    stack: ExitStack | None = g.pop("log_context", None)
    if stack is not None:
        stack.close()


def request_id(sent: str | None) -> str:
    """The caller's own id when it is a UUID, else a new one."""
    try:
        return str(UUID(sent)) if sent else str(uuid4())
    except ValueError:
        return str(uuid4())


def preflight() -> Response | None:
    """A browser's question whether it may call; it carries no key."""
    asked = request.headers.get("Access-Control-Request-Method")
    if request.method != "OPTIONS" or not asked or not request.path.startswith(DEPLOYMENT_PREFIX):
        return None
    response = Response("OK", mimetype="text/plain")
    response.headers["Access-Control-Allow-Methods"] = METHODS
    response.headers["Access-Control-Max-Age"] = "600"
    wanted = request.headers.get("Access-Control-Request-Headers")
    if wanted:
        response.headers["Access-Control-Allow-Headers"] = wanted
    if request.headers.get("Access-Control-Request-Private-Network"):
        response.headers["Access-Control-Allow-Private-Network"] = "true"
    return response


def finish(response: Response) -> Response:
    headers = response.headers
    headers[REQUEST_ID] = g.request_id
    if not isinstance(response, ForeignResponse):
        headers.setdefault("X-Content-Type-Options", "nosniff")
        headers.setdefault("Referrer-Policy", "no-referrer")
        headers.setdefault("Content-Security-Policy", JSON_POLICY)
    if response.status_code == HTTPStatus.NO_CONTENT:
        headers.pop("Content-Type", None)  # of nothing
    if request.path.startswith(DEPLOYMENT_PREFIX):
        headers.add("Vary", "Origin")
        if "Origin" in request.headers:
            headers["Access-Control-Allow-Origin"] = "*"
            headers["Access-Control-Expose-Headers"] = EXPOSED
    return response
