"""The control plane, under `/v2` and `/v1`: deployments, revisions, keys, sign-in, providers, figures, the inbox."""

from __future__ import annotations

from flask import Blueprint

from web.control_plane import (
    audit,
    authentication,
    deployments,
    figures,
    inbox,
    inbox_links,
    integrations,
    logs,
    organizations,
    providers,
    replays,
    revisions,
    sign_in,
    traffic,
    uploads,
    workers,
)

bp = Blueprint("control_plane", __name__)
for resource in (
    deployments.bp,
    revisions.bp,
    traffic.bp,
    uploads.bp,
    logs.bp,
    integrations.bp,
    organizations.bp,
    providers.bp,
    authentication.bp,
    sign_in.bp,
    workers.bp,
    figures.bp,
    audit.bp,
    inbox.bp,
    inbox_links.bp,
    replays.bp,
):
    bp.register_blueprint(resource)
