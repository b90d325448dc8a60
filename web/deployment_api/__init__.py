"""A deployment as its clients use it, at its address: assistants, threads, runs, crons, the store, MCP and A2A."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from flask import Blueprint, g

from shared.deployments import deployments
from shared.deployments.deployments import DeploymentRef
from shared.errors import NotFound
from shared.infra.postgres import connection
from web.auth import caller
from web.deployment_api import (
    a2a,
    assistants,
    cancels,
    crons,
    joins,
    mcp,
    queue,
    retries,
    runs,
    states,
    store,
    thread_stream,
    threads,
)
from web.deployment_api.protocol import commands, events

KNOWN_SECONDS = 1.0  # how long a deployment found by name is not looked up again

_known: dict[tuple[UUID, str], tuple[float, DeploymentRef]] = {}

bp = Blueprint("deployment_api", __name__)
for resource in (
    assistants.bp, threads.bp, states.bp, runs.bp, joins.bp, cancels.bp, thread_stream.bp, crons.bp, store.bp,
    queue.bp, retries.bp, commands.bp, events.bp, mcp.bp, a2a.bp,
):  # fmt: skip
    bp.register_blueprint(resource)

BLUEPRINTS = (bp,)


def forget(deployment_id: UUID) -> None:
    """Look a deployment up again: it was deleted. Other processes do so within KNOWN_SECONDS."""
    for key, (_, deployment) in list(_known.items()):
        if deployment.id == deployment_id:
            del _known[key]


@bp.url_value_preprocessor
def take_deployment_name(endpoint: str | None, values: dict[str, Any] | None) -> None:
    g.deployment_name = (values or {}).pop("deployment", None)


@bp.before_request
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
