"""Records with an ETag: who holds the newest one already is answered 304, without a body."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from flask import Response, jsonify, request


def tagged(record: Mapping[str, Any]) -> Response:
    """A record whose strong ETag is made from its bytes, so that no change can be forgotten."""
    response = jsonify(record)
    response.set_etag(hashlib.blake2b(response.get_data(), digest_size=16).hexdigest())
    response.headers["Cache-Control"] = "private, no-cache"
    return response


def is_held(response: Response) -> bool:
    """Whether the caller says, by If-None-Match, that it holds this very record."""
    tag, _ = response.get_etag()
    return tag is not None and request.if_none_match.contains_weak(tag)


def conditional(response: Response) -> Response:
    """The response, or 304 when the caller holds it."""
    response.make_conditional(request)
    return response
