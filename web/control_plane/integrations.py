"""Routes for features of the hosted product that this service does not have, with clear refusals for its clients.

The features are listeners (remote clusters), GitHub installations, and a container registry for images.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flask import Response, jsonify

from shared.deployments import deployments
from shared.errors import Invalid, NotFound
from shared.infra.postgres import connection
from shared.records import COUNT, OBJECT, listed, record
from web.gate.context import caller
from web.http.responses import resource_page
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("integrations", section="Repositories")

NOTHING_LISTED = record("EmptyPage", resources=listed(OBJECT, max_items=0), offset=COUNT)
NOTHING = listed(OBJECT, max_items=0)


@bp.operation(
    "GET /v2/listeners",
    "List listeners (always empty)",
    role="read",
    answer=NOTHING_LISTED,
    query=fields.Page,
)
def list_listeners(query: dict[str, Any]) -> Response:
    return resource_page([], offset=query["offset"])


@bp.operation("POST /v2/listeners", "Create a listener (not supported)", role="deploy", status=400)
def create_listener() -> Response:
    raise Invalid("Listeners are not supported by this service.", status=400)


@bp.operation("GET /v2/listeners/<listener_id>", "Get a listener (always 404)", role="read", status=404)
def get_listener(listener_id: UUID) -> Response:
    raise _no_listener(listener_id)


@bp.operation(
    "PATCH DELETE /v2/listeners/<listener_id>",
    "Update or delete a listener (always 404)",
    role="deploy",
    status=404,
)
def change_listener(listener_id: UUID) -> Response:
    raise _no_listener(listener_id)


def _no_listener(listener_id: UUID) -> NotFound:
    return NotFound(f"Listener ID {listener_id} not found.")


@bp.operation(
    "GET /v1/integrations/github/install",
    "List GitHub installations (always empty)",
    role="read",
    answer=NOTHING,
)
def list_installations() -> Response:
    return jsonify([])


@bp.operation(
    "GET /v1/integrations/github/<integration_id>/repos",
    "List an installation's repositories (always empty)",
    role="read",
    answer=NOTHING,
)
def list_repositories(integration_id: UUID) -> Response:
    return jsonify([])


@bp.operation(
    "POST /v2/deployments/<deployment_id>/push-token",
    "Get a token for pushing images (not supported)",
    role="deploy",
    status=400,
    errors=(404,),
)
def create_push_token(deployment_id: UUID) -> Response:
    with connection() as conn:
        deployments.require(conn, caller().organization_id, deployment_id)
    raise Invalid(
        "This service has no image registry: upload the source instead (`langgraph deploy --remote`).",
        status=400,
    )
