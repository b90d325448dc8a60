"""Lookup of the deployment that a request to the deployment API addresses."""

from __future__ import annotations

from flask import g

from shared.errors import NotFound
from web.gate import named
from web.gate.auth import caller


def find_deployment() -> None:
    """Store the deployment with the requested name, in the caller's organization, in `g`. Raises NotFound.

    Does nothing if authentication has stored the deployment already, as it does for users of its own authorization.
    """
    if "deployment" in g:
        return
    deployment = named.of_organization(caller().organization_id, g.deployment_name)
    if deployment is None:
        raise NotFound("Not Found")
    g.deployment = deployment
