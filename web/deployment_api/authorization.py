"""Asks a deployment's own authorization for what a request is about to do.

A deployment with `auth` gives its id to nobody before that (`web.context.deployment`), so that a route that
forgets to ask fails instead of serving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flask import g

from shared.deployments.deployments import DeploymentRef
from shared.infra.json_text import document_holds_nul
from shared.infra.postgres import dumps
from shared.user_code import authorization
from shared.user_code.authorization import Ask, Granted, User

MAX_CHANGED = 256 * 1024


def user() -> User | None:
    """Whom the deployment's authorization found the caller to be; None where it has none."""
    return g.get("user")


def user_document() -> Mapping[str, Any] | None:
    """What graphs learn of the caller; None where the deployment has no authorization."""
    caller = user()
    return None if caller is None else caller.document


def allow(resource: str, action: str, /, **value: Any) -> Granted:
    """Ask for one action. Raises Denied."""
    return allow_all([Ask(resource, action, value)])[0]


def allow_all(asks: Sequence[Ask]) -> list[Granted]:
    """Ask for several actions at once; each must be allowed."""
    deployment: DeploymentRef = g.deployment
    caller = user()
    if deployment.user_code.auth is None:
        granted = [Granted(ask.value) for ask in asks]
    elif caller is None:
        raise RuntimeError("nobody was found who could be asked about")
    else:
        granted = authorization.authorize(deployment, caller, asks)
    g.is_authorized = True
    return granted


def changed(granted: Granted, name: str = "metadata") -> dict[str, Any]:
    """An object of the value as the handler left it; raises Denied (500) for what can be neither stored nor asked for."""
    found = granted.value.get(name)
    if found is None:
        return {}
    if user() is None:
        return found  # nobody has changed it
    written = dumps(found)
    if not isinstance(found, dict) or len(written) > MAX_CHANGED or document_holds_nul(written):
        authorization.fail(g.deployment, f"a handler left {name} that is no object, too large, or holds NUL")
    return found


def unasked() -> DeploymentRef:
    """The deployment before anything was allowed: to find out what is to be asked, of which nothing is told."""
    deployment: DeploymentRef = g.deployment
    return deployment
