"""The deployment that a request is for, by its name in the caller's organization; remembered for a moment."""

from __future__ import annotations

import time
from uuid import UUID

from flask import g

from shared.deployments import deployments
from shared.deployments.deployments import DeploymentRef
from shared.errors import NotFound
from shared.infra.postgres import connection
from web.auth import caller

KNOWN_SECONDS = 1.0  # how long a deployment found by name is not looked up again

_known: dict[tuple[UUID, str], tuple[float, DeploymentRef]] = {}


def forget(deployment_id: UUID) -> None:
    """Look a deployment up again: it was deleted. Other processes do so within KNOWN_SECONDS."""
    for key, (_, deployment) in list(_known.items()):
        if deployment.id == deployment_id:
            del _known[key]


def find_deployment() -> None:
    """The deployment of that name in the caller's organization."""
    key = (caller().organization_id, g.deployment_name)
    found_at, deployment = _known.get(key, (0.0, None))
    if deployment is None or time.monotonic() - found_at > KNOWN_SECONDS:
        with connection() as conn:
            deployment = deployments.resolve(conn, *key)
        if deployment is None:
            _known.pop(key, None)
            raise NotFound("Not Found")
        _known[key] = (time.monotonic(), deployment)
    g.deployment = deployment
