"""`Idempotency-Key`: a repeated create request returns the stored response of the first one and creates nothing.

A route takes part by calling `once(conn)` first in its transaction, and passing its response to the function that
`once` returns. Refusals are not stored, since nothing was created. `idempotent=True` in the route's declaration
documents it.
"""

from __future__ import annotations

import re
from typing import Protocol

from flask import Response, request
from sqlalchemy import Connection
from werkzeug.exceptions import HTTPException

from shared.access import idempotency
from shared.access.idempotency import HEADER, KeyedRequest, StoredResponse
from shared.errors import Invalid
from shared.infra.postgres import Driver
from web.gate.context import caller

REPLAYED = "Idempotent-Replayed"
MAX_KEY = 255
KEPT_HEADERS = ("Content-Type", "Location", "Content-Location", "ETag", "Cache-Control")


class Keep(Protocol):
    """Stores a response with its status in the current transaction, and returns it."""

    def __call__(self, response: Response, status: int = 200) -> Response: ...


class Repeated(HTTPException):
    """Ends a repeated request with the stored response of the first one."""


def once(conn: Connection | Driver) -> Keep:
    """Begin an idempotent request, before any other work. Returns the function that stores the response.

    Raises Repeated if the request was answered before, InProgress if it is being answered, and Invalid for a bad key.
    """
    keyed_request = _keyed_request()
    if keyed_request is None:
        return _with_status
    stored = idempotency.stored_response(conn, keyed_request)
    if stored is not None:
        raise Repeated(response=_stored_response(stored))

    def keep(response: Response, status: int = 200) -> Response:
        _with_status(response, status)
        headers = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
        stored = StoredResponse(response.status_code, headers, response.get_data(as_text=True))
        idempotency.store(conn, keyed_request, stored)
        return response

    return keep


def _with_status(response: Response, status: int = 200) -> Response:
    response.status_code = status
    return response


def _keyed_request() -> KeyedRequest | None:
    """Return the current request under its key, or None without a key. Raises Invalid for a malformed key."""
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if len(key) > MAX_KEY:
        raise Invalid(
            f"must have at most {MAX_KEY} characters", loc=("header", HEADER), kind="string_too_long"
        )
    if not re.fullmatch(r"[\x20-\x7e]+", key):
        raise Invalid("must be printable ASCII", loc=("header", HEADER), kind="string_pattern_mismatch")
    address = request.path + "?" + request.query_string.decode("latin-1")
    content = request.method, address, request.get_data()
    return KeyedRequest.of(caller().organization_id, caller().key_id, key, *content)


def _stored_response(stored: StoredResponse) -> Response:
    response = Response(stored.body, status=stored.status, headers=dict(stored.headers))
    response.headers[REPLAYED] = "true"
    return response
