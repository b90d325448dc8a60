"""Headers of every response: a request id, CORS for browsers, safe defaults.

CORS is for the deployment API. Any origin may call it, since a key authorizes requests and no cookie does.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from http import HTTPStatus
from uuid import UUID, uuid4

from flask import Flask, Response, g, request

from shared.infra import logs
from web.gate import named_headers
from web.gate.addresses import DEPLOYMENT_PREFIX
from web.gate.target import target
from web.http import cors
from web.http.cors import Cors

log = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
EXPOSED = "location, content-location, x-pagination-total, x-pagination-next, x-request-id"
METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
JSON_POLICY = "default-src 'none'; frame-ancestors 'none'"


class ForeignResponse(Response):
    """A response of a project's app, whose author decides about security headers."""


def register(app: Flask) -> None:
    """Set the headers on every response of the app, and answer preflight requests."""
    app.before_request(begin)
    app.before_request(preflight)
    app.after_request(finish)
    app.teardown_request(unbind)


def begin() -> None:
    g.request_id = request_id(request.headers.get(REQUEST_ID))
    g.log_context = ExitStack()
    found = target()
    named = named_headers.headers_for_log(found.deployment) if found is not None else {}
    g.log_context.enter_context(logs.bound(request_id=g.request_id, **named))


def unbind(error: BaseException | None) -> None:
    stack: ExitStack | None = g.pop("log_context", None)
    if stack is not None:
        stack.close()


def request_id(sent: str | None) -> str:
    """Return the caller's request id if it is a UUID, else a new one."""
    try:
        return str(UUID(sent)) if sent else str(uuid4())
    except ValueError:
        return str(uuid4())


def preflight() -> Response | None:
    """Answer a browser's preflight request, which carries no key."""
    if not _is_preflight() or not request.path.startswith(DEPLOYMENT_PREFIX):
        return None
    own = _own_cors()
    if own is not None:
        return own.preflight()
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
        headers.pop("Content-Type", None)  # there is no content
    if request.path.startswith(DEPLOYMENT_PREFIX):
        _say_who_may_read(response)
        _log(response)
    return response


def _log(response: Response) -> None:
    """Log the request if the deployment has `logging_headers`. The log context adds the selected headers."""
    found = target()
    if found is not None and found.deployment.http.get("logging_headers"):
        log.info("%s %s %d", request.method, request.path, response.status_code)


def _say_who_may_read(response: Response) -> None:
    """Set the CORS headers that let pages read the response, unless a project's app has set them itself."""
    own = _own_cors()
    if own is not None and not _is_preflight():
        own.mark(response)
    if own is not None or "Access-Control-Allow-Origin" in response.headers:
        return
    response.headers.add("Vary", "Origin")
    if "Origin" in request.headers:
        response.headers["Access-Control-Allow-Origin"] = "*"
        response.headers["Access-Control-Expose-Headers"] = EXPOSED


def _own_cors() -> Cors | None:
    """Return the CORS rules of the deployment that is called, or None."""
    found = target()
    return None if found is None else cors.of_http(found.deployment.http)


def _is_preflight() -> bool:
    return request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
