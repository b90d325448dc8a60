"""Changes of an organization: who deployed, moved traffic, or created, changed and revoked keys, and when.

A row is inserted by the transaction that makes the change, so there is no change without its row. A trigger inserts the
ends of revisions (shared/sql/changes.sql), because several processes end them. Rows are kept for KEPT_DAYS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared.infra.postgres import dumps
from shared.records import COUNT, ID_OR_NULL, OBJECT, TEXT, TIME, Record, RecordField, one_of, or_null, record
from shared.sql import statement

KEPT_DAYS = 90
MOST = 100_000  # rows of the installation
REMOVED_AT_ONCE = 5_000

DEPLOYMENT_CREATED, DEPLOYMENT_CHANGED, DEPLOYMENT_DELETED = (
    f"deployment.{what}" for what in ("created", "changed", "deleted")
)
REVISION_DEPLOYED, REVISION_FAILED, REVISION_INTERRUPTED = (
    f"revision.{what}" for what in ("deployed", "failed", "interrupted")
)
TRAFFIC_PROMOTED, TRAFFIC_SPLIT, TRAFFIC_ABORTED = (
    f"traffic.{what}" for what in ("promoted", "split", "aborted")
)
PREVIEW_DELETED = "preview.deleted"
KEY_CREATED, KEY_CHANGED, KEY_REVOKED = (f"key.{what}" for what in ("created", "changed", "revoked"))
KINDS = (
    DEPLOYMENT_CREATED,
    DEPLOYMENT_CHANGED,
    DEPLOYMENT_DELETED,
    REVISION_DEPLOYED,
    REVISION_FAILED,
    REVISION_INTERRUPTED,
    TRAFFIC_PROMOTED,
    TRAFFIC_SPLIT,
    TRAFFIC_ABORTED,
    PREVIEW_DELETED,
    KEY_CREATED,
    KEY_CHANGED,
    KEY_REVOKED,
)

RECORD = Record(
    "Change",
    {
        "id": RecordField(COUNT),
        "at": RecordField(TIME),
        "kind": RecordField(one_of(*KINDS)),
        "deployment_id": RecordField(ID_OR_NULL),
        "subject": RecordField({"description": "Name of the deployment or key at that time", **TEXT}),
        "changed_by": RecordField(
            {
                "description": "The key that made the change. Null if none is known",
                **or_null(record(key_id=TEXT, name=TEXT)),
            }
        ),
        "detail": RecordField(
            {"description": "Depends on `kind`: revision numbers, shares, names", **OBJECT}
        ),
    },
)

_INSERT = statement("changes.insert")
_NEWEST = statement("changes.newest", columns=RECORD.select)
_REMOVE = statement("changes.remove")


def add(
    conn: Connection,
    organization_id: UUID,
    kind: str,
    subject: str,
    *,
    by: Mapping[str, str] | None,
    deployment_id: UUID | None = None,
    **detail: Any,
) -> None:
    """Insert the row of a change, in the transaction that makes it. `by` is the id and name of the caller's key."""
    _INSERT.count(
        conn,
        organization_id=organization_id,
        kind=kind,
        subject=subject,
        changed_by=None if by is None else dumps(by),
        deployment_id=deployment_id,
        detail=dumps(detail),
    )


def newest(
    conn: Connection,
    organization_id: UUID,
    *,
    limit: int,
    offset: int,
    deployment_id: UUID | None = None,
) -> list[dict[str, Any]]:
    """Return the changes of an organization, or of one of its deployments, newest first."""
    return _NEWEST.rows(
        conn, organization_id=organization_id, deployment_id=deployment_id, limit=limit, offset=offset
    )


def remove_old(conn: Connection) -> int:
    """Remove rows older than KEPT_DAYS, and the oldest above MOST. Returns the number of removed rows."""
    return _REMOVE.count(conn, days=KEPT_DAYS, most=MOST, limit=REMOVED_AT_ONCE)
