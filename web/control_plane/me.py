"""The caller: its key, organization and role. Pages and tools use the record to decide what to offer."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from shared import __version__
from shared.access import api_keys
from shared.infra.postgres import connection
from web.control_plane import schemas
from web.gate.context import caller, credentials, settings
from web.schemas.operations import operation

bp = Blueprint("me", __name__)


@bp.get("/v2/me")
@operation("Get the caller and its role", role="read", answer=schemas.ME)
def get_me() -> Response:
    """Return the caller. `organization` is the one that the request acts in.

    `key` is null for a developer at their own machine.
    """
    who = caller()
    key = None
    if credentials().presented_key:
        with connection() as conn:
            key = {"id": who.key_id, "name": api_keys.name_of(conn, who.key_id)}
    return jsonify(
        role=who.role,
        organization={"id": who.organization_id, "name": who.organization_name},
        key=key,
        version=__version__,
        dev=settings().dev_deployment is not None,
    )
