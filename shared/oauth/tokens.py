"""Tokens that users consented to: finding, refreshing and revoking them.

An organization's keys act for its users. A token therefore belongs to the organization, and is found by the user (and
agent) that the caller names. A token for an agent is used for that agent only; one without an agent serves all of them.

The provider is never called during a transaction, because a call may take ten seconds. A refresh is claimed in the row
instead: one caller calls the provider and the others read its result.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, delete, func, insert, text, update
from uuid_utils.compat import uuid7

from shared import audit
from shared.audit import Action, Actor
from shared.errors import NotFound, OutsideFailed
from shared.infra import encryption
from shared.infra.arrays import uuids
from shared.infra.postgres import Row, connection
from shared.models import OAUTH_GRANT
from shared.oauth import providers, token_endpoint
from shared.oauth.token_endpoint import TokenRefused, Tokens
from shared.records import BOOLEAN, ID, TEXT, TEXT_OR_NULL, TIME, TIME_OR_NULL, Record, RecordField, listed
from shared.sql import statement

log = logging.getLogger(__name__)

MARGIN_SECONDS, MARGIN_SHARE = 30.0, 0.1  # a token counts as expired a little early
REFRESH_SECONDS = 20.0  # longest duration of a refresh: an older claim belongs to a dead process
LOOK_SECONDS = 0.1

RECORD = Record(
    "Token",
    {
        "id": RecordField(ID),
        "provider_id": RecordField(TEXT),
        "user_id": RecordField(TEXT),
        "agent_id": RecordField(TEXT_OR_NULL),
        "provider_account_label": RecordField(TEXT_OR_NULL, ("account_label",)),
        "scopes": RecordField(listed(TEXT)),
        "expires_at": RecordField(TIME_OR_NULL),
        "is_default": RecordField(BOOLEAN),
        "created_at": RecordField(TIME),
        "updated_at": RecordField(TIME),
    },
    table="g",
    expressions={"provider_id": "p.provider_id"},
)
OWNER = ("organization_id", "provider_key", "user_id", "agent_id")  # columns that identify whose token it is

_TOKENS_OF_USER = statement("oauth.tokens_of_user")
_TOKEN = statement("oauth.token")
_TOKEN_RECORD = statement("oauth.token_record", columns=RECORD.select)
_TOKEN_RECORDS = statement("oauth.token_records", columns=RECORD.select)
_CLAIM_REFRESH = statement("oauth.claim_refresh")
_SCOPES_OF_OWNER = statement("oauth.scopes_of_owner")
_UNSET_DEFAULT = statement("oauth.unset_default")
_SECRETS_OF_TOKENS = statement("oauth.secrets_of_tokens")


@dataclass(frozen=True, kw_only=True)
class TokenRequest:
    """A request for a user's token."""

    user_id: str
    agent_id: str | None = None
    scopes: Sequence[str] = ()
    token_id: UUID | None = None
    force_new: bool = False
    is_default: bool = True


def token_for(provider: Row, request: TokenRequest) -> str | None:
    """Return a valid access token, refreshed if necessary, or None if the user must consent (again).

    Raises NotFound for an unknown `token_id`, OutsideFailed if the provider does not answer.
    """
    while (grant := _find(provider, request)) is not None:
        if not grant["is_expired"]:
            return encryption.decrypt(grant["access_token"])
        if grant["refresh_token"] is None:
            return None
        token = _refreshed(provider, grant["id"])
        if token is not None:
            return token
    return None


def _find(provider: Row, request: TokenRequest) -> Row | None:
    """Return the requested token, else the best one of the user with the scopes."""
    with connection() as conn:
        rows = _TOKENS_OF_USER.rows(
            conn,
            provider_key=provider["id"],
            organization_id=provider["organization_id"],
            user_id=request.user_id,
            agent_id=request.agent_id,
        )
    if request.token_id is not None:
        named = next((row for row in rows if row["id"] == request.token_id), None)
        if named is None:
            raise _missing(request.token_id)
        return named
    return next(
        (
            row
            for row in rows
            if (not row["is_expired"] or row["refresh_token"] is not None) and _covers(row, request.scopes)
        ),
        None,
    )


def _covers(grant: Row, scopes: Sequence[str]) -> bool:
    """Whether the user was asked for all these scopes.

    Granted scopes may be spelled differently or be fewer. A new request for consent would not change that.
    """
    return set(scopes) <= {*grant["requested"], *grant["scopes"]}


def store(
    conn: Connection,
    owner: Mapping[str, Any],
    tokens: Tokens,
    *,
    requested: Sequence[str],
    is_default: bool,
    is_another: bool,
) -> UUID:
    """Store the tokens that `owner` (organization_id, provider_key, user_id, agent_id) consented to. Returns the grant's id.

    Unless `is_another` (they belong to another account), they replace the owner's tokens whose scopes they cover.
    Raises NotFound if the provider has been deleted meanwhile.
    """
    lock = text("SELECT provider_id FROM oauth_provider WHERE id = :id FOR NO KEY UPDATE")
    provider_id = conn.execute(lock, {"id": owner["provider_key"]}).scalar_one_or_none()
    if provider_id is None:
        raise NotFound("The OAuth provider has been deleted.")
    scopes = list(requested) if tokens.scopes is None else tokens.scopes
    if not is_another:
        covered = {*requested, *scopes}
        rows = _SCOPES_OF_OWNER.rows(conn, **owner)
        lesser = [row["id"] for row in rows if set(row["requested"]) <= covered]
        conn.execute(delete(OAUTH_GRANT).where(OAUTH_GRANT.c.id.in_(lesser)))
    if is_default:
        _UNSET_DEFAULT.count(conn, **owner)
    grant_id = uuid7()
    values = {
        **owner,
        **_columns(tokens),
        "id": grant_id,
        "requested": list(requested),
        "scopes": scopes,
        "is_default": is_default,
    }
    conn.execute(insert(OAUTH_GRANT).values(values))
    user = Actor(owner["user_id"], owner["user_id"])
    organization_id = owner["organization_id"]
    audit.add(conn, organization_id, Action.PROVIDER_AUTHORIZED, provider_id, by=user, scopes=scopes)
    return grant_id


def _refreshed(provider: Row, grant_id: UUID) -> str | None:
    """Refresh a token, one caller at a time. Returns the access token, or None if it can no longer be refreshed.

    Raises OutsideFailed if the provider does not answer.
    """
    deadline = time.monotonic() + REFRESH_SECONDS
    while time.monotonic() < deadline:
        grant, is_claimed = _claim_refresh(grant_id)
        if grant is None:
            return None
        if is_claimed:
            return _refresh(provider, grant)
        if not grant["is_expired"]:
            return encryption.decrypt(grant["access_token"])
        if grant["refresh_token"] is None:
            return None
        time.sleep(LOOK_SECONDS)
    raise OutsideFailed(f"The token of the provider {provider['provider_id']} was not refreshed in time")


def _claim_refresh(grant_id: UUID) -> tuple[Row | None, bool]:
    """Try to claim the refresh of a grant.

    Returns the grant (None if it is deleted) and whether this caller claimed it.
    """
    with connection() as conn:
        claimed = _CLAIM_REFRESH.count(conn, id=grant_id, lease_seconds=REFRESH_SECONDS)
        return _TOKEN.row(conn, id=grant_id), claimed == 1


def _refresh(provider: Row, grant: Row) -> str | None:
    """Refresh a claimed grant at the provider. Deletes a refresh token that the provider refuses."""
    try:
        tokens = token_endpoint.refresh(
            providers.client_of(provider), encryption.decrypt(grant["refresh_token"])
        )
    except TokenRefused:
        log.info("the provider %s refused to refresh a token", provider["provider_id"])
        _end_refresh(grant["id"], refresh_token=None)
        return None
    except OutsideFailed:
        _end_refresh(grant["id"])
        raise
    columns = _columns(tokens)
    if tokens.refresh_token is None:
        del columns["refresh_token"]
    if tokens.scopes is not None:
        columns["scopes"] = tokens.scopes
    _end_refresh(grant["id"], **columns, updated_at=func.now())
    return tokens.access_token


def _end_refresh(grant_id: UUID, **changes: Any) -> None:
    """Release the claim of a refresh and store the changed columns."""
    with connection() as conn:
        is_grant = OAUTH_GRANT.c.id == grant_id
        conn.execute(update(OAUTH_GRANT).where(is_grant).values(refreshing_until=None, **changes))


def _columns(tokens: Tokens) -> dict[str, Any]:
    """Return the columns of stored tokens, encrypted, with a slightly shortened lifetime."""
    seconds = tokens.lifetime_seconds
    early = 0.0 if seconds is None else min(MARGIN_SECONDS, seconds * MARGIN_SHARE)
    return {
        "access_token": encryption.encrypt(tokens.access_token),
        "refresh_token": None if tokens.refresh_token is None else encryption.encrypt(tokens.refresh_token),
        "expires_at": None if seconds is None else func.now() + timedelta(seconds=seconds - early),
    }


def list_all(
    conn: Connection, organization_id: UUID, *, provider_id: str | None = None, user_id: str | None = None
) -> list[dict[str, Any]]:
    """Return the records of the organization's tokens, oldest first, optionally of one provider or user."""
    return _TOKEN_RECORDS.rows(
        conn, organization_id=organization_id, provider_id=provider_id, user_id=user_id
    )


def get(conn: Connection, organization_id: UUID, token_id: UUID) -> Row:
    """Return the record of one of the organization's tokens. Raises NotFound."""
    row = _TOKEN_RECORD.row(conn, organization_id=organization_id, id=token_id)
    if row is None:
        raise _missing(token_id)
    return row


def change(conn: Connection, organization_id: UUID, token_id: UUID, changes: Mapping[str, Any]) -> Row:
    """Set the account label of a token, or make it its owner's default. Raises NotFound."""
    get(conn, organization_id, token_id)
    grant = _TOKEN.row(conn, id=token_id)
    if changes.get("is_default") and grant is not None:
        _UNSET_DEFAULT.count(conn, **{name: grant[name] for name in OWNER})
    is_grant = OAUTH_GRANT.c.id == token_id
    conn.execute(update(OAUTH_GRANT).where(is_grant).values(**changes, updated_at=func.now()))
    return get(conn, organization_id, token_id)


def revoke(organization_id: UUID, token_ids: Sequence[UUID], *, by: Actor) -> None:
    """Revoke tokens at their providers, if these have a revocation endpoint, and delete them here.

    A provider that does not answer does not prevent the deletion.
    """
    with connection() as conn:
        grants = _SECRETS_OF_TOKENS.rows(conn, organization_id=organization_id, ids=uuids(token_ids))
    for provider_id in dict.fromkeys(grant["provider_id"] for grant in grants):
        _revoke_outside(
            organization_id, provider_id, [grant for grant in grants if grant["provider_id"] == provider_id]
        )
    with connection() as conn:
        for provider_id, count in Counter(grant["provider_id"] for grant in grants).items():
            audit.add(conn, organization_id, Action.PROVIDER_TOKENS_REVOKED, provider_id, by=by, tokens=count)
        is_revoked = OAUTH_GRANT.c.id.in_(token_ids) & (OAUTH_GRANT.c.organization_id == organization_id)
        conn.execute(delete(OAUTH_GRANT).where(is_revoked))


def _revoke_outside(organization_id: UUID, provider_id: str, grants: Sequence[Row]) -> None:
    with connection() as conn:
        client = providers.client_of(providers.get_with_secret(conn, organization_id, provider_id))
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
