"""The deployment that a request's address names, which may be known before who calls is.

Whoever sends a key of the service means the deployment of the key's organization, and a deployment's own code that
deployment. Anybody else means the one of the organization in `X-Tenant-Id`, or else the oldest of that name that has
something for callers without a key.

It is found once for each request: what is asked about one deployment must not be answered by another.
"""

from __future__ import annotations

import re
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import unquote_plus
from uuid import UUID

from flask import g, request
from sqlalchemy import Connection

from shared.access import api_keys, organizations
from shared.access.api_keys import Caller
from shared.deployments import deployments
from shared.deployments.deployments import DeploymentRef
from shared.errors import Refused
from shared.infra.postgres import connection
from shared.user_code import loopback
from shared.user_code.loopback import OwnCode
from web.addresses import DEPLOYMENT_PREFIX
from web.context import settings
from web.developer import developer

KNOWN_SECONDS = 1.0  # how long a deployment that was found is not looked up again
MOST_KNOWN = 10_000
# What begins like a key, and what has the form of one after any other character.
KEY_SIGN = re.compile(
    rf"(?<![0-9A-Za-z_-]){api_keys.PREFIX}_"
    rf"|{api_keys.PREFIX}_[0-9A-Za-z]{{{api_keys.ID_LENGTH}}}_[0-9A-Za-z_-]{{{api_keys.SECRET_LENGTH}}}"
)

BASIC = re.compile(r"basic\s+([0-9A-Za-z+/_-]+)", re.IGNORECASE)

Key = tuple[UUID | None, str, str]  # the last says how it was looked up

_known: dict[Key, tuple[float, DeploymentRef | None]] = {}


def forget(deployment_id: UUID | None = None) -> None:
    """Look a deployment up again, or all: it was deleted. Other processes do so within KNOWN_SECONDS."""
    for key, (_, found) in list(_known.items()):
        if deployment_id is None or found is None or found.id == deployment_id:
            _known.pop(key, None)


def name_in(path: str) -> str | None:
    """The name of a deployment that a path begins with."""
    return (
        path.removeprefix(DEPLOYMENT_PREFIX).partition("/")[0] if path.startswith(DEPLOYMENT_PREFIX) else None
    )


def deployment(name: str) -> DeploymentRef | None:
    """The deployment of that name that this request means; None where there is none. Raises Unavailable."""
    if g.get("named", (None,))[0] != name:
        g.named = name, _deployment(name)
    found: DeploymentRef | None = g.named[1]
    return found


def _deployment(name: str) -> DeploymentRef | None:
    sent = own_code()
    if sent is not None:
        own = by_id(sent.deployment_id)
        if own is not None and own.name != name:
            own = of_organization(own.organization_id, name)
        return own if own is not None and own.id == sent.deployment_id else None
    caller = key_holder()
    if caller is not None:
        own = of_organization(caller.organization_id, name)
        if own is not None:
            return own
    return _for_anybody(name)


def _for_anybody(name: str) -> DeploymentRef | None:
    """The one that has something for callers without a key of the service."""
    tenant = request.headers.get("X-Tenant-Id", "").strip()
    organization_id = organizations.id_of(tenant) if tenant else None
    if tenant and organization_id is None:
        return None
    key = organization_id, name, "anybody"
    return _found(key, lambda conn: deployments.resolve_for_anybody(conn, name, organization_id))


def of_organization(organization_id: UUID, name: str) -> DeploymentRef | None:
    """The organization's deployment of that name."""
    key = organization_id, name, "own"
    return _found(key, lambda conn: deployments.resolve(conn, organization_id, name))


def by_id(deployment_id: UUID) -> DeploymentRef | None:
    return _found((deployment_id, "", "id"), lambda conn: deployments.resolve_by_id(conn, deployment_id))


def own_code() -> OwnCode | None:
    """What the token of a deployment's own code says; None where there is none that is good."""
    token = request.headers.get(loopback.HEADER)
    return None if token is None else loopback.read(token)


def key_holder() -> Caller | None:
    """Whom a key of the service names; without one a developer at their own machine, else None."""
    if "key_holder" not in g:
        g.key_holder = _key_holder()
    return g.key_holder


def _key_holder() -> Caller | None:
    key = presented_key()
    if not key or not is_platform_key(key):
        return developer()
    found = api_keys.authenticate(key, bootstrap=settings().api_key)
    tenant = request.headers.get("X-Tenant-Id", "").strip()
    if found is None or not tenant:
        return found
    try:
        return organizations.acting_for(found, tenant)
    except Refused:
        return None


def presented_key() -> str | None:
    """The credential that comes where keys of the service do."""
    key = request.headers.get("X-Api-Key")
    if key:
        return key.strip()
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def is_platform_key(value: str) -> bool:
    """Whether a header's value holds a key of the service, or what was meant as one; no user code may see it.

    Looks everywhere in the value, since several headers of a name come as one and some clients put keys into cookies;
    also behind percent-encoding and in the credentials of basic authentication.
    """
    bootstrap = settings().api_key
    return any(
        KEY_SIGN.search(reading) is not None or (bootstrap is not None and bootstrap in reading)
        for reading in _readings(value)
    )


def _readings(value: str) -> Iterator[str]:
    """Yield a value as it is, and as the receiver may decode it."""
    yield value
    if "%" in value:
        once = unquote_plus(value)
        yield from (once, unquote_plus(once))
    for credentials in BASIC.findall(value):
        with suppress(ValueError):
            yield b64decode(credentials + "=" * (-len(credentials) % 4)).decode("latin-1")


def without_keys(query: str) -> str:
    """A request's query for user code: as it was sent, but for the parameters that have a key of the service in them."""
    return "&".join(part for part in query.split("&") if not is_platform_key(unquote_plus(part)))


def _found(key: Key, look_up: Callable[[Connection], DeploymentRef | None]) -> DeploymentRef | None:
    found_at, found = _known.get(key, (0.0, None))
    if found_at and time.monotonic() - found_at <= KNOWN_SECONDS:
        return found
    with connection() as conn:
        found = look_up(conn)
    if len(_known) >= MOST_KNOWN:
        _known.clear()
    if found is not None or key[-1] == "anybody":  # what its owner has just made is there at once
        _known[key] = (time.monotonic(), found)
    return found
