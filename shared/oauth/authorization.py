"""Requests for a user's consent at a provider, and handling the redirect that answers them.

A request begins as `pending`. The first redirect with its state makes it `exchanging`, once only. It ends as
`completed` with a token, or as `failed`. A state is valid for ten minutes and belongs to one provider of one
organization. Only its hash is stored.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text
from uuid_utils.compat import uuid7

from shared.errors import Invalid, OutsideFailed, Refused
from shared.eventlog import events
from shared.eventlog.hub import Stopping, hub
from shared.infra import encryption
from shared.infra.postgres import connection, dumps
from shared.oauth import providers, token_endpoint
from shared.oauth.token_endpoint import TokenRefused, Tokens
from shared.oauth.tokens import Wanted, keep, token_for

log = logging.getLogger(__name__)

STATE_BYTES = 32
VERIFIER_BYTES = 64  # 86 characters; RFC 7636 requires 43 to 128
LIFETIME = timedelta(minutes=10)
KEPT_AFTER_END = timedelta(minutes=10)  # for callers that wait for the result
PURGED_AT_ONCE = 100
QUIET_SECONDS = 5.0  # longest time a waiting request relies on notifications alone

COMPLETED, PENDING, EXPIRED = "completed", "pending", "token_expired"
TIMEOUT, NOT_FOUND, FAILED = "timeout", "not_found", "failed"


@dataclass(frozen=True, kw_only=True)
class Authentication:
    """A token, or the URL where the user gives consent, or the reason why there is neither."""

    status: str
    token: str | None = field(default=None, repr=False)
    url: str | None = None
    auth_id: UUID | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Return:
    """The parameters of a redirect from a provider. `part` is their place in the request, for error locations."""

    state: str = field(repr=False)
    code: str | None = field(default=None, repr=False)
    error: str | None = None
    issuer: str | None = None
    part: str = "body"


def authenticate(
    organization_id: UUID, provider_id: str, wanted: Wanted, *, redirect_uri: str
) -> Authentication:
    """Return a valid token, or create a request for consent.

    Raises NotFound for an unknown provider or `token_id`, OutsideFailed if the provider does not answer a refresh.
    """
    with connection() as conn:
        provider = providers.get(conn, organization_id, provider_id)
    if not wanted.force_new:
        token = token_for(provider, wanted)
        if token is not None:
            return Authentication(status=COMPLETED, token=token)
        if wanted.token_id is not None:
            return Authentication(status=EXPIRED)  # a caller that names a token cannot use another one
    with connection() as conn:
        return _ask(conn, provider, wanted, redirect_uri)


def _ask(conn: Connection, provider: RowMapping, wanted: Wanted, redirect_uri: str) -> Authentication:
    """Insert a request for consent."""
    client = providers.client_of(provider)
    state = secrets.token_urlsafe(STATE_BYTES)
    verifier = secrets.token_urlsafe(VERIFIER_BYTES) if client.pkce_method else None
    auth_id = uuid7()
    _purge(conn)
    conn.execute(
        text(
            "INSERT INTO oauth_request (id, organization_id, provider_key, state_hash, verifier, redirect_uri,"
            " scopes, user_id, agent_id, is_default, is_another, expires_at) VALUES (:id, :organization,"
            " :provider, :state_hash, :verifier, :redirect_uri, CAST(:scopes AS json), :user_id, :agent_id,"
            " :is_default, :is_another, now() + :lifetime)"
        ),
        {
            "id": auth_id,
            "organization": provider["organization_id"],
            "provider": provider["id"],
            "state_hash": _hash(state),
            "verifier": None if verifier is None else encryption.encrypt(verifier),
            "redirect_uri": redirect_uri,
            "scopes": dumps(list(wanted.scopes)),
            "user_id": wanted.user_id,
            "agent_id": wanted.agent_id,
            "is_default": wanted.is_default,
            "is_another": wanted.force_new,
            "lifetime": LIFETIME,
        },
    )
    url = token_endpoint.authorization_url(
        client, redirect_uri=redirect_uri, scopes=wanted.scopes, state=state, verifier=verifier
    )
    return Authentication(status=PENDING, url=url, auth_id=auth_id)


def _purge(conn: Connection) -> None:
    conn.execute(
        text(
            "DELETE FROM oauth_request WHERE id IN (SELECT id FROM oauth_request WHERE expires_at < now()"
            " LIMIT :count FOR UPDATE SKIP LOCKED)"
        ),
        {"count": PURGED_AT_ONCE},
    )


def take_in(organization_id: UUID | None, provider_id: str, sent: Return) -> UUID:
    """Exchange the code of a redirect, store the tokens and wake up waiting callers. Returns the request's id.

    `organization_id` is None if only the state identifies the organization. Raises NotFound for an unknown provider.
    Raises Invalid for a state that is unknown, expired, used or of another provider or organization, for a refused
    consent, and for a code that the provider refuses. Raises OutsideFailed if the provider does not answer.
    """
    if organization_id is not None:
        with connection() as conn:
            providers.get(conn, organization_id, provider_id)
    if not sent.code and sent.error is None:
        raise Invalid("this field is required", loc=(sent.part, "code"), kind="missing")
    asked, provider = _consume(organization_id, provider_id, sent)
    try:
        tokens = _tokens(provider, asked, sent)
        with connection() as conn:
            _complete(conn, asked, tokens)
    except (Refused, OutsideFailed) as failure:
        _fail(asked["id"], failure.message)
        raise
    finally:
        _notify(asked["id"])
    log.info("stored a token of the provider %s", provider_id)
    return asked["id"]


def _consume(organization_id: UUID | None, provider_id: str, sent: Return) -> tuple[RowMapping, RowMapping]:
    """Mark the request of this state as `exchanging`. Returns the request and its provider. Raises Invalid.

    A second call with the same state fails.
    """
    consume = text(
        "UPDATE oauth_request SET status = 'exchanging' FROM oauth_provider"
        " WHERE oauth_request.state_hash = :state_hash AND oauth_request.status = 'pending'"
        " AND oauth_request.expires_at > now() AND oauth_provider.id = oauth_request.provider_key"
        " AND oauth_provider.provider_id = :provider_id"
        " AND oauth_request.organization_id = coalesce(:organization, oauth_request.organization_id)"
        " RETURNING oauth_request.*"
    )
    key = {"state_hash": _hash(sent.state), "provider_id": provider_id, "organization": organization_id}
    with connection() as conn:
        asked = conn.execute(consume, key).mappings().one_or_none()
        if asked is None:
            raise Invalid(
                "this state is unknown, has expired or has been used: start the authorization again",
                loc=(sent.part, "state"),
            )
        query = text("SELECT * FROM oauth_provider WHERE id = :id")
        return asked, conn.execute(query, {"id": asked["provider_key"]}).mappings().one()


def _tokens(provider: RowMapping, asked: RowMapping, sent: Return) -> Tokens:
    """Exchange the code for tokens. Raises Invalid, OutsideFailed."""
    if sent.issuer is not None and not _is_issuer(provider, sent.issuer):
        raise Invalid("this answer comes from another provider", loc=(sent.part, "iss"))
    if sent.error is not None:
        word = sent.error if re.fullmatch(r"[a-z_]{1,40}", sent.error) else "an error"
        raise Invalid(
            f"no consent was given: the provider answered {word}", loc=(sent.part, "error"), status=400
        )
    verifier = asked["verifier"]
    try:
        return token_endpoint.exchange(
            providers.client_of(provider),
            code=sent.code or "",
            redirect_uri=asked["redirect_uri"],
            verifier=None if verifier is None else encryption.decrypt(verifier),
        )
    except TokenRefused as refusal:
        raise Invalid(refusal.message, loc=(sent.part, "code")) from refusal


def _is_issuer(provider: RowMapping, issuer: str) -> bool:
    """Whether the issuer named in the redirect (RFC 9207) is the provider of the request.

    For a manually created provider only URLs are known. The issuer must then have the host of one of them.
    """
    if provider["issuer"] is not None:
        return issuer == provider["issuer"]
    hosts = {urlsplit(provider[name]).netloc for name in ("auth_url", "token_url")}
    try:
        return urlsplit(issuer).netloc in hosts
    except ValueError:
        return False


def _complete(conn: Connection, asked: RowMapping, tokens: Tokens) -> None:
    """Store the tokens and complete the request."""
    owner = {
        "organization": asked["organization_id"],
        "provider": asked["provider_key"],
        "user_id": asked["user_id"],
        "agent_id": asked["agent_id"],
    }
    grant_id = keep(
        conn,
        owner,
        tokens,
        requested=asked["scopes"],
        is_default=asked["is_default"],
        is_another=asked["is_another"],
    )
    conn.execute(
        text(
            "UPDATE oauth_request SET status = 'completed', grant_id = :grant_id, verifier = NULL,"
            " expires_at = now() + :kept WHERE id = :id"
        ),
        {"grant_id": grant_id, "id": asked["id"], "kept": KEPT_AFTER_END},
    )


def _fail(auth_id: UUID, reason: str) -> None:
    with connection() as conn:
        conn.execute(
            text(
                "UPDATE oauth_request SET status = 'failed', error = :reason, verifier = NULL,"
                " expires_at = now() + :kept WHERE id = :id"
            ),
            {"reason": reason, "id": auth_id, "kept": KEPT_AFTER_END},
        )


def _notify(auth_id: UUID) -> None:
    """Wake up callers that wait for the request. The row holds the result."""
    events.close(
        auth_id,
        attempt=1,
        owner="consents",
        floor=0,
        payloads=[events.payload(events.END, b"null")],
        retention_seconds=int(KEPT_AFTER_END.total_seconds()),
    )


def wait(organization_id: UUID, auth_id: UUID, timeout_seconds: float) -> Authentication:
    """Wait for the end of a request. Returns its result, or the status `timeout` after `timeout_seconds`."""
    deadline = time.monotonic() + timeout_seconds
    with hub().reader(auth_id) as reader:
        while True:
            found = _outcome(organization_id, auth_id)
            left = deadline - time.monotonic()
            if found is not None:
                return found
            if left <= 0:
                return Authentication(status=TIMEOUT)
            try:
                reader.take(min(left, QUIET_SECONDS))
            except Stopping:
                return Authentication(status=TIMEOUT)


def _outcome(organization_id: UUID, auth_id: UUID) -> Authentication | None:
    """Return the result of a request, or None while it has not ended."""
    query = text(
        "SELECT oauth_request.status, oauth_request.error, oauth_grant.access_token FROM oauth_request"
        " LEFT JOIN oauth_grant ON oauth_grant.id = oauth_request.grant_id WHERE oauth_request.id = :id"
        " AND oauth_request.organization_id = :organization AND oauth_request.expires_at > now()"
    )
    with connection() as conn:
        row = conn.execute(query, {"id": auth_id, "organization": organization_id}).mappings().one_or_none()
    if row is None or (row["status"] == COMPLETED and row["access_token"] is None):
        return Authentication(status=NOT_FOUND)
    if row["status"] == COMPLETED:
        return Authentication(status=COMPLETED, token=encryption.decrypt(row["access_token"]))
    if row["status"] == FAILED:
        return Authentication(status=FAILED, error=row["error"])
    return None


def _hash(state: str) -> bytes:
    return hashlib.sha256(state.encode()).digest()
