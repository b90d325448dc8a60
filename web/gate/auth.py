"""Authentication of callers and the check of their role, on every route that is not open.

A key is sent as `x-api-key` or as `Authorization: Bearer`. `X-Tenant-Id`, if sent, must name the key's organization;
an operator's key acts for the organization named there. A key's role limits what its holder may do: `read` reads,
`run` also works with deployments (assistants, threads, runs), `deploy` also changes deployments, `admin` also creates
keys, and `operator` administers the installation itself. Each route declares the role it needs (web/schemas/operations.py).

A deployment with its own `auth` identifies its callers. Its users need no key, and have the rights of the role `run`
within the limits of its handlers (web/gate/authorization.py). The platform's own tools call such a
deployment with a key and the STUDIO header. The deployment's own code uses a token from the service.

A valid key always passes, even from an address with many failures. Behind a proxy all callers share one address, and
256 random bits cannot be guessed.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from http import HTTPStatus

from flask import Flask, current_app, g, request

from shared.access import api_keys, organizations
from shared.access.api_keys import Caller
from shared.deployments.deployments import DeploymentRef
from shared.errors import Denied, Forbidden, TooMany, Unauthenticated
from shared.user_code import authorization, users
from shared.user_code.users import User
from web.gate import facts, named, rate_limits
from web.gate.context import settings
from web.gate.developer import developer
from web.gate.facts import USER_CODE_TOKEN
from web.gate.named import presented_key
from web.schemas import operations

FOREIGN_KEY = (
    f"Unknown API key: keys of this service begin with {api_keys.PREFIX}_. The LangGraph SDKs send LANGSMITH_API_KEY if they"
    " are given no api_key."
)
STUDIO = "x-auth-scheme", "langsmith"  # the header that the platform's tools send
FAILURES_PER_MINUTE = 20
MAX_ADDRESSES = 10_000


def register(app: Flask) -> None:
    """Authenticate every request of the app."""
    start(app)
    app.before_request(authenticate)


def start(app: Flask) -> None:
    """Start counting failed authentications, from zero."""
    app.extensions["runyard_failures"] = Failures()


def caller() -> Caller:
    """Return the authenticated caller of the request. Not available on open routes."""
    return g.caller


def authenticate() -> None:
    """Identify the request's caller and store it as `g.caller`. Raises an error if the request is refused."""
    needed = role_needed()
    if needed == "open":
        return
    g.caller = found = _who()
    rate_limits.count_request(found)
    if not found.may(needed):
        raise Forbidden(f"This needs the role {needed}: the API key has the role {found.role}")


def _who() -> Caller:
    """Return the caller, identified by the deployment's own authorization if it has one, else by an API key.

    Raises an error if the request is refused.
    """
    name = named.name_in(request.path)
    if name is not None and USER_CODE_TOKEN in request.headers:
        return _own_code(name)
    deployment = None if name is None else named.deployment(name)
    if deployment is not None and deployment.user_code.auth is not None:
        return identify_user(deployment)
    found = identify()
    if found is None:
        raise Unauthenticated("Missing API key: send it as the header X-Api-Key")
    return found


def identify() -> Caller | None:
    """Return the caller that the request's key identifies. Without a key: a developer at their own machine, else None.

    Raises an error if the key is refused. A developer may send an unknown key, since the SDKs send LANGSMITH_API_KEY
    unasked.
    """
    key = presented_key()
    if not key:
        return developer()
    found = api_keys.authenticate(key, bootstrap=settings().api_key)
    if found is None and (at_own_machine := developer()) is not None:
        return at_own_machine
    if found is None:
        _count_failure(request.remote_addr or "")
        raise Unauthenticated("Unknown API key" if key.startswith(f"{api_keys.PREFIX}_") else FOREIGN_KEY)
    tenant = request.headers.get("X-Tenant-Id", "").strip()
    return organizations.acting_for(found, tenant) if tenant else found


def identify_if_known() -> Caller | None:
    """Return the caller of an open route if a platform key identifies it, else None. Raises an error for a refused key.

    At a deployment with its own authorization any other credential is ignored, since it is meant for that
    authorization.
    """
    name = named.name_in(request.path)
    deployment = None if name is None else named.deployment(name)
    if deployment is not None and deployment.user_code.auth is not None:
        return named.key_holder()
    return identify()


def identify_user(deployment: DeploymentRef) -> Caller:
    """Return the caller that a deployment's own authorization identifies; sets `g.user` and `g.deployment`.

    Raises Denied, Unanswered, Unavailable, TooMany.
    """
    address = request.remote_addr or ""
    g.deployment = deployment
    tool = _tool(deployment)
    if tool is not None:
        g.user = users.studio_user()
        return tool
    rate_limits.count_address(address)
    try:
        g.user = authorization.authenticate(deployment, facts.of_request())
    except Denied as refusal:
        if refusal.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            _count_failure(address)
        raise
    return caller_of(deployment, g.user)


def _tool(deployment: DeploymentRef) -> Caller | None:
    """Return the caller if it is one of the platform's tools, else None.

    A tool sends the STUDIO header and a key of the deployment's organization whose role is at least `run`. None also if
    the deployment sets `disable_studio_auth`.
    """
    auth = deployment.user_code.auth
    if (
        auth is None
        or auth.disable_studio_auth
        or request.headers.get(STUDIO[0], "").strip().lower() != STUDIO[1]
    ):
        return None
    found = named.key_holder()
    if found is None or found.organization_id != deployment.organization_id or not found.may("run"):
        return None
    return found


def _own_code(name: str) -> Caller:
    """Identify a deployment's own code by its token: the caller is the user it works for. Raises Unauthenticated."""
    sent, deployment = named.own_code(), named.deployment(name)
    if sent is None or deployment is None:
        raise Unauthenticated("This token is not valid for this deployment")
    g.deployment = deployment
    if deployment.user_code.auth is None:
        return caller_of(deployment, None)
    if sent.user is None and "Authorization" in request.headers:
        return identify_user(
            deployment
        )  # the code of an open route sends the credentials of the user it works for
    try:
        g.user = users.user_of(sent.user)
    except ValueError:
        raise Unauthenticated(
            "Code that acts for no user cannot call a deployment with its own authorization"
        ) from None
    return caller_of(deployment, g.user)


def caller_of(deployment: DeploymentRef, user: User | None) -> Caller:
    """Return the caller used for limits and stored records. Each user of a deployment is a caller of its own."""
    text = str(deployment.id) + ("" if user is None else user.identity)
    key_id = api_keys.USER_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]
    return Caller(deployment.organization_id, "", key_id, "run")


def role_needed() -> str:
    """Return the lowest role that may make the current request."""
    operation = operations.requested()
    if operation is None:
        return "read"  # only holders of a key may learn which paths exist
    if request.method == "OPTIONS" and operation.role != "open":
        return "read"  # the response only names the methods of a path
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
        """Count a failure. Returns the number of failures from this address in the current window."""
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
