"""Organizations: each sees only its own objects. Only operators create, rename and delete them.

Deletion hides an organization and all its objects at once. Upkeep removes the objects, then the row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from cachetools import TTLCache
from sqlalchemy import ColumnElement, Connection, RowMapping, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from uuid_utils.compat import uuid7

from shared.access.api_keys import CACHE_SECONDS, CACHE_SIZE, DEFAULT_ORGANIZATION_ID, OPERATOR, Caller
from shared.deployments.revisions import Transition
from shared.errors import Conflict, Forbidden, Invalid, NotFound
from shared.infra.postgres import connection
from shared.models import ORGANIZATION
from shared.records import ID, TEXT, TIME, Record, RecordField
from shared.removal import deletion

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
RECORD = Record(
    "Organization", {"id": RecordField(ID), "name": RecordField(TEXT), "created_at": RecordField(TIME)}
)
_SHOWN = [ORGANIZATION.c[name] for name in RECORD.columns]
PURGE_GRACE_SECONDS = 60.0  # after this time no process caches the organization's keys any more


def create(conn: Connection, name: str) -> RowMapping:
    """Insert an organization. Raises Conflict if the name is taken, Invalid if it looks like an id."""
    _check_name(name)
    query = insert(ORGANIZATION).values(id=uuid7(), name=name).on_conflict_do_nothing().returning(*_SHOWN)
    row = conn.execute(query).mappings().one_or_none()
    if row is None:
        raise _already_exists(name)
    return row


def list_all(conn: Connection, *, only: UUID | None, limit: int, offset: int) -> list[RowMapping]:
    """Return organizations, oldest first; only that one if `only` is set."""
    query = select(*_SHOWN).where(ORGANIZATION.c.deleted_at.is_(None))
    if only is not None:
        query = query.where(ORGANIZATION.c.id == only)
    query = query.order_by(ORGANIZATION.c.created_at, ORGANIZATION.c.id).limit(limit).offset(offset)
    return list(conn.execute(query).mappings())


def get(conn: Connection, organization_id: UUID) -> RowMapping:
    """Return an organization. Raises NotFound."""
    query = select(*_SHOWN).where(*_exists(organization_id))
    row = conn.execute(query).mappings().one_or_none()
    if row is None:
        raise missing(organization_id)
    return row


def _exists(organization_id: UUID) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on an organization that is not deleted."""
    return ORGANIZATION.c.id == organization_id, ORGANIZATION.c.deleted_at.is_(None)


def rename(conn: Connection, organization_id: UUID, name: str) -> RowMapping:
    """Rename an organization.

    Raises NotFound, Conflict if the name is taken, Invalid (400) for the default organization.
    """
    _check_name(name)
    _refuse_default(organization_id, "renamed")
    query = update(ORGANIZATION).where(*_exists(organization_id)).values(name=name).returning(*_SHOWN)
    try:
        row = conn.execute(query).mappings().one_or_none()
    except IntegrityError as error:
        raise _already_exists(name) from error
    if row is None:
        raise missing(organization_id)
    forget()
    return row


def delete(conn: Connection, organization_id: UUID) -> list[Transition]:
    """Hide the organization and interrupt its deployments. Its keys become invalid. Raises NotFound, Invalid (400)."""
    _refuse_default(organization_id, "deleted")
    query = update(ORGANIZATION).where(*_exists(organization_id)).values(deleted_at=func.now())
    if conn.execute(query).rowcount != 1:
        raise missing(organization_id)
    forget()
    return _delete_deployments(conn, organization_id)


def purge_deleted(conn: Connection) -> list[Transition]:
    """Remove deleted organizations that are empty. Returns transitions to announce.

    A process that still cached a key may have created a deployment after the deletion. Such deployments are deleted
    here.
    """
    query = text(
        "SELECT id FROM organization WHERE deleted_at < now() - make_interval(secs => :grace)"
        " ORDER BY deleted_at LIMIT 20 FOR UPDATE SKIP LOCKED"
    )
    moved: list[Transition] = []
    for organization_id in conn.execute(query, {"grace": PURGE_GRACE_SECONDS}).scalars().all():
        moved += _delete_deployments(conn, organization_id)
        conn.execute(
            text(
                "DELETE FROM organization WHERE id = :id"
                " AND NOT EXISTS (SELECT FROM deployment WHERE organization_id = :id)"
            ),
            {"id": organization_id},
        )
    return moved


def _delete_deployments(conn: Connection, organization_id: UUID) -> list[Transition]:
    query = text(
        "SELECT id FROM listed_deployment WHERE organization_id = :id AND deleted_at IS NULL ORDER BY id"
    )
    ids = conn.execute(query, {"id": organization_id}).scalars().all()
    return [moved for id in ids for moved in deletion.delete(conn, organization_id, id)]


# The organization that a caller acts for


class Organization(NamedTuple):
    """The id and name of an organization."""

    id: UUID
    name: str


_known: TTLCache[str, Organization] = TTLCache(CACHE_SIZE, CACHE_SECONDS)


def forget() -> None:
    """Clear the cache of organizations."""
    _known.clear()


def acting_for(caller: Caller, tenant: str) -> Caller:
    """Return the caller in the organization that `tenant` names by id or name. Raises Forbidden.

    Operators may act for any organization, other callers only for their own.
    """
    if tenant.lower() == str(caller.organization_id) or tenant == caller.organization_name:
        return caller
    if not caller.may(OPERATOR):
        raise Forbidden("This API key does not belong to the organization named in X-Tenant-Id")
    organization = find(tenant)
    if organization is None:
        raise Forbidden("X-Tenant-Id names no organization of this installation")
    return replace(caller, organization_id=organization.id, organization_name=organization.name)


def id_of(tenant: str) -> UUID | None:
    """Return the id of the organization that `tenant` names by id or name, or None."""
    organization = find(tenant)
    return None if organization is None else organization.id


def find(tenant: str) -> Organization | None:
    """Return the organization that `tenant` names by id or name, or None."""
    known = _known.get(tenant)
    if known is not None:
        return known
    with connection() as conn:
        query = text(
            "SELECT id, name FROM organization WHERE deleted_at IS NULL"
            " AND (name = :tenant OR CAST(id AS text) = lower(:tenant))"
        )
        row = conn.execute(query, {"tenant": tenant}).one_or_none()
    if row is None:
        return None
    organization = _known[tenant] = Organization(row.id, row.name)
    return organization


def missing(organization_id: UUID) -> NotFound:
    return NotFound(f"Organization ID {organization_id} not found.")


def _already_exists(name: str) -> Conflict:
    return Conflict(f"An organization named {name!r} already exists.")


def _check_name(name: str) -> None:
    """Raise Invalid for a name that looks like an id: it could be taken for another organization."""
    try:
        UUID(name)
    except ValueError:
        return
    raise Invalid("must not be a UUID", loc=("body", "name"))


def _refuse_default(organization_id: UUID, what: str) -> None:
    if organization_id == DEFAULT_ORGANIZATION_ID:
        raise Invalid(f"The default organization cannot be {what}.", loc=("path",), status=400)
