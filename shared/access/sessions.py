"""Sessions of people who sign in with OpenID Connect, and the role that a person's claims give.

A session's token has 256 random bits and is in the browser's cookie; the row holds its SHA-256. A session ends after
`session_seconds`, after `session_idle_seconds` without use, at sign-out, and when the provider in the settings changes.
Its role is that of the sign-in: a change at the provider takes effect at the next one.

The cookie alone opens nothing. Each request also carries the session's CSRF token, an HMAC of the session's token, as
a header that only a page of the console's origin can read and send (web/gate/session_cookie.py).

Live sessions are cached like keys, for CACHE_SECONDS. A session that ended in another process works that long.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cachetools import TTLCache
from sqlalchemy import Connection

from shared import audit
from shared.access import organizations
from shared.access.api_keys import (
    ACCOUNT_PREFIX,
    CACHE_SECONDS,
    CACHE_SIZE,
    DEFAULT_ORGANIZATION_ID,
    DEFAULT_ORGANIZATION_NAME,
    ENDED_DAYS,
    OPERATOR,
    PREFIX,
    ROLES,
    Caller,
)
from shared.audit import Action, Actor
from shared.errors import Forbidden, Unauthenticated
from shared.infra import encryption
from shared.infra.postgres import Row, connection
from shared.infra.tokens import new_token, token_hash
from shared.oauth.openid import Identity, values_at
from shared.settings import Settings
from shared.sql import statement

# Both begin like a key of the service, so that all filters for keys also drop them.
TOKEN_PREFIX, CSRF_PREFIX = f"{PREFIX}_session_", f"{PREFIX}_csrf_"
USE_GRAIN_SECONDS = 30.0
KEPT_SECONDS = 86_400.0  # time for which an ended session is kept
ENDED = "Your session has ended. Sign in again."
EXPIRED = "Your session has reached its time limit. Sign in again."
IDLE = "Your session has ended because it was not used. Sign in again."
NO_ROLE = (
    "{name} may not use this service: the provider's claim {claim} holds no value that has a role here. An"
    " administrator of the service can change that."
)
NO_ORGANIZATION = "{name} may not use this service: the provider names no organization of it."

_STORE_ACCOUNT = statement("sign_in.store_account")
_CREATE_SESSION = statement("sign_in.create_session")
_SESSION = statement("sign_in.session")
_NOTE_USE = statement("sign_in.note_use")
_END_SESSION = statement("sign_in.end_session")
_PURGE_SESSIONS = statement("sign_in.purge_sessions")
_PURGE_ACCOUNTS = statement("sign_in.purge_accounts")


@dataclass(frozen=True, slots=True)
class Session:
    """A live session."""

    caller: Caller
    expires_at: datetime


_sessions: TTLCache[bytes, Session] = TTLCache(CACHE_SIZE, CACHE_SECONDS)


def forget() -> None:
    """Clear the cache of sessions."""
    _sessions.clear()


def start(conn: Connection, identity: Identity, settings: Settings, *, address: str) -> str:
    """Insert a session for a person and return its token. Raises Forbidden without a role or an organization."""
    role = role_of(identity.claims, settings)
    if role is None:
        raise Forbidden(NO_ROLE.format(name=identity.name, claim=settings.oidc_role_claim))
    owner = _owner(identity, role, settings)
    account_id = _account_id(identity)
    _STORE_ACCOUNT.count(
        conn, id=account_id, issuer=identity.issuer, subject=identity.subject, name=identity.name
    )
    token = f"{TOKEN_PREFIX}{new_token()}"
    _CREATE_SESSION.count(
        conn,
        id=token_hash(token),
        account_id=account_id,
        organization_id=owner.id,
        role=role,
        id_token=encryption.encrypt(identity.id_token),
        seconds=settings.session_seconds,
    )
    actor = Actor(account_id, identity.name, address)
    audit.add(conn, owner.id, Action.USER_SIGNED_IN, identity.name, by=actor, role=role)
    return token


def role_of(claims: Mapping[str, Any], settings: Settings) -> str | None:
    """Return the highest role that the person's claims give, else the default role, else None."""
    roles = dict(settings.oidc_roles)
    claimed = [roles[value] for value in values_at(claims, settings.oidc_role_claim) if value in roles]
    return max(claimed, key=ROLES.index, default=settings.oidc_default_role)


def _owner(identity: Identity, role: str, settings: Settings) -> organizations.Organization:
    """Return the organization of a person. Operators belong to the default one. Raises Forbidden."""
    if settings.oidc_organization_claim is None or role == OPERATOR:
        return organizations.Organization(DEFAULT_ORGANIZATION_ID, DEFAULT_ORGANIZATION_NAME)
    for name in values_at(identity.claims, settings.oidc_organization_claim):
        organization = organizations.find(name)
        if organization is not None:
            return organization
    raise Forbidden(NO_ORGANIZATION.format(name=identity.name))


def _account_id(identity: Identity) -> str:
    text = f"{len(identity.issuer)}:{identity.issuer}{identity.subject}"
    return ACCOUNT_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:32]


def find(token: str, settings: Settings) -> Session | None:
    """Return the session of a token, or None if the token is unknown. Raises Unauthenticated if the session has ended."""
    key = token_hash(token)
    session = _sessions.get(key)
    if session is None:
        session = _look_up(key, settings)
        if session is not None:
            _sessions[key] = session
    return session


def _look_up(key: bytes, settings: Settings) -> Session | None:
    with connection() as conn:
        row = _row(conn, key, settings)
        if row is None:
            return None
        if row["is_expired"] or row["is_idle"]:
            raise Unauthenticated(EXPIRED if row["is_expired"] else IDLE)
        _NOTE_USE.count(conn, id=key, grain_seconds=USE_GRAIN_SECONDS)
    caller = Caller(
        row["organization_id"],
        row["organization_name"],
        row["account_id"],
        row["role"],
        session=key,
        name=row["name"],
    )
    return Session(caller, row["expires_at"])


def _row(conn: Connection, key: bytes, settings: Settings) -> Row | None:
    return _SESSION.row(conn, id=key, issuer=settings.oidc_issuer, idle_seconds=settings.session_idle_seconds)


def is_alive(key: bytes, settings: Settings) -> bool:
    """Return whether a session that was accepted before still lives. For responses that outlast a request."""
    if key in _sessions:
        return True
    with connection() as conn:
        row = _row(conn, key, settings)
    return row is not None and not row["is_expired"] and not row["is_idle"]


def end(token: str, *, address: str) -> str | None:
    """End a session. Returns its ID token, or None if there is no such session. Others notice within CACHE_SECONDS."""
    key = token_hash(token)
    with connection() as conn:
        row = _END_SESSION.row(conn, id=key)
        if row is not None:
            actor = Actor(row["account_id"], row["name"], address)
            audit.add(conn, row["organization_id"], Action.USER_SIGNED_OUT, row["name"], by=actor)
    _sessions.pop(key, None)
    if row is None or row["id_token"] is None:
        return None
    return encryption.decrypt(row["id_token"])


def purge_ended(conn: Connection, settings: Settings) -> None:
    """Remove sessions that ended a while ago, and people who have not signed in for ENDED_DAYS days."""
    _PURGE_SESSIONS.count(conn, idle_seconds=settings.session_idle_seconds, kept_seconds=KEPT_SECONDS)
    _PURGE_ACCOUNTS.count(conn, days=ENDED_DAYS)


def csrf_token(token: str) -> str:
    """Return the CSRF token of a session."""
    code = hmac.digest(token.encode(), b"csrf", "sha256")
    return CSRF_PREFIX + urlsafe_b64encode(code).decode().rstrip("=")


def is_csrf_token(sent: str, token: str) -> bool:
    """Return whether a CSRF token is that of the session with this token."""
    return hmac.compare_digest(sent.encode(), csrf_token(token).encode())
