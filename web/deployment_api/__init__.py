"""The API of a deployment, at its own address: assistants, threads, runs, crons, the store, MCP, A2A and AG-UI."""

from __future__ import annotations

from flask import Blueprint

from web.deployment_api import assistants, components, crons, inbox, states, store, threads
from web.deployment_api.protocols import a2a, ag_ui, mcp, v2_commands, v2_events, v2_socket
from web.deployment_api.protocols.mcp import oauth
from web.deployment_api.runs import bulk, cancels, create, feedback, joins, read, timeline, webhooks

bp = Blueprint("deployment_api", __name__)
for resource in (
    assistants.bp, components.bp, threads.bp, states.bp, create.bp, joins.bp, cancels.bp, crons.bp, inbox.bp, store.bp,
    read.queue_bp, read.bp, bulk.bp, timeline.bp, feedback.bp, webhooks.bp, v2_commands.bp, v2_events.bp, v2_socket.bp,
    mcp.bp, oauth.bp, a2a.bp, ag_ui.bp,
):  # fmt: skip
    bp.register_blueprint(resource)
