"""The API of a deployment, at its own address: assistants, threads, runs, crons, the store, MCP and A2A."""

from __future__ import annotations

from flask import Blueprint

from web.deployment_api import assistants, crons, states, store, thread_stream, threads
from web.deployment_api.protocols import a2a, mcp
from web.deployment_api.protocols.protocol import commands, events, socket
from web.deployment_api.runs import cancels, joins, queue, retries, routes, webhooks

bp = Blueprint("deployment_api", __name__)
for resource in (
    assistants.bp, threads.bp, states.bp, routes.bp, joins.bp, cancels.bp, thread_stream.bp, crons.bp, store.bp,
    queue.bp, retries.bp, webhooks.bp, commands.bp, events.bp, socket.bp, mcp.bp, a2a.bp,
):  # fmt: skip
    bp.register_blueprint(resource)

BLUEPRINTS = (bp,)
