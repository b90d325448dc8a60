"""The caller: its key, organization and role. Pages and tools use the record to decide what to offer."""

from __future__ import annotations

from flask import Response, jsonify

from shared import __version__
from shared.access import api_keys
from shared.infra.postgres import connection
from shared.records import (
    BOOLEAN,
    ID,
    TEXT,
    one_of,
    or_null,
    record,
)
from web.gate.context import caller, credentials, settings
from web.schemas.operations import RouteGroup

bp = RouteGroup("me", section="Organizations and keys")

ME = record(
    "Me",
    role=one_of(*api_keys.ROLES),
    organization=record(id=ID, name=TEXT),
    key=or_null(record(id=TEXT, name=TEXT)),
    version=TEXT,
    dev=BOOLEAN,
)


@bp.operation("GET /v2/me", "Get the caller and its role", role="read", answer=ME)
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
