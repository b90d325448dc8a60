"""Traffic of new runs: promote a revision, abort a split, and previews beside the serving revision."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from flask import Response, jsonify

from shared import assistants
from shared.audit import Action
from shared.deployments import deployments, revision_events, traffic
from shared.deployments.records import DEPLOYMENT, PREVIEW
from shared.errors import Conflict, HostUnusable
from shared.hosts import calls
from shared.infra.postgres import Row, connection
from web.control_plane.deployments import deployment_record
from web.gate.addresses import deployment_address
from web.gate.audit import record_action
from web.gate.context import base_url, caller, settings
from web.gate.deployments import forget
from web.http.responses import resource_page, resource_page_schema
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("traffic", section="Revisions")


class Promote(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"revision_id": "0198c0de-0000-7000-8000-000000000000"}

    revision_id = fields.UuidField(required=True)
    require_replay = fields.StrictBoolean(
        load_default=False,
        metadata={
            "description": "Refuse this request unless the revision's newest judged replay passed, even if the deployment's"
            " setting does not require it or exempts the revision. The setting is unchanged"
        },
    )


@bp.operation(
    "POST /v2/deployments/<deployment_id>/traffic/promote",
    "Move all traffic to a deployed revision",
    role="deploy",
    answer=DEPLOYMENT.schema,
    body=Promote,
    errors=(404, 409),
)
def promote_revision(deployment_id: UUID, body: dict[str, Any]) -> Response:
    """Give all new runs to a revision that was deployed before, and end a split. Nothing is built.

    Before that, the request waits for a short time until a runner has started a process of the revision. The answer is
    a 409 if the process cannot be started, or if a required replay did not pass. Repeating the request is safe.
    """
    revision_id = body["revision_id"]
    with connection() as conn:
        pool = deployments.get(conn, caller().organization_id, deployment_id)["pool"]
        traffic.require_deployed(conn, caller().organization_id, deployment_id, revision_id, "revision_id")
    try:
        calls.prepare(deployment_id, revision_id, pool)
    except HostUnusable as error:
        raise Conflict(f"The traffic was not moved: {error.message}") from error
    with connection() as conn:
        is_exempt = traffic.promote(
            conn,
            caller().organization_id,
            deployment_id,
            revision_id,
            require_replay=body["require_replay"],
        )
        assistants.reconfigure_defaults(conn, deployment_id, revision_id)
        row = deployments.get(conn, caller().organization_id, deployment_id)
        record_action(
            conn,
            Action.TRAFFIC_PROMOTED,
            row["name"],
            deployment_id=deployment_id,
            revision_number=row["active_revision_number"],
            without_replay=is_exempt or None,
        )
    forget(deployment_id)
    return jsonify(deployment_record(row))


@bp.operation(
    "POST /v2/deployments/<deployment_id>/traffic/abort",
    "Abort a traffic split: the serving revision gets all traffic",
    role="deploy",
    answer=DEPLOYMENT.schema,
    errors=(404,),
)
def abort_split(deployment_id: UUID) -> Response:
    """End a split. Existing runs stay with the revision that they were created for. Repeating the request is safe."""
    with connection() as conn:
        was_split = traffic.abort(conn, caller().organization_id, deployment_id)
        row = deployments.get(conn, caller().organization_id, deployment_id)
        if was_split:
            record_action(conn, Action.TRAFFIC_ABORTED, row["name"], deployment_id=deployment_id)
    forget(deployment_id)
    if row["active_revision_id"] is not None:
        calls.announce(row["active_revision_id"], row["pool"])
    return jsonify(deployment_record(row))


@bp.operation(
    "GET /v2/deployments/<deployment_id>/previews",
    "List a deployment's previews",
    role="read",
    answer=resource_page_schema(PREVIEW.schema),
    errors=(404,),
)
def list_previews(deployment_id: UUID) -> Response:
    """List all previews, ordered by name. `url` is null until the first revision of a preview is deployed."""
    with connection() as conn:
        rows = traffic.previews(conn, caller().organization_id, deployment_id)
        name = deployments.get(conn, caller().organization_id, deployment_id)["name"]
    return resource_page([_preview_record(row, name) for row in rows], offset=0)


@bp.operation(
    "DELETE /v2/deployments/<deployment_id>/previews/<name>",
    "Delete a preview",
    role="deploy",
    status=204,
    errors=(404,),
)
def delete_preview(deployment_id: UUID, name: str) -> None:
    """Delete a preview and its address, and stop its builds. Existing runs continue, and its threads are kept."""
    with connection() as conn:
        transitions = traffic.delete_preview(conn, caller().organization_id, deployment_id, name)
        row = deployments.get(conn, caller().organization_id, deployment_id)
        record_action(conn, Action.PREVIEW_DELETED, row["name"], deployment_id=deployment_id, preview=name)
    forget(deployment_id)
    revision_events.announce(transitions)


def _preview_record(row: Row, deployment: str) -> dict[str, Any]:
    """Return a preview's record, with its URL once a revision serves."""
    name = deployments.preview_address_name(deployment, row["name"])
    address = deployment_address(settings(), base_url(), name, row["mount_prefix"])
    return {**PREVIEW.show(row), "url": None if row["revision_id"] is None else address}
