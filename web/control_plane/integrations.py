"""Routes for features of the hosted product that this service does not have, with clear refusals for its clients.

The features are listeners (remote clusters), GitHub installations, and a container registry for images.
"""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from shared.deployments import deployments
from shared.errors import Invalid, NotFound
from shared.infra.postgres import connection
from web.control_plane import schemas
from web.control_plane.records import MAX_OFFSET, page
from web.gate.context import caller
from web.schemas.fields import QueryInteger, Schema
from web.schemas.operations import operation
from web.schemas.validation import load_query, uuid_path

bp = Blueprint("integrations", __name__)


class ListenerSearch(Schema):
    limit = QueryInteger(minimum=1, maximum=100, load_default=20)
    offset = QueryInteger(minimum=0, maximum=MAX_OFFSET, load_default=0)


@bp.get("/v2/listeners")
@operation("List listeners (always empty)", role="read", answer=schemas.NOTHING_LISTED, query=ListenerSearch)
def list_listeners() -> Response:
    return page([], offset=load_query(ListenerSearch)["offset"])


@bp.post("/v2/listeners")
@operation("Create a listener (not supported)", role="deploy", status=400)
def create_listener() -> Response:
    raise Invalid("Listeners are not supported by this service.", status=400)


@bp.get("/v2/listeners/<listener_id>")
@operation("Get a listener (always 404)", role="read", status=404)
def get_listener(listener_id: str) -> Response:
    raise _no_listener(listener_id)


@bp.patch("/v2/listeners/<listener_id>")
@bp.delete("/v2/listeners/<listener_id>")
@operation("Update or delete a listener (always 404)", role="deploy", status=404)
def change_listener(listener_id: str) -> Response:
    raise _no_listener(listener_id)


def _no_listener(listener_id: str) -> NotFound:
    return NotFound(f"Listener ID {uuid_path(listener_id, 'listener_id')} not found.")


@bp.get("/v1/integrations/github/install")
@operation("List GitHub installations (always empty)", role="read", answer=schemas.NOTHING)
def list_installations() -> Response:
    return jsonify([])


@bp.get("/v1/integrations/github/<integration_id>/repos")
@operation("List an installation's repositories (always empty)", role="read", answer=schemas.NOTHING)
def list_repositories(integration_id: str) -> Response:
    uuid_path(integration_id, "integration_id")
    return jsonify([])


@bp.post("/v2/deployments/<deployment_id>/push-token")
@operation("Get a token for pushing images (not supported)", role="deploy", status=400, errors=(404,))
def create_push_token(deployment_id: str) -> Response:
    key = uuid_path(deployment_id, "deployment_id")
    with connection() as conn:
        deployments.require(conn, caller().organization_id, key)
    raise Invalid(
        "This service has no image registry: upload the source instead (`langgraph deploy --remote`).",
        status=400,
    )
