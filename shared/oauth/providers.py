"""OAuth providers of an organization: where its users give consent, and this service's client credentials there.

A provider's secret is stored encrypted and sent only to the provider's own endpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Column, ColumnElement, Connection, RowMapping, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from uuid_utils.compat import uuid7

from shared.errors import AddressRefused, Conflict, Invalid, NotFound
from shared.infra import egress, encryption
from shared.infra.postgres import Row
from shared.models import OAUTH_PROVIDER
from shared.oauth.token_endpoint import OAuthClient
from shared.records import BOOLEAN, ID, TEXT, TEXT_OR_NULL, TIME, Record, RecordField, one_of

AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post")
DEFAULT_AUTH_METHOD = "client_secret_post"
CHALLENGE_METHODS = ("S256", "plain")
DEFAULT_CHALLENGE_METHOD = "S256"
TYPES = ("vendor_a", "vendor_b", "vendor_c", "microsoft", "salesforce", "slack")

RECORD = Record(
    "OAuthProvider",
    {
        "id": RecordField(ID),
        "organization_id": RecordField(ID),
        "provider_id": RecordField(TEXT),
        "name": RecordField(TEXT),
        "client_id": RecordField(TEXT),
        "auth_url": RecordField(TEXT),
        "token_url": RecordField(TEXT),
        "uses_pkce": RecordField(BOOLEAN),
        "code_challenge_method": RecordField(TEXT_OR_NULL),
        "provider_type": RecordField(TEXT_OR_NULL),
        "mcp_server_url": RecordField(TEXT_OR_NULL),
        "token_endpoint_auth_method": RecordField(one_of(*AUTH_METHODS)),
        "is_dynamic_client": RecordField(BOOLEAN),
        "created_at": RecordField(TIME),
        "updated_at": RecordField(TIME),
    },
)
# Fields that a caller may change; None leaves a field unchanged.
CHANGEABLE = (
    "name client_id client_secret auth_url token_url uses_pkce code_challenge_method"
    " token_endpoint_auth_method provider_type"
).split()

_SHOWN = [OAUTH_PROVIDER.c[name] for name in RECORD.columns]


def create(conn: Connection, organization_id: UUID, values: Mapping[str, Any]) -> RowMapping:
    """Insert a provider. Raises Conflict if its id is taken, Invalid for URLs that may not be called."""
    _check_addresses(values)
    columns = {
        **values,
        "id": uuid7(),
        "organization_id": organization_id,
        "client_secret": _encrypted(values.get("client_secret")),
    }
    query = insert(OAUTH_PROVIDER).values(columns).on_conflict_do_nothing().returning(*_SHOWN)
    row = conn.execute(query).mappings().one_or_none()
    if row is None:
        raise already_exists(values["provider_id"])
    return row


def list_all(conn: Connection, organization_id: UUID) -> list[RowMapping]:
    """Return the organization's providers, oldest first."""
    is_listed = OAUTH_PROVIDER.c.organization_id == organization_id
    query = select(*_SHOWN).where(is_listed).order_by(OAUTH_PROVIDER.c.id)
    return list(conn.execute(query).mappings())


def get(conn: Connection, organization_id: UUID, provider_id: str) -> RowMapping:
    """Return a provider by the id that its organization chose, without its secret. Raises NotFound."""
    return _get(conn, organization_id, provider_id, _SHOWN)


def get_with_secret(conn: Connection, organization_id: UUID, provider_id: str) -> RowMapping:
    """Return all columns of a provider, for `client_of`. Raises NotFound."""
    return _get(conn, organization_id, provider_id, OAUTH_PROVIDER.c)


def _get(
    conn: Connection, organization_id: UUID, provider_id: str, columns: Iterable[Column[Any]]
) -> RowMapping:
    query = select(*columns).where(*_is_named(organization_id, provider_id))
    row = conn.execute(query).mappings().one_or_none()
    if row is None:
        raise missing(provider_id)
    return row


def _is_named(organization_id: UUID, provider_id: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on the provider with this id."""
    table = OAUTH_PROVIDER.c
    return table.organization_id == organization_id, table.provider_id == provider_id


def require_free(conn: Connection, organization_id: UUID, provider_id: str) -> None:
    """Raise Conflict if the organization has a provider with this id."""
    query = select(OAUTH_PROVIDER.c.id).where(*_is_named(organization_id, provider_id))
    if conn.execute(query).first() is not None:
        raise already_exists(provider_id)


def change(
    conn: Connection, organization_id: UUID, provider_id: str, changes: Mapping[str, Any]
) -> RowMapping:
    """Change the fields that are not None. Raises NotFound, Invalid."""
    _check_addresses(changes)
    values = {name: changes[name] for name in CHANGEABLE if changes.get(name) is not None}
    if "client_secret" in values:
        values["client_secret"] = _encrypted(values["client_secret"])
    query = (
        update(OAUTH_PROVIDER)
        .where(*_is_named(organization_id, provider_id))
        .values(**values, updated_at=func.now())
        .returning(*_SHOWN)
    )
    row = conn.execute(query).mappings().one_or_none()
    if row is None:
        raise missing(provider_id)
    return row


def remove(conn: Connection, organization_id: UUID, provider_id: str) -> None:
    """Delete a provider and all its tokens. Raises NotFound."""
    query = delete(OAUTH_PROVIDER).where(*_is_named(organization_id, provider_id))
    if conn.execute(query).rowcount != 1:
        raise missing(provider_id)


def client_of(row: Row) -> OAuthClient:
    """Return the client data for calls to the provider, with the decrypted secret."""
    secret = row["client_secret"]
    return OAuthClient(
        provider_id=row["provider_id"],
        client_id=row["client_id"],
        client_secret=None if secret is None else encryption.decrypt(secret),
        auth_url=row["auth_url"],
        token_url=row["token_url"],
        auth_method=row["token_endpoint_auth_method"],
        pkce_method=(row["code_challenge_method"] or DEFAULT_CHALLENGE_METHOD) if row["uses_pkce"] else None,
        provider_type=row["provider_type"],
        resource=row["mcp_server_url"],
        revocation_url=row["revocation_url"],
    )


def _check_addresses(values: Mapping[str, Any]) -> None:
    """Raise Invalid naming the URL that may not be called."""
    for name, check in (
        ("auth_url", egress.check_browser_url),
        ("token_url", egress.check_url),
        ("mcp_server_url", egress.check_url),
    ):
        if values.get(name) is None:
            continue
        try:
            check(values[name])
        except AddressRefused as error:
            raise Invalid(error.message, loc=("body", name)) from error


def missing(provider_id: str) -> NotFound:
    return NotFound(f"OAuth provider {provider_id!r} not found.")


def already_exists(provider_id: str) -> Conflict:
    return Conflict(f"An OAuth provider with the id {provider_id!r} already exists.")


def _encrypted(secret: str | None) -> bytes | None:
    return None if secret is None else encryption.encrypt(secret)
