"""The audit log of an organization."""

from __future__ import annotations

from typing import Any, ClassVar

from flask import Response

from shared import audit
from shared.access import organizations
from shared.access.api_keys import OPERATOR
from shared.audit import Action
from shared.infra.postgres import connection
from web.gate.context import caller
from web.http.responses import resource_page, resource_page_schema
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("audit", section="Figures")

ACTIONS = tuple(dict.fromkeys(part for action in Action for part in (action.partition(".")[0], str(action))))


class AuditSearch(fields.Page):
    example: ClassVar[dict[str, Any]] = {"action": "traffic.promoted"}

    deployment_id = fields.UuidField()
    action = fields.OneOf(
        *ACTIONS, metadata={"description": "An action, or its part before the dot: `key` finds `key.created`"}
    )
    key_id = fields.StrictString(max_length=255, metadata={"description": "Of the key or person that acted"})
    since = fields.TimeField()
    until = fields.TimeField()
    before = fields.QueryInteger(
        minimum=1,
        maximum=2**63 - 1,
        metadata={
            "description": "The `id` of an entry: only older ones. Pages then stay the same while entries are added"
        },
    )
    organization_id = fields.UuidField(
        metadata={"description": "For operators: the entries of this organization, also of a deleted one"}
    )


@bp.operation(
    "GET /v2/audit",
    "List the entries of the audit log, newest first",
    role="read",
    answer=resource_page_schema(audit.RECORD.schema),
    query=AuditSearch,
    errors=(404,),
)
def list_entries(query: dict[str, Any]) -> Response:
    """List who changed deployments, revisions, traffic, secrets, providers, keys and organizations, who answered questions,
    and from where.

    An entry stays for `RUNYARD_LOG_RETENTION_DAYS`. `revision.deployed` and `revision.failed` are recorded when a build
    ends, with the key that requested it. Of secrets, only the names are recorded. Addresses, and the entries of keys, users
    and organizations, are for the role `admin`. Entries of organizations and workers belong to the
    default organization.
    """
    organization_id = query.pop("organization_id", caller().organization_id)
    if organization_id != caller().organization_id and not caller().may(OPERATOR):
        raise organizations.missing(organization_id)
    with connection() as conn:
        rows = audit.search(conn, organization_id, as_admin=caller().may("admin"), **query)
    return resource_page([audit.RECORD.show(row) for row in rows], offset=query["offset"])
