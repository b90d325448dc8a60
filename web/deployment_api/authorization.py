"""Asks a deployment's own authorization for what a request is about to do.

A deployment with `auth` gives its id to nobody before that (`web.context.deployment`), so that a route that
forgets to ask fails instead of serving.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flask import g

from shared.deployments.deployments import DeploymentRef
from shared.user_code import authorization
from shared.user_code.authorization import Ask, Granted, User


def user() -> User | None:
    """Whom the deployment's authorization found the caller to be; None where it has none."""
    return g.get("user")


def allow(resource: str, action: str, **value: Any) -> Granted:
    """Ask for one action. Raises Denied."""
    return allow_all([Ask(resource, action, value)])[0]


def allow_all(asks: Sequence[Ask]) -> list[Granted]:
    """Ask for several actions at once; each must be allowed."""
    deployment: DeploymentRef = g.deployment
    caller = user()
    if caller is None:
        granted = [Granted(ask.value) for ask in asks]
    else:
        granted = authorization.authorize(deployment, caller, asks)
    g.is_authorized = True
    return granted
