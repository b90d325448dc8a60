"""The deployment that a request of its own interface is for."""

from __future__ import annotations

from flask import g

from shared.errors import NotFound
from web import named
from web.auth import caller


def find_deployment() -> None:
    """The deployment of that name in the caller's organization; its own users were found there already."""
    if "deployment" in g:
        return
    deployment = named.of_organization(caller().organization_id, g.deployment_name)
    if deployment is None:
        raise NotFound("Not Found")
    g.deployment = deployment
