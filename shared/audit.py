"""The audit log: who changed what in an organization, when, and from which address.

An entry is inserted by the transaction that makes the change, so there is no change without its entry. A trigger inserts
the ends of revisions (shared/sql/audit.sql), because several processes end them. The statement that records an answer to
a question inserts its entry (shared/sql/inbox.sql), because every interface that creates runs can answer. Another trigger
refuses to change or delete entries. Upkeep removes them when they are older than RUNYARD_LOG_RETENTION_DAYS. Entries have
no foreign keys: they outlive deployments and organizations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared.infra.arrays import texts
from shared.infra.postgres import dumps
from shared.records import (
    COUNT,
    ID_OR_NULL,
    OBJECT,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    Record,
    RecordField,
    one_of,
    or_null,
    record,
)
from shared.sql import statement

MOST = 1_000_000  # entries of an organization
REMOVED_AT_ONCE = 5_000


class Action(StrEnum):
    """The actions of the audit log. SQL inserts the ends of revisions, and what happens to questions."""

    DEPLOYMENT_CREATED = "deployment.created"
    DEPLOYMENT_CHANGED = "deployment.changed"
    DEPLOYMENT_DELETED = "deployment.deleted"
    REVISION_CREATED = "revision.created"
    REVISION_DEPLOYED = "revision.deployed"
    REVISION_FAILED = "revision.failed"
    REVISION_INTERRUPTED = "revision.interrupted"
    SECRETS_CHANGED = "secrets.changed"
    TRAFFIC_PROMOTED = "traffic.promoted"
    TRAFFIC_SPLIT = "traffic.split"
    TRAFFIC_ABORTED = "traffic.aborted"
    PREVIEW_DELETED = "preview.deleted"
    REPLAY_CREATED = "replay.created"
    REPLAY_CANCELLED = "replay.cancelled"
    REPLAY_DELETED = "replay.deleted"
    BULK_STARTED = "runs.bulk_started"
    BULK_CANCELLED = "runs.bulk_cancelled"
    QUESTION_ANSWERED = "question.answered"
    QUESTION_CANCELLED = "question.cancelled"
    QUESTION_LINKED = "question.link_created"
    QUESTION_UNLINKED = "question.link_revoked"
    UPLOAD_OPENED = "upload.opened"
    PROVIDER_CREATED = "provider.created"
    PROVIDER_CHANGED = "provider.changed"
    PROVIDER_DELETED = "provider.deleted"
    PROVIDER_AUTHORIZED = "provider.authorized"
    PROVIDER_TOKENS_REVOKED = "provider.tokens_revoked"
    KEY_CREATED = "key.created"
    KEY_CHANGED = "key.changed"
    KEY_REVOKED = "key.revoked"
    KEY_REFUSED = "key.refused"
    USER_SIGNED_IN = "user.signed_in"
    USER_SIGNED_OUT = "user.signed_out"
    ORGANIZATION_CREATED = "organization.created"
    ORGANIZATION_RENAMED = "organization.renamed"
    ORGANIZATION_DELETED = "organization.deleted"
    WORKER_DRAINED = "worker.drained"
    WORKER_RESUMED = "worker.resumed"


# Kinds of actions that only administrators of the organization see.
ADMINISTRATION = ("key", "user", "organization")


@dataclass(frozen=True, slots=True)
class Actor:
    """The key or person that made a change, and the address of the request. A record keeps the name, since keys end."""

    key_id: str
    name: str
    address: str | None = None

    @property
    def identity(self) -> dict[str, str]:
        return {"key_id": self.key_id, "name": self.name}


RECORD = Record(
    "AuditEntry",
    {
        "id": RecordField(COUNT),
        "at": RecordField(TIME),
        "action": RecordField(one_of(*Action)),
        "deployment_id": RecordField(ID_OR_NULL),
        "subject": RecordField(
            {"description": "Name of the deployment, key or other object at that time", **TEXT}
        ),
        "actor": RecordField(
            {
                "description": "The key or person that made the change. Null if none is known",
                **or_null(record(key_id=TEXT, name=TEXT)),
            }
        ),
        "address": RecordField(
            {
                "description": "Where the request came from. Null if none is known, or for roles below `admin`",
                **TEXT_OR_NULL,
            }
        ),
        "detail": RecordField(
            {"description": "Depends on `action`: revision numbers, shares, names", **OBJECT}
        ),
    },
)

_INSERT = statement("audit.insert")
_LOCK_KEY = statement("audit.lock_key")
_ADD_REFUSED_KEY = statement("audit.add_refused_key")
_BEGIN_REMOVAL = statement("audit.begin_removal")
_REMOVE_OLD = statement("audit.remove_old")
_REMOVE_EXCESS = statement("audit.remove_excess")
# A condition per filter that is set: a plan for optional filters would use no index.
_CONDITIONS = {
    "deployment_id": "deployment_id = :deployment_id",
    "key_id": "actor ->> 'key_id' = :key_id",
    "since": "at >= :since",
    "until": "at < :until",
    "before": "(at, id) < ((SELECT at FROM audit_entry WHERE id = :before AND organization_id = :organization_id), :before)",
}


def add(
    conn: Connection,
    organization_id: UUID,
    action: Action,
    subject: str,
    *,
    by: Actor | None,
    deployment_id: UUID | None = None,
    **detail: Any,
) -> None:
    """Insert the entry of a change, in the transaction that makes it."""
    _INSERT.count(
        conn,
        organization_id=organization_id,
        action=action,
        subject=subject,
        actor=None if by is None else dumps(by.identity),
        address=None if by is None else by.address,
        deployment_id=deployment_id,
        detail=dumps({name: value for name, value in detail.items() if value is not None}),
    )


def add_refused_key(conn: Connection, key_id: str, *, address: str | None) -> None:
    """Insert an entry about the refusal of a key, at most one an hour for each key, so that callers cannot fill the log.

    Does nothing for an unknown id, which belongs to no organization.
    """
    if _LOCK_KEY.row(conn, key_id=key_id) is not None:
        _ADD_REFUSED_KEY.count(conn, key_id=key_id, address=address)


def search(
    conn: Connection,
    organization_id: UUID,
    *,
    limit: int,
    offset: int,
    action: str | None = None,
    as_admin: bool = True,
    **filters: Any,
) -> list[dict[str, Any]]:
    """Return the entries of an organization that match all filters, newest first.

    `action` is an action, or its part before the dot. The other `filters` are those of _CONDITIONS; `before` is the id of
    an entry, for pages that stay the same while entries are added. Without `as_admin`, entries of ADMINISTRATION are left
    out, and addresses are None.
    """
    condition = " AND ".join(["true", *(_CONDITIONS[name] for name in filters)])
    values = {**filters, "organization_id": organization_id, "limit": limit, "offset": offset}
    if action is None and as_admin:
        return statement("audit.search", columns=RECORD.select, condition=condition).rows(conn, **values)
    actions = [
        str(one)
        for one in Action
        if action in (None, one, one.partition(".")[0])
        and (as_admin or one.partition(".")[0] not in ADMINISTRATION)
    ]
    found = statement("audit.search_actions", columns=RECORD.select, condition=condition)
    rows = found.rows(conn, **values, actions=texts(actions), last=offset + limit)
    return rows if as_admin else [{**row, "address": None} for row in rows]


def remove_old(conn: Connection, *, days: float) -> int:
    """Remove entries older than this many days, and an organization's oldest above MOST.

    Returns the number of removed entries.
    """
    _BEGIN_REMOVAL.row(conn)
    return _REMOVE_OLD.count(conn, days=days, limit=REMOVED_AT_ONCE) + _REMOVE_EXCESS.count(
        conn, most=MOST, limit=REMOVED_AT_ONCE
    )
