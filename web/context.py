"""What the current request is served with: the service's settings and address, and the deployment that it is for."""

from __future__ import annotations

from flask import current_app, g, request

from shared.deployments.deployments import DeploymentRef
from shared.settings import Settings


def settings() -> Settings:
    found: Settings = current_app.config["SETTINGS"]
    return found


def deployment() -> DeploymentRef:
    """The deployment whose address was called; only in its own interface, and only once what is done was allowed."""
    found: DeploymentRef = g.deployment
    if found.user_code.auth is not None and not g.get("is_authorized"):
        raise RuntimeError("the deployment's authorization was not asked")
    return found


ALL_ADDRESSES = ("0.0.0.0", "::", "[::]")


def configured_url() -> str:
    """Address of the service by its settings alone: a caller's Host header must not end up in what others read.

    A service that listens on every address and has no `RUNYARD_URL` cannot know its own name; only then the caller's
    address counts.
    """
    known = settings()
    is_unknown = (
        known.listen_host in ALL_ADDRESSES and known.url == f"http://{known.listen_host}:{known.port}"
    )
    return base_url() if is_unknown else known.url.rstrip("/")


def base_url() -> str:
    """Where clients reach the service: as its operator named it, else as this caller did.

    A service that listens on every address of a machine cannot know its own name.
    """
    known = settings()
    is_named = known.url != f"http://{known.listen_host}:{known.port}"
    return known.url.rstrip("/") if is_named or not request.host else f"{request.scheme}://{request.host}"
