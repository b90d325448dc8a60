"""Changes of an organization's deployments, traffic and keys: the list, and its rows for the caller's requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flask import Response
from sqlalchemy import Connection

from shared import changes
from shared.access import api_keys
from shared.changes import ChangeKind
from shared.infra.postgres import connection
from web.gate.context import caller
from web.http.responses import resource_page, resource_page_schema
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("changes", section="Figures")


class ChangeSearch(fields.Page):
    deployment_id = fields.UuidField()


@bp.operation(
    "GET /v2/changes",
    "List changes of deployments, traffic and keys, newest first",
    role="read",
    answer=resource_page_schema(changes.RECORD.schema),
    query=ChangeSearch,
)
def list_changes(query: dict[str, Any]) -> Response:
    """List what changed and which key made the change. A change stays in the list for 90 days.

    `revision.deployed` and `revision.failed` are recorded when a build ends, with the key that requested it. Changes of
    keys are listed for the role `admin`, as keys are.
    """
    with connection() as conn:
        rows = changes.newest(conn, caller().organization_id, with_keys=caller().may("admin"), **query)
    return resource_page([changes.RECORD.show(row) for row in rows], offset=query["offset"])


def caller_key(conn: Connection) -> dict[str, str]:
    """Return id and name of the caller's key or account. Records keep both, since ended keys are deleted."""
    return {"key_id": caller().key_id, "name": api_keys.caller_name(conn, caller())}


def record_change(
    conn: Connection, kind: ChangeKind, subject: str, *, deployment_id: UUID | None = None, **detail: Any
) -> None:
    """Record a change by the caller, in the transaction that makes it."""
    changes.add(
        conn,
        caller().organization_id,
        kind,
        subject,
        by=caller_key(conn),
        deployment_id=deployment_id,
        **detail,
    )
