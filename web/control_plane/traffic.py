"""Traffic of new runs: promote a revision, abort a split, and previews beside the serving revision."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify
from sqlalchemy import RowMapping

from shared import assistants
from shared.deployments import deployments, logs, traffic, warming
from shared.errors import Conflict, HostUnusable
from shared.infra.postgres import connection
from web.control_plane import schemas
from web.control_plane.records import deployment_record, page
from web.gate.addresses import deployment_address
from web.gate.context import base_url, caller, settings
from web.gate.deployments import forget
from web.schemas.fields import Schema, UuidField
from web.schemas.operations import operation
from web.schemas.validation import load, uuid_path

bp = Blueprint("traffic", __name__)


class Promote(Schema):
    revision_id = UuidField(required=True)


@bp.post("/v2/deployments/<deployment_id>/traffic/promote")
@operation(
    "Move all traffic to a deployed revision",
    role="deploy",
    answer=schemas.DEPLOYMENT,
    body=Promote,
    errors=(404, 409),
)
def promote_revision(deployment_id: str) -> Response:
    """Give all new runs to a revision that was deployed before, and end a split. Nothing is built.

    Before that, the request waits for a short time until a runner has started a process of the revision. The answer is
    a 409 if the process cannot be started. Repeating the request is safe.
    """
    key = uuid_path(deployment_id, "deployment_id")
    revision_id = load(Promote)["revision_id"]
    with connection() as conn:
        pool = deployments.get(conn, caller().organization_id, key)["pool"]
        traffic.require_deployed(conn, caller().organization_id, key, revision_id, "revision_id")
    try:
        warming.prepare(key, revision_id, pool)
    except HostUnusable as error:
        raise Conflict(f"The traffic was not moved: {error.message}") from error
    with connection() as conn:
        traffic.promote(conn, caller().organization_id, key, revision_id)
        assistants.reconfigure_defaults(conn, key, revision_id)
        row = deployments.get(conn, caller().organization_id, key)
    forget(key)
    return jsonify(deployment_record(row))


@bp.post("/v2/deployments/<deployment_id>/traffic/abort")
@operation(
    "Abort a traffic split: the serving revision gets all traffic",
    role="deploy",
    answer=schemas.DEPLOYMENT,
    errors=(404,),
)
def abort_split(deployment_id: str) -> Response:
    """End a split. Existing runs stay with the revision that they were created for. Repeating the request is safe."""
    key = uuid_path(deployment_id, "deployment_id")
    with connection() as conn:
        traffic.abort(conn, caller().organization_id, key)
        row = deployments.get(conn, caller().organization_id, key)
    forget(key)
    if row["active_revision_id"] is not None:
        warming.announce(row["active_revision_id"], row["pool"])
    return jsonify(deployment_record(row))


@bp.get("/v2/deployments/<deployment_id>/previews")
@operation("List a deployment's previews", role="read", answer=schemas.page(schemas.PREVIEW), errors=(404,))
def list_previews(deployment_id: str) -> Response:
    """List all previews, ordered by name. `url` is null until the first revision of a preview is deployed."""
    key = uuid_path(deployment_id, "deployment_id")
    with connection() as conn:
        rows = traffic.previews(conn, caller().organization_id, key)
        name = deployments.get(conn, caller().organization_id, key)["name"]
    return page([_preview_record(row, name) for row in rows], offset=0)


@bp.delete("/v2/deployments/<deployment_id>/previews/<name>")
@operation("Delete a preview", role="deploy", status=204, errors=(404,), any_text=("name",))
def delete_preview(deployment_id: str, name: str) -> tuple[str, int]:
    """Delete a preview and its address, and stop its builds. Existing runs continue, and its threads are kept."""
    key = uuid_path(deployment_id, "deployment_id")
    with connection() as conn:
        moved = traffic.delete_preview(conn, caller().organization_id, key, name)
    forget(key)
    logs.announce(moved)
    return "", 204


def _preview_record(row: RowMapping, deployment: str) -> dict[str, Any]:
    name = deployments.preview_address_name(deployment, row["name"])
    address = deployment_address(settings(), base_url(), name, row["mount_prefix"])
    return {
        "name": row["name"],
        "url": None if row["revision_id"] is None else address,
        "revision_id": row["revision_id"],
        "revision_number": row["revision_number"],
        "latest_revision_id": row["latest_revision_id"],
        "latest_revision_status": row["latest_revision_status"],
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }
