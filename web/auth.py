"""Authenticates the caller of every request but those of open routes, and checks its key's role.

A key comes as `x-api-key` or as `Authorization: Bearer`. `X-Tenant-Id`, when sent, must name the
organization behind the key; an operator's key speaks for whichever it names. A key's role bounds what it may do:
`read` looks, `run` also works with deployments (assistants, threads, runs), `deploy` also changes deployments,
`admin` also makes keys, and `operator` sees to the installation itself. Each route says which one it needs
(web/operations.py).

Why a valid key always passes, even from an address that failed often: behind a proxy all callers share one
address, and 256 random bits are not guessed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from flask import Flask, current_app, g, request

from shared.access import api_keys, organizations
from shared.access.api_keys import Caller
from shared.errors import Forbidden, TooMany, Unauthenticated
from web import operations, rate_limits
from web.context import settings
from web.developer import developer

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
    """Identify the request's caller and keep it as `g.caller`, or refuse."""
    needed = role_needed()
    if needed == "open":
        return
    found = identify()
    if found is None:
        raise Unauthenticated("Missing API key: send it as the header X-Api-Key")
    g.caller = found
    rate_limits.count_request(found)
    if not found.may(needed):
        raise Forbidden(f"This needs the role {needed}: the API key has the role {found.role}")


def identify() -> Caller | None:
    """The caller the headers name; without a key a developer at their own machine, else None.

    Raises for a key that is refused.
    """
    key = presented_key()
    if not key:
        return developer()
    found = api_keys.authenticate(key, bootstrap=settings().api_key)
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


def role_needed() -> str:
    """The least role that the current request needs."""
    operation = operations.requested()
    if operation is None:
        return "read"  # any key learns which paths there are, and nobody else
    if request.method == "OPTIONS" and operation.role != "open":
        return "read"  # the answer names the methods of a path and nothing else
    return operation.role


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
