"""Header → Caller, before every route except the open ones.

A key comes as `x-api-key` or as `Authorization: Bearer`. `X-Tenant-Id`, when sent, must name the
organization behind the key; an operator's key speaks for whichever it names. A key's role bounds what it may do:
`read` looks, `run` also works with deployments (assistants, threads, runs), `deploy` also changes deployments,
`admin` also makes keys, and `operator` sees to the installation itself.

Why a valid key always passes, even from an address that failed often: behind a proxy all callers share one
address, and 256 random bits are not guessed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from flask import Flask, current_app, g, request

from shared.access import api_keys, organizations
from shared.access.api_keys import OPERATOR, Caller
from shared.errors import Forbidden, TooMany, Unauthenticated
from web import rate_limits
from web.addresses import deployment_path
from web.developer import developer

OPEN_PATHS = frozenset({"/", "/ok", "/info", "/metrics", "/docs", "/openapi.json"})
OPEN_PREFIX = "/static/"
PAGE_PREFIX = "/o/"  # pages that are the same for everybody and bring no data
CALLBACK_PREFIX = "/v2/auth/callback/"  # the state is the right to come back
UPLOAD_PREFIX = "/v2/uploads/"  # the token in the address is the right to put

# POSTs that change nothing: their bodies are too large for a query string
READING_ENDINGS = (
    "/search", "/count", "/history", "/versions", "/build_logs", "/deploy_logs", "/namespaces", "/state/checkpoint"
)  # fmt: skip
READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

# What needs another role than its method says: (path and what is below it, does it hold for reading too, role)
MORE_NEEDED = (
    ("/v2/keys", True, "admin"),
    ("/v2/organizations", False, OPERATOR),
    ("/v2/auth/providers", False, "deploy"),
    ("/v2/auth/wait", True, "run"),  # answers with a user's token
    ("/v2/auth", False, "run"),
)

FAILURES_PER_MINUTE = 20
MAX_ADDRESSES = 10_000


def register(app: Flask) -> None:
    """Authenticate every request of the app."""
    start(app)
    app.before_request(authenticate)


def start(app: Flask) -> None:
    """Begin with no address that has failed."""
    app.extensions["runyard_failures"] = Failures()


def caller() -> Caller:
    """Who asks; only on routes that are not open."""
    return g.caller


def authenticate() -> None:
    """Put the request's caller in its place, or refuse."""
    if is_open(request.method, request.path):
        return
    found = identify()
    if found is None:
        raise Unauthenticated("Missing API key: send it as the header X-Api-Key")
    g.caller = found
    rate_limits.count_request(found)
    needed = role_needed(request.method, request.path)
    if not found.may(needed):
        raise Forbidden(f"This needs the role {needed}: the API key has the role {found.role}")


def identify() -> Caller | None:
    """The caller the headers name; without a key a developer at their own machine, else None.

    Raises for a key that is refused.
    """
    key = presented_key()
    if not key:
        return developer()
    found = api_keys.authenticate(key, bootstrap=current_app.config["SETTINGS"].api_key)
    if found is None:
        _count_failure(request.remote_addr or "")
        raise Unauthenticated("Unknown API key")
    tenant = request.headers.get("X-Tenant-Id", "").strip()
    return organizations.acting_for(found, tenant) if tenant else found


def presented_key() -> str | None:
    key = request.headers.get("X-Api-Key")
    if key:
        return key.strip()
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def is_open(method: str, path: str) -> bool:
    """Whether a route answers without a key."""
    if method == "PUT" and path.startswith(UPLOAD_PREFIX):
        return True
    if method not in READING_METHODS:
        return False
    if path.startswith(CALLBACK_PREFIX):
        return True
    inner = deployment_path(path)
    route = path if inner is None else inner
    return route in OPEN_PATHS or route.startswith(OPEN_PREFIX) or path.startswith(PAGE_PREFIX)


def role_needed(method: str, path: str) -> str:
    """The least role that may do this."""
    reads = method in READING_METHODS or (method == "POST" and path.endswith(READING_ENDINGS))
    if deployment_path(path) is not None:
        return "read" if reads else "run"
    for root, also_reading, role in MORE_NEEDED:
        if (also_reading or not reads) and (path == root or path.startswith(root + "/")):
            return role
    return "read" if reads else "deploy"


@dataclass
class _Window:
    opened_at: float
    count: int = 0


class Failures:
    """Failed authentications by address, in windows of a minute."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    def add(self, address: str) -> int:
        """Count one more; returns how many this minute has seen from there."""
        now = time.monotonic()
        window = self._windows.get(address)
        if window is None or now - window.opened_at > 60:
            if len(self._windows) >= MAX_ADDRESSES:
                self._windows.clear()
            window = self._windows[address] = _Window(now)
        window.count += 1
        return window.count


def _count_failure(address: str) -> None:
    failures: Failures = current_app.extensions["runyard_failures"]
    if failures.add(address) > FAILURES_PER_MINUTE:
        raise TooMany("Too many failed authentications from this address", retry_after_seconds=60)
