"""The API of a deployment, at its own address: assistants, threads, runs, crons, the store, MCP and A2A."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, g

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
    webhooks,
)
from web.deployment_api.found import find_deployment
from web.deployment_api.protocol import commands, events, socket

bp = Blueprint("deployment_api", __name__)
for resource in (
    assistants.bp, threads.bp, states.bp, runs.bp, joins.bp, cancels.bp, thread_stream.bp, crons.bp, store.bp,
    queue.bp, retries.bp, webhooks.bp, commands.bp, events.bp, socket.bp, mcp.bp, a2a.bp,
):  # fmt: skip
    bp.register_blueprint(resource)

BLUEPRINTS = (bp,)
bp.before_request(find_deployment)


@bp.url_value_preprocessor
def take_deployment_name(endpoint: str | None, values: dict[str, Any] | None) -> None:
    g.deployment_name = (values or {}).pop("deployment", None)
