"""Context of the current request: the service's settings and URL, and the deployment that the request is for."""

from __future__ import annotations

from flask import current_app, g, request

from shared.deployments.deployments import DeploymentRef
from shared.settings import Settings


def settings() -> Settings:
    found: Settings = current_app.config["SETTINGS"]
    return found


def deployment() -> DeploymentRef:
    """Return the deployment of the current request. Only for routes of the deployment API.

    Raises RuntimeError if the deployment has its own authorization and the route did not call it first. A route can
    therefore not skip it by mistake.
    """
    found: DeploymentRef = g.deployment
    if found.user_code.auth is not None and not g.get("is_authorized"):
        raise RuntimeError("the route has not called the deployment's authorization")
    return found


def configured_url() -> str:
    """Return the URL of the service from its settings. A caller's Host header must not end up in what others read.

    A service that listens on every address and has no `RUNYARD_URL` cannot know its own name. Only then the address
    that the caller used is returned.
    """
    known = settings()
    is_unknown = known.listens_everywhere and known.url == known.local_url
    return base_url() if is_unknown else known.url.rstrip("/")


def base_url() -> str:
    """Return the URL of the service for clients: the operator's setting, else the address that the caller used.

    A service that listens on every address of a machine cannot know its own name.
    """
    known = settings()
    is_named = known.url != known.local_url
    return known.url.rstrip("/") if is_named or not request.host else f"{request.scheme}://{request.host}"
