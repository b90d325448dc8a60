"""ETags of records. A caller that already holds the newest record gets a 304 without a body."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from flask import Response, jsonify, request


def tagged(record: Mapping[str, Any]) -> Response:
    """Return a record with a strong ETag: a digest of its bytes, so that every change alters it."""
    response = jsonify(record)
    response.set_etag(hashlib.blake2b(response.get_data(), digest_size=16).hexdigest())
    response.headers["Cache-Control"] = "private, no-cache"
    return response


def is_held(response: Response) -> bool:
    """Return whether the caller holds exactly this record, according to its If-None-Match."""
    tag, _ = response.get_etag()
    return tag is not None and request.if_none_match.contains_weak(tag)


def conditional(response: Response) -> Response:
    """Return the response, or a 304 if the caller holds it."""
    response.make_conditional(request)
    return response
