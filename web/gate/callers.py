"""Authentication of callers, and the check of their role.

A key is sent as `x-api-key` or as `Authorization: Bearer`. `X-Tenant-Id`, if sent, must name the key's organization;
an operator's key acts for the organization named there. A key's role limits what its holder may do: `read` reads,
`run` also works with deployments (assistants, threads, runs), `deploy` also changes deployments, `admin` also creates
keys, and `operator` administers the installation itself. Each route declares the role it needs (web/schemas/operations.py).
People who sign in have a session with a role instead of a key (web/gate/session_cookie.py).

A deployment with its own `auth` identifies its callers. Its users need no key, and have the rights of the role `run`
within the limits of its handlers (web/gate/context.py). The platform's own tools call such a deployment with a key and
the STUDIO header. The deployment's own code uses a token from the service.

A valid key always passes, even from an address with many failures: many callers may share an address, and 256 random
bits cannot be guessed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus

from flask import request

from shared.access import api_keys, sessions
from shared.access.api_keys import Caller
from shared.deployments.deployments import DeploymentRef
from shared.errors import Denied, Forbidden, NotFound, Unauthenticated
from shared.user_code import authorization, users
from shared.user_code.users import User
from web.gate import challenges, limits
from web.gate.addresses import RequestAddress, client_address, client_network
from web.gate.context import Authorization, caller, context, publish, settings
from web.gate.credentials import Credentials
from web.gate.deployments import DeploymentLookup
from web.gate.forwarding import request_for_user_code
from web.schemas.operations import Role

FOREIGN_KEY = (
    f"Unknown API key: keys of this service begin with {api_keys.PREFIX}_. The LangGraph SDKs send LANGSMITH_API_KEY if they"
    " are given no api_key."
)

Identity = tuple[Caller, User | None]


def authenticate(
    credentials: Credentials, address: RequestAddress, lookup: DeploymentLookup, request_id: str
) -> Identity:
    """Return the caller, and its user of the deployment if the deployment has its own authorization.

    Without such an authorization a key identifies the caller. Raises an error if the request is refused.
    """
    deployment = lookup.require()
    if address.name is not None and credentials.has_loopback_token:
        return _authenticate_code(credentials, address, deployment, request_id)
    if deployment is not None and deployment.user_code.auth is not None:
        return _authenticate_user(credentials, address, deployment, request_id)
    caller = identify(credentials)
    if caller is None and credentials.is_of_foreign_page:
        raise Forbidden("A page of another origin needs an API key: send it as the header X-Api-Key")
    if caller is None:
        raise Unauthenticated("Missing API key: send it as the header X-Api-Key")
    return caller, None


def identify(credentials: Credentials) -> Caller | None:
    """Return the caller that the request's key or session identifies. Without either: the local developer, else None.

    Raises an error if the key or the session is refused. A developer may send an unknown key, since the SDKs send
    LANGSMITH_API_KEY by default.
    """
    if credentials.session_token is not None:
        caller = credentials.acting_caller()
        if caller is None:
            limits.count_failure(client_network(settings()))
            raise Unauthenticated(sessions.ENDED)
        return caller
    if not credentials.presented_key:
        return credentials.local_developer
    if credentials.key_caller is not None:
        return credentials.acting_caller()
    if credentials.local_developer is not None:
        return credentials.local_developer
    limits.count_failure(client_network(settings()))
    api_keys.record_refusal(credentials.presented_key, address=client_address(settings()))
    is_key_of_service = credentials.presented_key.startswith(f"{api_keys.PREFIX}_")
    raise Unauthenticated("Unknown API key" if is_key_of_service else FOREIGN_KEY)


def identify_if_known(credentials: Credentials, deployment: DeploymentRef | None) -> Caller | None:
    """Return the caller of a public route if a platform key identifies it, else None. Raises an error for a refused key.

    At a deployment with its own authorization any other credential is ignored, since it is meant for that
    authorization.
    """
    if deployment is not None and deployment.user_code.auth is not None:
        return credentials.holder
    return identify(credentials)


def require_role(caller: Caller, role: Role) -> None:
    """Raise Forbidden if the caller's role is lower than the route's."""
    if not caller.may(role):
        what = "API key" if caller.session is None else "signed-in user"
        raise Forbidden(f"This needs the role {role}: the {what} has the role {caller.role}")


def caller_for_user(deployment: DeploymentRef, user: User | None) -> Caller:
    """Return the caller used for limits and stored records. Each user of a deployment is a caller of its own."""
    text = str(deployment.id) + ("" if user is None else user.identity)
    key_id = api_keys.USER_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]
    return Caller(deployment.organization_id, "", key_id, "run")


def _authenticate_user(
    credentials: Credentials, address: RequestAddress, deployment: DeploymentRef, request_id: str
) -> Identity:
    """Authenticate the caller with the project's `authenticate` function, unless it is a tool of the platform.

    Raises Denied, Unanswered, Unavailable, TooMany.
    """
    tool = _studio_caller(credentials, deployment)
    if tool is not None:
        return tool, users.studio_user()
    source = client_network(settings())
    limits.count_address(source)
    try:
        user = authorization.authenticate(deployment, request_for_user_code(address, settings(), request_id))
    except Denied as refusal:
        if refusal.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            limits.count_failure(source)
        raise challenges.unauthenticated(refusal, deployment, address) from refusal
    return caller_for_user(deployment, user), user


def _studio_caller(credentials: Credentials, deployment: DeploymentRef) -> Caller | None:
    """Return the caller if it is one of the platform's tools, else None.

    A tool sends the STUDIO header and a key of the deployment's organization whose role is at least `run`. None also if
    the deployment sets `disable_studio_auth`.
    """
    holder = credentials.holder
    is_tool = holder is not None and credentials.is_of_studio() and may_use_tools(holder, deployment)
    return holder if is_tool else None


def may_use_tools(holder: Caller, deployment: DeploymentRef) -> bool:
    """Return whether the holder of a platform key may act at the deployment beside its own authorization."""
    auth = deployment.user_code.auth
    if holder.organization_id != deployment.organization_id:
        return False
    return auth is None or (not auth.disable_studio_auth and holder.may("run"))


@contextmanager
def acting_at(deployment: DeploymentRef) -> Iterator[None]:
    """Let a request of the control plane act at a deployment, as a tool of the platform does at the deployment's address.

    Raises NotFound if the caller may not.
    """
    before = context()
    if not may_use_tools(caller(), deployment):
        raise NotFound("Not Found")
    user = None if deployment.user_code.auth is None else users.studio_user()
    publish(replace(before, user=user, authorization=Authorization(deployment)))
    try:
        yield
    finally:
        publish(before)


def _authenticate_code(
    credentials: Credentials, address: RequestAddress, deployment: DeploymentRef | None, request_id: str
) -> Identity:
    """Authenticate a deployment's own code by its token. The caller is the user that the code works for.

    Raises Unauthenticated.
    """
    token = credentials.loopback
    if token is None or deployment is None:
        raise Unauthenticated("This token is not valid for this deployment")
    if deployment.user_code.auth is None:
        return caller_for_user(deployment, None), None
    if token.user is None and "Authorization" in request.headers:
        # Code behind a public route forwards the credentials of the user it acts for.
        return _authenticate_user(credentials, address, deployment, request_id)
    try:
        user = users.user_of(token.user)
    except ValueError:
        raise Unauthenticated(
            "Code that acts for no user cannot call a deployment with its own authorization"
        ) from None
    return caller_for_user(deployment, user), user
