"""CORS rules of a deployment whose langgraph.json has an `http.cors`, with the semantics of Starlette."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
from flask import Response, request

ANY = "*"
ALL_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
ALWAYS_ALLOWED = ("Accept", "Accept-Language", "Content-Language", "Content-Type")  # need no permission
MAX_AGE_SECONDS = 600
KNOWN = 256
MAX_ORIGIN = 300  # a scheme, a host name of at most 253 characters, and a port
PREFIX = "access-control-"


@dataclass(frozen=True)
class Cors:
    """The rules of an `http.cors`."""

    origins: frozenset[str]
    origin_regex: re.Pattern[str] | None
    methods: Sequence[str]
    headers: Sequence[str]  # in the case in which they are configured
    credentials: bool
    exposed: Sequence[str]
    max_age: int

    def allows(self, origin: str) -> bool:
        if ANY in self.origins or origin in self.origins:
            return True
        if (
            self.origin_regex is None or len(origin) > MAX_ORIGIN
        ):  # the time to match grows with its third power
            return False
        return self.origin_regex.fullmatch(origin) is not None

    def preflight(self) -> Response:
        """Return the response to a browser's preflight request."""
        origin = request.headers.get("Origin", "")
        asked = request.headers.get("Access-Control-Request-Headers", "")
        names = [name.strip().lower() for name in asked.split(",") if name.strip()]
        refused = [
            *([] if self.allows(origin) else ["origin"]),
            *([] if request.headers["Access-Control-Request-Method"] in self.methods else ["method"]),
            *([] if self._takes(names) else ["headers"]),
        ]
        response = Response("OK", mimetype="text/plain")
        if refused:
            response = Response(f"Disallowed CORS {', '.join(refused)}", status=400, mimetype="text/plain")
        self._say_origin(response, origin)
        response.headers["Access-Control-Allow-Methods"] = ", ".join(self.methods)
        response.headers["Access-Control-Max-Age"] = str(self.max_age)
        if ANY in self.headers and asked:
            response.headers["Access-Control-Allow-Headers"] = asked
        elif ANY not in self.headers:
            response.headers["Access-Control-Allow-Headers"] = ", ".join(self.headers)
        if request.headers.get("Access-Control-Request-Private-Network"):
            response.headers["Access-Control-Allow-Private-Network"] = "true"
        return response

    def mark(self, response: Response) -> None:
        """Set the headers of a response that tell whether pages of the caller's origin may read it."""
        for name in [name for name, _ in response.headers if name.lower().startswith(PREFIX)]:
            del response.headers[name]
        origin = request.headers.get("Origin")
        if origin is None:
            response.headers.add("Vary", "Origin")
            return
        self._say_origin(response, origin)
        if self.exposed:
            response.headers["Access-Control-Expose-Headers"] = ", ".join(self.exposed)

    def _takes(self, names: Sequence[str]) -> bool:
        known = {name.lower() for name in self.headers}
        return ANY in known or known.issuperset(names)

    def _say_origin(self, response: Response, origin: str) -> None:
        response.headers.add("Vary", "Origin")
        if not self.allows(origin):
            return
        is_for_all = ANY in self.origins and not self.credentials
        response.headers["Access-Control-Allow-Origin"] = ANY if is_for_all else origin
        if self.credentials:
            response.headers["Access-Control-Allow-Credentials"] = "true"


def of_http(http: Mapping[str, Any]) -> Cors | None:
    """Return the CORS rules of a langgraph.json's `http`. None if it has none: the service's own rules apply."""
    settings = http.get("cors")
    return None if settings is None else _of_settings(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS))


@lru_cache(KNOWN)
def _of_settings(stored: bytes) -> Cors:
    settings = orjson.loads(stored)
    methods = settings.get("allow_methods") or ("GET",)
    pattern = settings.get("allow_origin_regex")
    return Cors(
        origins=frozenset(settings.get("allow_origins") or ()),
        origin_regex=re.compile(pattern) if pattern else None,
        methods=ALL_METHODS if ANY in methods else tuple(methods),
        headers=sorted({*(settings.get("allow_headers") or ()), *ALWAYS_ALLOWED}),
        credentials=bool(settings.get("allow_credentials")),
        exposed=tuple(settings.get("expose_headers") or ()),
        max_age=settings.get("max_age", MAX_AGE_SECONDS),
    )
