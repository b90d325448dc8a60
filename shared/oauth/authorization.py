"""Requests for a user's consent at a provider, and handling the redirect that answers them.

A request begins as `pending`. The first redirect with its state makes it `exchanging`, once only. It ends as
`completed` with a token, or as `failed`. A state is valid for ten minutes and belongs to one provider of one
organization. Only its hash is stored.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from sqlalchemy import Connection, func, insert, text, update
from uuid_utils.compat import uuid7

from shared.errors import Invalid, OutsideFailed, Refused
from shared.eventlog import events
from shared.eventlog.hub import Stopping, hub
from shared.infra import encryption
from shared.infra.postgres import Row, connection
from shared.infra.tokens import new_token, token_hash
from shared.models import OAUTH_REQUEST
from shared.oauth import providers, token_endpoint
from shared.oauth.token_endpoint import TokenRefused, Tokens
from shared.oauth.tokens import OWNER, TokenRequest, store, token_for
from shared.sql import statement

log = logging.getLogger(__name__)

LIFETIME = timedelta(minutes=10)
KEPT_AFTER_END = timedelta(minutes=10)  # for callers that wait for the result
PURGED_AT_ONCE = 100
QUIET_SECONDS = 5.0  # longest time a waiting request relies on notifications alone

COMPLETED, PENDING, EXPIRED = "completed", "pending", "token_expired"
TIMEOUT, NOT_FOUND, FAILED = "timeout", "not_found", "failed"

_CONSUME_REQUEST = statement("oauth.consume_request")
_RESULT_OF_REQUEST = statement("oauth.result_of_request")


@dataclass(frozen=True, kw_only=True)
class Authentication:
    """A token, or the URL where the user gives consent, or the reason why there is neither."""

    status: str
    token: str | None = field(default=None, repr=False)
    url: str | None = None
    auth_id: UUID | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Redirect:
    """The parameters of a redirect from a provider. `part` is their place in the request, for error locations."""

    state: str = field(repr=False)
    code: str | None = field(default=None, repr=False)
    error: str | None = None
    issuer: str | None = None
    part: str = "body"


def authenticate(
    organization_id: UUID, provider_id: str, request: TokenRequest, *, redirect_uri: str
) -> Authentication:
    """Return a valid token, or create a request for consent.

    Raises NotFound for an unknown provider or `token_id`, OutsideFailed if the provider does not answer a refresh.
    """
    with connection() as conn:
        provider = providers.get_with_secret(conn, organization_id, provider_id)
    if not request.force_new:
        token = token_for(provider, request)
        if token is not None:
            return Authentication(status=COMPLETED, token=token)
        if request.token_id is not None:
            return Authentication(status=EXPIRED)  # a caller that names a token cannot use another one
    with connection() as conn:
        return _request_consent(conn, provider, request, redirect_uri)


def _request_consent(
    conn: Connection, provider: Row, request: TokenRequest, redirect_uri: str
) -> Authentication:
    """Insert a request for consent. Removes some expired ones."""
    client = providers.client_of(provider)
    state = new_token()
    verifier = new_token() if client.pkce_method else None
    auth_id = uuid7()
    purge = text(
        "DELETE FROM oauth_request WHERE id IN (SELECT id FROM oauth_request WHERE expires_at < now()"
        " LIMIT :count FOR UPDATE SKIP LOCKED)"
    )
    conn.execute(purge, {"count": PURGED_AT_ONCE})
    conn.execute(
        insert(OAUTH_REQUEST).values(
            id=auth_id,
            organization_id=provider["organization_id"],
            provider_key=provider["id"],
            state_hash=token_hash(state),
            verifier=None if verifier is None else encryption.encrypt(verifier),
            redirect_uri=redirect_uri,
            scopes=list(request.scopes),
            user_id=request.user_id,
            agent_id=request.agent_id,
            is_default=request.is_default,
            is_another=request.force_new,
            expires_at=func.now() + LIFETIME,
        )
    )
    url = token_endpoint.authorization_url(
        client, redirect_uri=redirect_uri, scopes=request.scopes, state=state, verifier=verifier
    )
    return Authentication(status=PENDING, url=url, auth_id=auth_id)


def complete(organization_id: UUID | None, provider_id: str, redirect: Redirect) -> UUID:
    """Exchange the code of a redirect, store the tokens and wake up waiting callers. Returns the request's id.

    `organization_id` is None if only the state identifies the organization. Raises NotFound for an unknown provider.
    Raises Invalid for a state that is unknown, expired, used or of another provider or organization, for a refused
    consent, and for a code that the provider refuses. Raises OutsideFailed if the provider does not answer.
    """
    if organization_id is not None:
        with connection() as conn:
            providers.get(conn, organization_id, provider_id)
    if not redirect.code and redirect.error is None:
        raise Invalid("this field is required", loc=(redirect.part, "code"), kind="missing")
    request, provider = _consume(organization_id, provider_id, redirect)
    auth_id: UUID = request["id"]
    try:
        tokens = _tokens(provider, request, redirect)
        with connection() as conn:
            grant_id = store(
                conn,
                {name: request[name] for name in OWNER},
                tokens,
                requested=request["scopes"],
                is_default=request["is_default"],
                is_another=request["is_another"],
            )
            _end(conn, auth_id, status=COMPLETED, grant_id=grant_id)
    except (Refused, OutsideFailed) as failure:
        with connection() as conn:
            _end(conn, auth_id, status=FAILED, error=failure.message)
        raise
    finally:
        _notify(auth_id)
    log.info("stored a token of the provider %s", provider_id)
    return auth_id


def _consume(organization_id: UUID | None, provider_id: str, redirect: Redirect) -> tuple[Row, Row]:
    """Mark the request of this state as `exchanging`. Returns the request and its provider. Raises Invalid.

    A second call with the same state fails.
    """
    with connection() as conn:
        request = _CONSUME_REQUEST.row(
            conn,
            state_hash=token_hash(redirect.state),
            provider_id=provider_id,
            organization_id=organization_id,
        )
        if request is None:
            raise Invalid(
                "this state is unknown, has expired or has been used: start the authorization again",
                loc=(redirect.part, "state"),
            )
        return request, providers.get_with_secret(conn, request["organization_id"], provider_id)


def _end(conn: Connection, auth_id: UUID, **values: Any) -> None:
    """Set the result of a request for consent. Its verifier is of no further use."""
    is_request = OAUTH_REQUEST.c.id == auth_id
    expires_at = func.now() + KEPT_AFTER_END
    conn.execute(
        update(OAUTH_REQUEST).where(is_request).values(**values, verifier=None, expires_at=expires_at)
    )


def _tokens(provider: Row, request: Row, redirect: Redirect) -> Tokens:
    """Exchange the code for tokens. Raises Invalid, OutsideFailed."""
    if redirect.issuer is not None and not _is_issuer(provider, redirect.issuer):
        raise Invalid("this answer comes from another provider", loc=(redirect.part, "iss"))
    if redirect.error is not None:
        word = redirect.error if re.fullmatch(r"[a-z_]{1,40}", redirect.error) else "an error"
        raise Invalid(
            f"no consent was given: the provider answered {word}", loc=(redirect.part, "error"), status=400
        )
    verifier = request["verifier"]
    try:
        return token_endpoint.exchange(
            providers.client_of(provider),
            code=redirect.code or "",
            redirect_uri=request["redirect_uri"],
            verifier=None if verifier is None else encryption.decrypt(verifier),
        )
    except TokenRefused as refusal:
        raise Invalid(refusal.message, loc=(redirect.part, "code")) from refusal


def _is_issuer(provider: Row, issuer: str) -> bool:
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
            result = _result(organization_id, auth_id)
            remaining = deadline - time.monotonic()
            if result is not None:
                return result
            if remaining <= 0:
                return Authentication(status=TIMEOUT)
            try:
                reader.take(min(remaining, QUIET_SECONDS))
            except Stopping:
                return Authentication(status=TIMEOUT)


def _result(organization_id: UUID, auth_id: UUID) -> Authentication | None:
    """Return the result of a request, or None while it has not ended."""
    with connection() as conn:
        row = _RESULT_OF_REQUEST.row(conn, id=auth_id, organization_id=organization_id)
    if row is None or (row["status"] == COMPLETED and row["access_token"] is None):
        return Authentication(status=NOT_FOUND)
    if row["status"] == COMPLETED:
        return Authentication(status=COMPLETED, token=encryption.decrypt(row["access_token"]))
    if row["status"] == FAILED:
        return Authentication(status=FAILED, error=row["error"])
    return None
