"""Headers of every response: a request id, CORS for browsers, safe defaults.

CORS is for the deployment API. Any origin may call it, since a key authorizes requests and no cookie does.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid4

import orjson
from flask import Response, request

from shared.deployments.deployments import PATH_PREFIX

log = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
REQUEST_ID_KEY = "runyard.request_id"  # in the WSGI environment: the id of the current request
EXPOSED = "location, content-location, x-pagination-total, x-pagination-next, x-request-id"
CACHED_NAMES = 100
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
JSON_POLICY = "default-src 'none'; frame-ancestors 'none'"
SAFE_DEFAULTS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Content-Security-Policy", JSON_POLICY),
)

# User code may not set the headers below, neither in responses of an app nor in refusals of an `auth`.
# Headers that apply to the whole origin, not to the one response: they would affect the console.
OF_ORIGIN = frozenset(
    {
        "accept-ch", "alt-svc", "clear-site-data", "critical-ch", "nel", "origin-agent-cluster", "public-key-pins",
        "public-key-pins-report-only", "report-to", "reporting-endpoints", "sec-session-challenge",
        "sec-session-registration", "secure-session-challenge", "secure-session-registration",
        "service-worker-allowed", "set-login", "strict-transport-security", "use-as-dictionary",
    }
)  # fmt: skip
# Headers that a proxy in front of the service obeys: it would send a file or page of its own instead.
FOR_PROXIES = frozenset(
    {
        "x-accel-charset", "x-accel-expires", "x-accel-limit-rate", "x-accel-redirect", "x-lighttpd-send-file",
        "x-reproxy-url", "x-sendfile",
    }
)  # fmt: skip


class ForeignResponse(Response):
    """A response of a project's app, whose author decides about security headers."""


def request_header(name: str) -> str | None:
    """Return a header of the current request, or None. `request.headers` raises an error for each missing one."""
    return request.environ.get(_environ_key(name))


@lru_cache(CACHED_NAMES)
def _environ_key(name: str) -> str:
    return f"HTTP_{name.upper().replace('-', '_')}"


def request_id() -> str:
    """Return the caller's request id if it is a UUID, else a new one."""
    sent = request_header(REQUEST_ID)
    try:
        return str(UUID(sent)) if sent else str(uuid4())
    except ValueError:
        return str(uuid4())


def is_preflight() -> bool:
    """Return whether the current request is a browser's preflight request, which carries no key."""
    return request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers


def preflight(http: Mapping[str, Any]) -> Response:
    """Answer a preflight request for a deployment whose langgraph.json has this `http` section."""
    rules = cors_rules(http)
    if rules is not None:
        return rules.preflight()
    response = Response("OK", mimetype="text/plain")
    response.headers["Access-Control-Allow-Methods"] = ", ".join(METHODS)
    response.headers["Access-Control-Max-Age"] = str(MAX_AGE_SECONDS)
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
        present = {name.lower() for name, _ in headers}
        for name, value in SAFE_DEFAULTS:
            if name.lower() not in present:
                headers.add(name, value)
    if response.status_code == HTTPStatus.NO_CONTENT:
        headers.pop("Content-Type", None)  # there is no content
    if request.path.startswith(PATH_PREFIX):
        _set_cors(response, cors_rules(http))
        if isinstance(response, ForeignResponse):
            # Scripts are refused to the console's pages by these headers, which a cached answer must not bypass.
            response.headers.add("Vary", "Sec-Fetch-Dest, Sec-Fetch-Site")
        if http.get("logging_headers"):  # the log context adds the selected headers
            log.info("%s %s %d", request.method, request.path, response.status_code)


def _set_cors(response: Response, rules: Cors | None) -> None:
    """Set the CORS headers that let pages read the response, unless a project's app has set them itself."""
    if rules is not None and not is_preflight():
        rules.set_headers(response)
    if rules is not None or "Access-Control-Allow-Origin" in response.headers:
        return
    response.headers.add("Vary", "Origin")
    if request_header("Origin") is not None:
        response.headers["Access-Control-Allow-Origin"] = "*"
        response.headers["Access-Control-Expose-Headers"] = EXPOSED


ANY = "*"
ALWAYS_ALLOWED = ("Accept", "Accept-Language", "Content-Language", "Content-Type")  # need no permission
MAX_AGE_SECONDS = 600
CACHED_RULES = 256
# A scheme, a host name of at most 253 characters, and a port. The time to match grows with the third power of the length.
MAX_ORIGIN = 300
CORS_PREFIX = "access-control-"


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

    @property
    def names_origins(self) -> bool:
        return bool(self.origins) or self.origin_regex is not None

    def allows(self, origin: str) -> bool:
        if ANY in self.origins or origin in self.origins:
            return True
        if self.origin_regex is None or len(origin) > MAX_ORIGIN:
            return False
        return self.origin_regex.fullmatch(origin) is not None

    def preflight(self) -> Response:
        origin = request.headers.get("Origin", "")
        requested = request.headers.get("Access-Control-Request-Headers", "")
        names = [name.strip().lower() for name in requested.split(",") if name.strip()]
        refused = [
            *([] if self.allows(origin) else ["origin"]),
            *([] if request.headers["Access-Control-Request-Method"] in self.methods else ["method"]),
            *([] if self._allows_headers(names) else ["headers"]),
        ]
        response = Response("OK", mimetype="text/plain")
        if refused:
            response = Response(f"Disallowed CORS {', '.join(refused)}", status=400, mimetype="text/plain")
        self._set_origin(response, origin)
        response.headers["Access-Control-Allow-Methods"] = ", ".join(self.methods)
        response.headers["Access-Control-Max-Age"] = str(self.max_age)
        if ANY in self.headers and requested:
            response.headers["Access-Control-Allow-Headers"] = requested
        elif ANY not in self.headers:
            response.headers["Access-Control-Allow-Headers"] = ", ".join(self.headers)
        if request.headers.get("Access-Control-Request-Private-Network"):
            response.headers["Access-Control-Allow-Private-Network"] = "true"
        return response

    def set_headers(self, response: Response) -> None:
        """Set the headers of a response that tell whether pages of the caller's origin may read it."""
        for name in [name for name, _ in response.headers if name.lower().startswith(CORS_PREFIX)]:
            del response.headers[name]
        origin = request_header("Origin")
        if origin is None:
            response.headers.add("Vary", "Origin")
            return
        self._set_origin(response, origin)
        if self.exposed:
            response.headers["Access-Control-Expose-Headers"] = ", ".join(self.exposed)

    def _allows_headers(self, names: Sequence[str]) -> bool:
        known = {name.lower() for name in self.headers}
        return ANY in known or known.issuperset(names)

    def _set_origin(self, response: Response, origin: str) -> None:
        response.headers.add("Vary", "Origin")
        if not self.allows(origin):
            return
        is_for_all = ANY in self.origins and not self.credentials
        response.headers["Access-Control-Allow-Origin"] = ANY if is_for_all else origin
        if self.credentials:
            response.headers["Access-Control-Allow-Credentials"] = "true"


def cors_rules(http: Mapping[str, Any]) -> Cors | None:
    """Return the CORS rules of a langgraph.json's `http`. None if it has none: the service's own rules apply."""
    settings = http.get("cors")
    return None if settings is None else _parse_cors(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS))


@lru_cache(CACHED_RULES)
def _parse_cors(stored: bytes) -> Cors:
    settings = orjson.loads(stored)
    methods = settings.get("allow_methods") or ("GET",)
    pattern = settings.get("allow_origin_regex")
    return Cors(
        origins=frozenset(settings.get("allow_origins") or ()),
        origin_regex=re.compile(pattern) if pattern else None,
        methods=METHODS if ANY in methods else tuple(methods),
        headers=sorted({*(settings.get("allow_headers") or ()), *ALWAYS_ALLOWED}),
        credentials=bool(settings.get("allow_credentials")),
        exposed=tuple(settings.get("expose_headers") or ()),
        max_age=settings.get("max_age", MAX_AGE_SECONDS),
    )
