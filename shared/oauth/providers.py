"""OAuth providers of an organization: where its users give consent, and this service's client credentials there.

A provider's secret is stored encrypted and sent only to the provider's own endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text
from uuid_utils.compat import uuid7

from shared.errors import AddressRefused, Conflict, Invalid, NotFound
from shared.infra import egress, encryption
from shared.oauth.token_endpoint import OAuthClient

AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post")
DEFAULT_AUTH_METHOD = "client_secret_post"
CHALLENGE_METHODS = ("S256", "plain")
DEFAULT_CHALLENGE_METHOD = "S256"
TYPES = ("vendor_a", "vendor_b", "vendor_c", "microsoft", "salesforce", "slack")

COLUMNS = (
    "id organization_id provider_id name client_id client_secret auth_url token_url uses_pkce"
    " code_challenge_method provider_type token_endpoint_auth_method mcp_server_url is_dynamic_client issuer"
    " revocation_url"
).split()
# Fields that a caller may change; None leaves a field unchanged.
CHANGEABLE = (
    "name client_id client_secret auth_url token_url uses_pkce code_challenge_method"
    " token_endpoint_auth_method provider_type"
).split()

INSERT = text(
    f"INSERT INTO oauth_provider ({', '.join(COLUMNS)}) VALUES ({', '.join(':' + name for name in COLUMNS)})"
    " ON CONFLICT DO NOTHING RETURNING *"
)


def create(conn: Connection, organization_id: UUID, values: Mapping[str, Any]) -> RowMapping:
    """Insert a provider. Raises Conflict if its id is taken, Invalid for URLs that may not be called."""
    check_addresses(values)
    known = {
        "uses_pkce": False,
        "code_challenge_method": DEFAULT_CHALLENGE_METHOD,
        "token_endpoint_auth_method": DEFAULT_AUTH_METHOD,
        "is_dynamic_client": False,
        **values,
    }
    columns = {
        **dict.fromkeys(COLUMNS),
        **{name: known[name] for name in COLUMNS if name in known},
        "id": uuid7(),
        "organization_id": organization_id,
        "client_secret": _encrypted(values.get("client_secret")),
    }
    row = conn.execute(INSERT, columns).mappings().one_or_none()
    if row is None:
        raise taken(values["provider_id"])
    return row


def list_all(conn: Connection, organization_id: UUID) -> list[RowMapping]:
    """Return the organization's providers, oldest first."""
    query = text("SELECT * FROM oauth_provider WHERE organization_id = :organization_id ORDER BY id")
    return list(conn.execute(query, {"organization_id": organization_id}).mappings())


def get(conn: Connection, organization_id: UUID, provider_id: str) -> RowMapping:
    """Return a provider by the id that its organization chose. Raises NotFound."""
    row = _find(conn, organization_id, provider_id)
    if row is None:
        raise missing(provider_id)
    return row


def require_free(conn: Connection, organization_id: UUID, provider_id: str) -> None:
    """Raise Conflict if the organization has a provider with this id."""
    if _find(conn, organization_id, provider_id) is not None:
        raise taken(provider_id)


def _find(conn: Connection, organization_id: UUID, provider_id: str) -> RowMapping | None:
    query = text(
        "SELECT * FROM oauth_provider WHERE organization_id = :organization_id AND provider_id = :id"
    )
    return (
        conn.execute(query, {"organization_id": organization_id, "id": provider_id}).mappings().one_or_none()
    )


def update(
    conn: Connection, organization_id: UUID, provider_id: str, changes: Mapping[str, Any]
) -> RowMapping:
    """Change the fields that are not None. Raises NotFound, Invalid."""
    check_addresses(changes)
    values = {name: changes[name] for name in CHANGEABLE if changes.get(name) is not None}
    if "client_secret" in values:
        values["client_secret"] = _encrypted(values["client_secret"])
    assignments = ", ".join(f"{name} = :{name}" for name in values)
    query = text(
        f"UPDATE oauth_provider SET {assignments + ',' if values else ''} updated_at = now()"
        " WHERE organization_id = :organization_id AND provider_id = :provider_id RETURNING *"
    )
    key = {"organization_id": organization_id, "provider_id": provider_id}
    row = conn.execute(query, {**values, **key}).mappings().one_or_none()
    if row is None:
        raise missing(provider_id)
    return row


def delete(conn: Connection, organization_id: UUID, provider_id: str) -> None:
    """Delete a provider and all its tokens. Raises NotFound."""
    query = text("DELETE FROM oauth_provider WHERE organization_id = :organization_id AND provider_id = :id")
    if conn.execute(query, {"organization_id": organization_id, "id": provider_id}).rowcount != 1:
        raise missing(provider_id)


def client_of(row: RowMapping) -> OAuthClient:
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


def check_addresses(values: Mapping[str, Any]) -> None:
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


def taken(provider_id: str) -> Conflict:
    return Conflict(f"An OAuth provider with the id {provider_id!r} already exists.")


def _encrypted(secret: str | None) -> bytes | None:
    return None if secret is None else encryption.encrypt(secret)
