"""Tokens that users consented to: finding, refreshing and revoking them.

An organization's keys act for its users. A token therefore belongs to the organization, and is found by the user (and
agent) that the caller names. A token for an agent is used for that agent only; one without an agent serves all of them.

The provider is never called during a transaction, because a call may take ten seconds. A refresh is claimed in the row
instead: one caller calls the provider and the others read its result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text
from uuid_utils.compat import uuid7

from shared.errors import NotFound, OutsideFailed
from shared.infra import encryption
from shared.infra.postgres import connection, dumps
from shared.oauth import providers, token_endpoint
from shared.oauth.token_endpoint import TokenRefused, Tokens

log = logging.getLogger(__name__)

MARGIN_SECONDS, MARGIN_SHARE = 30.0, 0.1  # a token counts as expired a little early
REFRESH_SECONDS = 20.0  # longest duration of a refresh: an older claim belongs to a dead process
LOOK_SECONDS = 0.1

IS_EXPIRED = "coalesce(expires_at <= now(), false) AS is_expired"
SAME_OWNER = (
    "organization_id = :organization AND provider_key = :provider AND user_id = :user_id"
    " AND agent_id IS NOT DISTINCT FROM :agent_id"
)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A request for a user's token."""

    user_id: str
    agent_id: str | None = None
    scopes: Sequence[str] = ()
    token_id: UUID | None = None
    force_new: bool = False
    is_default: bool = True


def token_for(provider: RowMapping, wanted: Wanted) -> str | None:
    """Return a valid access token, refreshed if necessary, or None if the user must consent (again).

    Raises NotFound for an unknown `token_id`, OutsideFailed if the provider does not answer.
    """
    while (grant := _find(provider, wanted)) is not None:
        if not grant["is_expired"]:
            return encryption.decrypt(grant["access_token"])
        if grant["refresh_token"] is None:
            return None
        token = _refreshed(provider, grant["id"])
        if token is not None:
            return token
    return None


def _find(provider: RowMapping, wanted: Wanted) -> RowMapping | None:
    """Return the best of the user's tokens: the agent's own before a shared one, then the default, then the newest."""
    query = text(
        f"SELECT *, {IS_EXPIRED} FROM oauth_grant WHERE provider_key = :provider"
        " AND organization_id = :organization AND user_id = :user_id"
        " AND (agent_id IS NULL OR agent_id = :agent_id)"
        " ORDER BY agent_id NULLS LAST, is_default DESC, id DESC"
    )
    key = {
        "provider": provider["id"],
        "organization": provider["organization_id"],
        "user_id": wanted.user_id,
        "agent_id": wanted.agent_id,
    }
    with connection() as conn:
        rows = conn.execute(query, key).mappings().all()
    if wanted.token_id is not None:
        named = next((row for row in rows if row["id"] == wanted.token_id), None)
        if named is None:
            raise _missing(wanted.token_id)
        return named
    return next((row for row in rows if _is_usable(row) and _covers(row, wanted.scopes)), None)


def _is_usable(grant: RowMapping) -> bool:
    return not grant["is_expired"] or grant["refresh_token"] is not None


def _covers(grant: RowMapping, scopes: Sequence[str]) -> bool:
    """Whether the user was asked for all these scopes.

    Granted scopes may be spelled differently or be fewer. A new request for consent would not change that.
    """
    return set(scopes) <= {*grant["requested"], *grant["scopes"]}


def keep(
    conn: Connection,
    owner: Mapping[str, Any],
    tokens: Tokens,
    *,
    requested: Sequence[str],
    is_default: bool,
    is_another: bool,
) -> UUID:
    """Store the tokens that `owner` (organization, provider, user_id, agent_id) consented to. Returns the grant's id.

    Unless `is_another` (they belong to another account), they replace the owner's tokens whose scopes they cover.
    Raises NotFound if the provider has been deleted meanwhile.
    """
    lock = text("SELECT 1 FROM oauth_provider WHERE id = :provider FOR NO KEY UPDATE")
    if conn.execute(lock, {"provider": owner["provider"]}).one_or_none() is None:
        raise NotFound("The OAuth provider has been deleted.")
    scopes = list(requested) if tokens.scopes is None else tokens.scopes
    if not is_another:
        _remove_lesser(conn, owner, {*requested, *scopes})
    if is_default:
        conn.execute(text(f"UPDATE oauth_grant SET is_default = false WHERE {SAME_OWNER}"), owner)
    grant_id = uuid7()
    conn.execute(
        text(
            "INSERT INTO oauth_grant (id, organization_id, provider_key, user_id, agent_id, requested, scopes,"
            " access_token, refresh_token, expires_at, is_default) VALUES (:id, :organization, :provider,"
            " :user_id, :agent_id, CAST(:requested AS json), CAST(:scopes AS json), :access_token,"
            " :refresh_token, now() + CAST(:lifetime AS interval), :is_default)"
        ),
        {
            **owner,
            "id": grant_id,
            "requested": dumps(list(requested)),
            "scopes": dumps(scopes),
            "is_default": is_default,
            **_columns(tokens),
        },
    )
    return grant_id


def _remove_lesser(conn: Connection, owner: Mapping[str, Any], scopes: set[str]) -> None:
    rows = conn.execute(text(f"SELECT id, requested FROM oauth_grant WHERE {SAME_OWNER}"), owner).mappings()
    lesser = [row["id"] for row in rows if set(row["requested"]) <= scopes]
    conn.execute(text("DELETE FROM oauth_grant WHERE id = ANY(CAST(:ids AS uuid[]))"), {"ids": lesser})


def _refreshed(provider: RowMapping, grant_id: UUID) -> str | None:
    """Refresh a token, one caller at a time. Returns the access token, or None if it can no longer be refreshed.

    Raises OutsideFailed if the provider does not answer.
    """
    deadline = time.monotonic() + REFRESH_SECONDS
    while time.monotonic() < deadline:
        grant, is_ours = _claim_refresh(grant_id)
        if grant is None:
            return None
        if is_ours:
            return _refresh(provider, grant)
        if not grant["is_expired"]:
            return encryption.decrypt(grant["access_token"])
        if grant["refresh_token"] is None:
            return None
        time.sleep(LOOK_SECONDS)
    raise OutsideFailed(f"The token of the provider {provider['provider_id']} was not refreshed in time")


def _claim_refresh(grant_id: UUID) -> tuple[RowMapping | None, bool]:
    """Try to claim the refresh of a grant.

    Returns the grant (None if it is deleted) and whether this caller claimed it.
    """
    with connection() as conn:
        claimed = conn.execute(
            text(
                "UPDATE oauth_grant SET refreshing_until = now() + :lease WHERE id = :id"
                " AND expires_at <= now() AND refresh_token IS NOT NULL"
                " AND (refreshing_until IS NULL OR refreshing_until <= now())"
            ),
            {"id": grant_id, "lease": timedelta(seconds=REFRESH_SECONDS)},
        )
        query = text(f"SELECT *, {IS_EXPIRED} FROM oauth_grant WHERE id = :id")
        grant = conn.execute(query, {"id": grant_id}).mappings().one_or_none()
    return grant, claimed.rowcount == 1


def _refresh(provider: RowMapping, grant: RowMapping) -> str | None:
    """Refresh a claimed grant at the provider. Deletes a refresh token that the provider refuses."""
    try:
        tokens = token_endpoint.refresh(
            providers.client_of(provider), encryption.decrypt(grant["refresh_token"])
        )
    except TokenRefused:
        log.info("the provider %s refused to refresh a token", provider["provider_id"])
        _store(grant["id"], ", refresh_token = NULL")
        return None
    except OutsideFailed:
        _store(grant["id"])
        raise
    _store(
        grant["id"],
        ", access_token = :access_token, refresh_token = coalesce(:refresh_token, refresh_token),"
        " expires_at = now() + CAST(:lifetime AS interval), updated_at = now(),"
        " scopes = coalesce(CAST(:scopes AS json), scopes)",
        {**_columns(tokens), "scopes": None if tokens.scopes is None else dumps(tokens.scopes)},
    )
    return tokens.access_token


def _store(grant_id: UUID, changes: str = "", values: Mapping[str, Any] | None = None) -> None:
    """Release the claim of a refresh and store its changes."""
    query = text(f"UPDATE oauth_grant SET refreshing_until = NULL{changes} WHERE id = :id")
    with connection() as conn:
        conn.execute(query, {**(values or {}), "id": grant_id})


def _columns(tokens: Tokens) -> dict[str, Any]:
    """Return the columns of stored tokens, encrypted, with a slightly shortened lifetime."""
    seconds = tokens.lifetime_seconds
    early = 0.0 if seconds is None else min(MARGIN_SECONDS, seconds * MARGIN_SHARE)
    return {
        "access_token": encryption.encrypt(tokens.access_token),
        "refresh_token": None if tokens.refresh_token is None else encryption.encrypt(tokens.refresh_token),
        "lifetime": None if seconds is None else timedelta(seconds=seconds - early),
    }


LISTED = (
    "SELECT oauth_grant.*, oauth_provider.provider_id FROM oauth_grant"
    " JOIN oauth_provider ON oauth_provider.id = oauth_grant.provider_key"
    " WHERE oauth_grant.organization_id = :organization"
    " AND (CAST(:provider_id AS text) IS NULL OR oauth_provider.provider_id = :provider_id)"
    " AND (CAST(:user_id AS text) IS NULL OR oauth_grant.user_id = :user_id)"
)


def list_all(
    conn: Connection, organization_id: UUID, *, provider_id: str | None = None, user_id: str | None = None
) -> list[RowMapping]:
    """Return the organization's tokens, oldest first, optionally of one provider or user."""
    key = {"organization": organization_id, "provider_id": provider_id, "user_id": user_id}
    return list(conn.execute(text(f"{LISTED} ORDER BY oauth_grant.id"), key).mappings())


def get(conn: Connection, organization_id: UUID, token_id: UUID) -> RowMapping:
    """Return one of the organization's tokens. Raises NotFound."""
    key = {"organization": organization_id, "provider_id": None, "user_id": None, "id": token_id}
    row = conn.execute(text(f"{LISTED} AND oauth_grant.id = :id"), key).mappings().one_or_none()
    if row is None:
        raise _missing(token_id)
    return row


def describe(
    conn: Connection, organization_id: UUID, token_id: UUID, changes: Mapping[str, Any]
) -> RowMapping:
    """Set the account label of a token, or make it its owner's default. Raises NotFound."""
    grant = get(conn, organization_id, token_id)
    if changes.get("is_default"):
        owner = {
            "organization": organization_id,
            "provider": grant["provider_key"],
            "user_id": grant["user_id"],
            "agent_id": grant["agent_id"],
        }
        conn.execute(text(f"UPDATE oauth_grant SET is_default = false WHERE {SAME_OWNER}"), owner)
    known = {name: changes[name] for name in ("account_label", "is_default") if name in changes}
    assignments = "".join(f"{name} = :{name}, " for name in known)
    conn.execute(
        text(f"UPDATE oauth_grant SET {assignments}updated_at = now() WHERE id = :id"),
        {**known, "id": token_id},
    )
    return get(conn, organization_id, token_id)


def revoke(organization_id: UUID, grants: Sequence[RowMapping]) -> None:
    """Revoke tokens at their providers, if these have a revocation endpoint, and delete them here.

    A provider that does not answer does not prevent the deletion.
    """
    for provider_id in dict.fromkeys(grant["provider_id"] for grant in grants):
        _revoke_outside(
            organization_id, provider_id, [grant for grant in grants if grant["provider_id"] == provider_id]
        )
    with connection() as conn:
        conn.execute(
            text(
                "DELETE FROM oauth_grant WHERE organization_id = :organization"
                " AND id = ANY(CAST(:ids AS uuid[]))"
            ),
            {"organization": organization_id, "ids": [grant["id"] for grant in grants]},
        )


def _revoke_outside(organization_id: UUID, provider_id: str, grants: Sequence[RowMapping]) -> None:
    with connection() as conn:
        client = providers.client_of(providers.get(conn, organization_id, provider_id))
    try:
        for grant in grants:
            if grant["refresh_token"] is not None:
                token_endpoint.revoke(
                    client, encryption.decrypt(grant["refresh_token"]), hint="refresh_token"
                )
            token_endpoint.revoke(client, encryption.decrypt(grant["access_token"]), hint="access_token")
    except OutsideFailed as error:
        log.warning("tokens were removed here, but not revoked at the provider: %s", error.message)


def _missing(token_id: UUID) -> NotFound:
    return NotFound(f"Token ID {token_id} not found.")
