"""What the current request is served with: the service's settings, and the deployment that it is for."""

from __future__ import annotations

from flask import current_app, g

from shared.deployments.deployments import DeploymentRef
from shared.settings import Settings


def settings() -> Settings:
    found: Settings = current_app.config["SETTINGS"]
    return found


def deployment() -> DeploymentRef:
    """The deployment whose address was called; only in its own interface."""
    found: DeploymentRef = g.deployment
    return found
