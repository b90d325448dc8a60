"""Lookup of the deployment that a request's address names, possibly before the caller is known.

Several organizations may have a deployment of the same name. A request with a platform key means the deployment of the
key's organization, if it exists. A request of a deployment's own code means that deployment. Any other request means
the deployment of the organization in `X-Tenant-Id`. Without that header, it means the oldest deployment of that name
that serves callers without a key.

The lookup runs once for each request. Two lookups could find different deployments, and the authorization of one would
then decide about the other.
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
from web.gate.addresses import DEPLOYMENT_PREFIX
from web.gate.context import settings
from web.gate.developer import developer

KNOWN_SECONDS = 1.0  # how long a lookup is cached
MOST_KNOWN = 10_000
# Matches the prefix of a key at the start of a word, and a complete key after any character.
KEY_SIGN = re.compile(
    rf"(?<![0-9A-Za-z_-]){api_keys.PREFIX}_"
    rf"|{api_keys.PREFIX}_[0-9A-Za-z]{{{api_keys.ID_LENGTH}}}_[0-9A-Za-z_-]{{{api_keys.SECRET_LENGTH}}}"
)

BASIC = re.compile(r"basic\s+([0-9A-Za-z+/_-]+)", re.IGNORECASE)

Key = tuple[UUID | None, str, str]  # (organization or deployment id, name, kind of lookup)

_known: dict[Key, tuple[float, DeploymentRef | None]] = {}


def forget(deployment_id: UUID | None = None) -> None:
    """Drop a deleted deployment from the cache, or all of them. Other processes notice within KNOWN_SECONDS."""
    for key, (_, found) in list(_known.items()):
        if deployment_id is None or found is None or found.id == deployment_id:
            _known.pop(key, None)


def name_in(path: str) -> str | None:
    """Return the name of the deployment that a path begins with, or None."""
    return (
        path.removeprefix(DEPLOYMENT_PREFIX).partition("/")[0] if path.startswith(DEPLOYMENT_PREFIX) else None
    )


def deployment(name: str) -> DeploymentRef | None:
    """Return the deployment of that name that the current request means, or None. Raises Unavailable."""
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
    """Return the deployment of that name that serves callers without a platform key, or None."""
    tenant = request.headers.get("X-Tenant-Id", "").strip()
    organization_id = organizations.id_of(tenant) if tenant else None
    if tenant and organization_id is None:
        return None
    key = organization_id, name, "anybody"
    return _found(key, lambda conn: deployments.resolve_for_anybody(conn, name, organization_id))


def of_organization(organization_id: UUID, name: str) -> DeploymentRef | None:
    """Return the organization's deployment of that name, or None."""
    key = organization_id, name, "own"
    return _found(key, lambda conn: deployments.resolve(conn, organization_id, name))


def by_id(deployment_id: UUID) -> DeploymentRef | None:
    return _found((deployment_id, "", "id"), lambda conn: deployments.resolve_by_id(conn, deployment_id))


def own_code() -> OwnCode | None:
    """Return the content of the token that a deployment's own code sends, or None without a valid token."""
    token = request.headers.get(loopback.HEADER)
    return None if token is None else loopback.read(token)


def key_holder() -> Caller | None:
    """Return the caller that a platform key identifies. Without a key: a developer at their own machine, else None."""
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
    """Return the credential in the headers that carry platform keys, or None."""
    key = request.headers.get("X-Api-Key")
    if key:
        return key.strip()
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def is_platform_key(value: str) -> bool:
    """Return whether a header's value contains a platform key, or text that looks like one. User code must not see it.

    The whole value is searched, since several headers of one name arrive as one value, and some clients put keys into
    cookies. The search also covers percent-encoded text and the credentials of basic authentication.
    """
    bootstrap = settings().api_key
    return any(
        KEY_SIGN.search(reading) is not None or (bootstrap is not None and bootstrap in reading)
        for reading in _readings(value)
    )


def _readings(value: str) -> Iterator[str]:
    """Yield a value as it is, and each form that a receiver may decode it to."""
    yield value
    if "%" in value:
        once = unquote_plus(value)
        yield from (once, unquote_plus(once))
    for credentials in BASIC.findall(value):
        with suppress(ValueError):
            yield b64decode(credentials + "=" * (-len(credentials) % 4)).decode("latin-1")


def without_keys(query: str) -> str:
    """Return a query string for user code, without the parameters that contain a platform key."""
    return "&".join(part for part in query.split("&") if not is_platform_key(unquote_plus(part)))


def _found(key: Key, look_up: Callable[[Connection], DeploymentRef | None]) -> DeploymentRef | None:
    found_at, found = _known.get(key, (0.0, None))
    if found_at and time.monotonic() - found_at <= KNOWN_SECONDS:
        return found
    with connection() as conn:
        found = look_up(conn)
    if len(_known) >= MOST_KNOWN:
        _known.clear()
    if found is not None or key[-1] == "anybody":  # an owner sees a new deployment at once
        _known[key] = (time.monotonic(), found)
    return found
