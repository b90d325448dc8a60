"""Changes of an organization's deployments, traffic and keys: who made them, and when.

A row is inserted by the transaction that makes the change, so there is no change without its row. A trigger inserts the
ends of revisions (shared/sql/changes.sql), because several processes end them. Rows are kept for KEPT_DAYS.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared.infra.postgres import dumps
from shared.records import COUNT, ID_OR_NULL, OBJECT, TEXT, TIME, Record, RecordField, one_of, or_null, record
from shared.sql import statement

KEPT_DAYS = 90
MOST = 100_000  # rows of the installation
REMOVED_AT_ONCE = 5_000


class ChangeKind(StrEnum):
    """The kinds of changes. The trigger inserts `revision.deployed` and `revision.failed`."""

    DEPLOYMENT_CREATED = "deployment.created"
    DEPLOYMENT_CHANGED = "deployment.changed"
    DEPLOYMENT_DELETED = "deployment.deleted"
    REVISION_DEPLOYED = "revision.deployed"
    REVISION_FAILED = "revision.failed"
    REVISION_INTERRUPTED = "revision.interrupted"
    TRAFFIC_PROMOTED = "traffic.promoted"
    TRAFFIC_SPLIT = "traffic.split"
    TRAFFIC_ABORTED = "traffic.aborted"
    PREVIEW_DELETED = "preview.deleted"
    KEY_CREATED = "key.created"
    KEY_CHANGED = "key.changed"
    KEY_REVOKED = "key.revoked"


RECORD = Record(
    "Change",
    {
        "id": RecordField(COUNT),
        "at": RecordField(TIME),
        "kind": RecordField(one_of(*ChangeKind)),
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
    kind: ChangeKind,
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
    with_keys: bool = True,
) -> list[dict[str, Any]]:
    """Return the changes of an organization, or of one of its deployments, newest first."""
    return _NEWEST.rows(
        conn,
        organization_id=organization_id,
        deployment_id=deployment_id,
        with_keys=with_keys,
        limit=limit,
        offset=offset,
    )


def remove_old(conn: Connection) -> int:
    """Remove rows older than KEPT_DAYS, and the oldest above MOST. Returns the number of removed rows."""
    return _REMOVE.count(conn, days=KEPT_DAYS, most=MOST, limit=REMOVED_AT_ONCE)
