"""Lookup of the deployment that a request's address names, before the caller is authenticated.

Several organizations may have a deployment of the same name. A request with a platform key means the deployment of the
key's organization, if it exists. A request of a deployment's own code means that deployment. Any other request means
the deployment of the organization in `X-Tenant-Id`. Without that header, it means the oldest deployment of that name
that serves callers without a key.

The lookup runs once for each request. Two lookups could find different deployments, and the authorization of one would
then decide about the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from shared.access import organizations
from shared.access.api_keys import Caller
from shared.deployments import deployments
from shared.deployments.deployments import DeploymentRef
from shared.errors import NotFound, Unavailable
from shared.infra.postgres import connection
from web.gate.credentials import Credentials

CACHE_SECONDS = 1.0
CACHE_SIZE = 10_000

Key = tuple[UUID | None, str, str]  # (organization or deployment id, name, kind of lookup)

_cache: dict[Key, tuple[float, DeploymentRef | None]] = {}


@dataclass(frozen=True, slots=True)
class DeploymentLookup:
    """The deployment that a request addresses, or why the lookup failed."""

    deployment: DeploymentRef | None = None
    refusal: Unavailable | None = None

    def require(self) -> DeploymentRef | None:
        """Return the deployment, or None if none has the name. Raises Unavailable if the lookup failed."""
        if self.refusal is not None:
            raise self.refusal
        return self.deployment


NO_DEPLOYMENT = DeploymentLookup()


def forget(deployment_id: UUID | None = None) -> None:
    """Drop a deleted deployment from the cache, or all of them. Other processes notice within CACHE_SECONDS."""
    for key, (_, deployment) in list(_cache.items()):
        if deployment_id is None or deployment is None or deployment.id == deployment_id:
            _cache.pop(key, None)


def find(name: str, credentials: Credentials) -> DeploymentLookup:
    """Look up the deployment of that name that the request means. Keeps an error, since the caller is not known yet."""
    try:
        return DeploymentLookup(_find(name, credentials))
    except Unavailable as error:
        return DeploymentLookup(refusal=error)


def _find(name: str, credentials: Credentials) -> DeploymentRef | None:
    token = credentials.loopback
    if token is not None:
        deployment = by_id(token.deployment_id)
        if deployment is not None and deployment.name != name:  # the name may be that of a preview
            deployment = of_organization(deployment.organization_id, name)
        return deployment if deployment is not None and deployment.id == token.deployment_id else None
    holder = credentials.holder
    if holder is None and credentials.key_caller is None:
        holder = credentials.local_developer  # under an unknown key, as in `callers.identify`
    if holder is not None:
        deployment = of_organization(holder.organization_id, name)
        if deployment is not None:
            return deployment
    return _for_anybody(name, credentials.tenant)


def require_owned(lookup: DeploymentLookup, name: str, caller: Caller) -> DeploymentRef:
    """Return the deployment of the caller's organization. Raises NotFound.

    The lookup may have found another organization's deployment, because of its settings for callers without a key.
    """
    deployment = lookup.deployment
    if deployment is None or deployment.organization_id != caller.organization_id:
        deployment = of_organization(caller.organization_id, name)
    if deployment is None:
        raise NotFound("Not Found")
    return deployment


def require_existing(name: str) -> None:
    """Raise NotFound if no organization has a deployment or preview of this name."""
    with connection() as conn:
        if not deployments.is_taken(conn, name):
            raise NotFound


def _for_anybody(name: str, tenant: str) -> DeploymentRef | None:
    """Return the deployment of that name that serves callers without a platform key, or None."""
    organization_id = organizations.id_of(tenant) if tenant else None
    if tenant and organization_id is None:
        return None
    key = organization_id, name, "anybody"
    return _cached(key, lambda conn: deployments.resolve_for_anybody(conn, name, organization_id))


def of_organization(organization_id: UUID, name: str) -> DeploymentRef | None:
    """Return the organization's deployment of that name, or None."""
    key = organization_id, name, "own"
    return _cached(key, lambda conn: deployments.resolve(conn, organization_id, name))


def by_id(deployment_id: UUID) -> DeploymentRef | None:
    return _cached((deployment_id, "", "id"), lambda conn: deployments.resolve_by_id(conn, deployment_id))


def _cached(key: Key, look_up: Callable[[Connection], DeploymentRef | None]) -> DeploymentRef | None:
    cached_at, deployment = _cache.get(key, (0.0, None))
    if cached_at and time.monotonic() - cached_at <= CACHE_SECONDS:
        return deployment
    with connection() as conn:
        deployment = look_up(conn)
    if len(_cache) >= CACHE_SIZE:
        _cache.clear()
    if deployment is not None or key[-1] == "anybody":  # an owner sees a new deployment at once
        _cache[key] = (time.monotonic(), deployment)
    return deployment
