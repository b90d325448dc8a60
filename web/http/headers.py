"""Headers of every response: a request id, CORS for browsers, safe defaults.

CORS is for the deployment API. Any origin may call it, since a key authorizes requests and no cookie does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid4

from flask import Response, request

from shared.deployments.deployments import PATH_PREFIX
from web.http import cors
from web.http.cors import Cors

log = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
REQUEST_ID_KEY = "runyard.request_id"  # in the WSGI environment: the id of the current request
EXPOSED = "location, content-location, x-pagination-total, x-pagination-next, x-request-id"
METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
JSON_POLICY = "default-src 'none'; frame-ancestors 'none'"


class ForeignResponse(Response):
    """A response of a project's app, whose author decides about security headers."""


def request_id(sent: str | None) -> str:
    """Return the caller's request id if it is a UUID, else a new one."""
    try:
        return str(UUID(sent)) if sent else str(uuid4())
    except ValueError:
        return str(uuid4())


def is_preflight() -> bool:
    """Return whether the current request is a browser's preflight request, which carries no key."""
    return request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers


def preflight(http: Mapping[str, Any]) -> Response:
    """Answer a preflight request for a deployment whose langgraph.json has this `http` section."""
    rules = cors.of_http(http)
    if rules is not None:
        return rules.preflight()
    response = Response("OK", mimetype="text/plain")
    response.headers["Access-Control-Allow-Methods"] = METHODS
    response.headers["Access-Control-Max-Age"] = "600"
    requested = request.headers.get("Access-Control-Request-Headers")
    if requested:
        response.headers["Access-Control-Allow-Headers"] = requested
    if request.headers.get("Access-Control-Request-Private-Network"):
        response.headers["Access-Control-Allow-Private-Network"] = "true"
    return response


def finish(response: Response, request_id: str, http: Mapping[str, Any]) -> None:
    """Set the headers of a response. `http` is the section of the langgraph.json of the deployment that is called."""
    headers = response.headers
    headers[REQUEST_ID] = request_id
    if not isinstance(response, ForeignResponse):
        headers.setdefault("X-Content-Type-Options", "nosniff")
        headers.setdefault("Referrer-Policy", "no-referrer")
        headers.setdefault("Content-Security-Policy", JSON_POLICY)
    if response.status_code == HTTPStatus.NO_CONTENT:
        headers.pop("Content-Type", None)  # there is no content
    if request.path.startswith(PATH_PREFIX):
        _set_cors(response, cors.of_http(http))
        if http.get("logging_headers"):  # the log context adds the selected headers
            log.info("%s %s %d", request.method, request.path, response.status_code)


def _set_cors(response: Response, rules: Cors | None) -> None:
    """Set the CORS headers that let pages read the response, unless a project's app has set them itself."""
    if rules is not None and not is_preflight():
        rules.mark(response)
    if rules is not None or "Access-Control-Allow-Origin" in response.headers:
        return
    response.headers.add("Vary", "Origin")
    if "Origin" in request.headers:
        response.headers["Access-Control-Allow-Origin"] = "*"
        response.headers["Access-Control-Expose-Headers"] = EXPOSED
