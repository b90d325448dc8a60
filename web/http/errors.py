"""HTTP responses for errors: the one table of class → status, and the two forms of a body.

Control plane (`/v1`, `/v2`): a 422 is `{"detail": [{"loc", "msg", "type"}]}`, all else `{"detail": "…"}`.
Deployment API and other routes: always `{"detail": "…"}`. An unexpected error is `internal error` with the request
id; its text appears only in the log.
"""

from __future__ import annotations

import logging
import re
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, current_app, jsonify, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, RequestEntityTooLarge

from shared.errors import (
    AddressRefused,
    BuildFailed,
    Conflict,
    Denied,
    Fenced,
    Forbidden,
    Gone,
    HostDied,
    HostError,
    HostUnusable,
    InProgress,
    Invalid,
    NotBegun,
    NotFound,
    OutcomeUnknown,
    OutsideFailed,
    Refused,
    RunyardError,
    TooLarge,
    TooMany,
    Unanswered,
    Unauthenticated,
    Unavailable,
)
from web.http.headers import FOR_PROXIES, OF_ORIGIN, REQUEST_ID_KEY
from web.schemas.operations import CONTROL_PLANE
from web.schemas.validation import SchemaViolation, Violation

log = logging.getLogger(__name__)

# The status of each error class. A new class needs a line here.
STATUSES: dict[type[RunyardError], int] = {
    RunyardError: 500,
    Refused: 400,
    Invalid: 422,
    NotFound: 404,
    Gone: 410,
    Conflict: 409,
    InProgress: 409,
    Unauthenticated: 401,
    Forbidden: 403,
    TooLarge: 413,
    TooMany: 429,
    Denied: 403,  # unless it carries its own status
    Unavailable: 503,
    OutcomeUnknown: 503,
    OutsideFailed: 502,
    AddressRefused: 502,
    Unanswered: 504,
    BuildFailed: 424,
    Fenced: 409,
    HostError: 424,
    HostDied: 424,
    HostUnusable: 424,
    NotBegun: 424,
}

# Headers that a project's refusal may not set: headers of the connection and the body, headers that affect the whole
# origin, and headers that proxies in front of the service obey. TOKEN and TEXT match valid header names and values.
SET_BY_SERVICE = (
    OF_ORIGIN
    | FOR_PROXIES
    | frozenset(
        "connection content-encoding content-length content-type date keep-alive proxy-authenticate proxy-connection"
        " server te trailer transfer-encoding upgrade x-request-id"
        " content-security-policy referrer-policy set-cookie x-content-type-options".split()
    )
)
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
TEXT = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,8192}")
UNAVAILABLE_RETRY_SECONDS = 2


def register(app: Flask) -> None:
    """Turn every error of a request into a response in one of the two forms."""
    app.register_error_handler(RunyardError, on_domain_error)
    app.register_error_handler(HTTPException, on_http_error)
    app.register_error_handler(Exception, on_bug)


def on_control_plane() -> bool:
    """Return whether the request is for the control plane, whose 422 bodies hold a list."""
    return request.path.startswith(CONTROL_PLANE)


def on_domain_error(error: RunyardError) -> Response:
    if isinstance(error, Denied):
        return on_denied(error)
    status = status_of(error)
    if status >= 500 and not isinstance(error, Unavailable | Unanswered | OutsideFailed):
        return on_bug(error)
    response = answer(status, detail_of(error, status))
    if isinstance(error, (TooMany, InProgress)):
        response.headers["Retry-After"] = str(error.retry_after_seconds)
    elif isinstance(error, Unavailable):
        log.warning("unavailable: %s", error.message)
        response.headers["Retry-After"] = str(UNAVAILABLE_RETRY_SECONDS)
    elif isinstance(error, Unauthenticated):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def on_denied(error: Denied) -> Response:
    """Return a project's own refusal: its status, its detail, and those of its headers that it may set."""
    response = answer(error.status, error.detail)
    if error.status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    for name, value in error.headers.items():
        if name.lower() not in SET_BY_SERVICE and TOKEN.fullmatch(name) and TEXT.fullmatch(value):
            response.headers[name] = value
    return response


def status_of(error: RunyardError) -> int:
    if isinstance(error, Invalid | Denied):
        return error.status
    for kind in type(error).__mro__:
        if kind in STATUSES:
            return STATUSES[kind]
    raise AssertionError("every domain error descends from RunyardError")


def detail_of(error: RunyardError, status: int) -> str | list[dict[str, Any]]:
    """Return the `detail` of an error's body, in the form of the interface that was called."""
    if not isinstance(error, Invalid) or status != HTTPStatus.UNPROCESSABLE_ENTITY or not on_control_plane():
        return error.message
    if isinstance(error, SchemaViolation):
        violations = error.violations
    else:
        violations = (Violation(error.loc, error.message, error.kind),)
    return [{"loc": list(v.loc), "msg": v.message, "type": v.kind} for v in violations]


def on_http_error(error: HTTPException) -> Response:
    """Answer an error of the router or the body reader: unknown paths, methods, sizes."""
    status = error.code or 500
    if status >= 500:
        return on_bug(error)
    response = answer(status, _http_detail(error, status))
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return response


def _http_detail(error: HTTPException, status: int) -> str:
    if isinstance(error, RequestEntityTooLarge):
        limit = request.max_content_length or current_app.config["MAX_CONTENT_LENGTH"]
        return f"The request body is larger than {limit} bytes"
    return HTTPStatus(status).phrase


def on_bug(error: Exception) -> Response:
    """Answer an unexpected error. The traceback goes to the log, and the request id to the caller."""
    log.error("unhandled error in %s %s", request.method, request.path, exc_info=error)
    return answer(500, "internal error", request_id=request.environ.get(REQUEST_ID_KEY))


def answer(status: int, detail: Any, **more: Any) -> Response:
    response = jsonify(detail=detail, **more)
    response.status_code = status
    return response
