"""API keys: making, checking and revoking them.

A key is `ryd_<8 characters: its id>_<43 characters: 256 random bits>`. The id finds the row, of the rest
only a SHA-256 is kept: at that entropy a slow hash would protect nothing. A key is shown once, when made.

Why a cache: each request carries a key. A known one is believed for `CACHE_SECONDS`, which is also how long
a revoked key may go on working.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import string
import time
from dataclasses import dataclass
from datetime import timedelta
from uuid import NAMESPACE_URL, UUID, uuid5

from sqlalchemy import func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from shared.database import transaction
from shared.errors import Invalid, NotFound
from shared.models import ApiKey, Organization

ROLES = ("read", "run", "deploy", "admin")  # each may do what those before it may
PREFIX = "ryd"
ID_LENGTH = 8
SECRET_LENGTH = 43
CACHE_SECONDS = 5.0
CACHE_SIZE = 10_000
LAST_USED_GRAIN = timedelta(minutes=1)

DEFAULT_ORGANIZATION_NAME = "default"
DEFAULT_ORGANIZATION_ID = uuid5(NAMESPACE_URL, "runyard:organization:default")

_ALPHABET = string.ascii_letters + string.digits
_NOBODY = hashlib.sha256(secrets.token_bytes(32)).digest()


@dataclass(frozen=True)
class Caller:
    """Who asks: the organization behind a key, and what the key may do."""

    organization_id: UUID
    organization_name: str
    key_id: str
    role: str

    def may(self, role: str) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


_cache: dict[bytes, tuple[float, Caller]] = {}


def create(
    session: Session,
    organization_id: UUID,
    *,
    name: str,
    role: str = "admin",
    lifetime: timedelta | None = None,
) -> str:
    """Make a key and return its text, which cannot be had again."""
    if role not in ROLES:
        raise Invalid(f"role must be one of {', '.join(ROLES)}", loc=("body", "role"), kind="literal_error")
    key_id = "".join(secrets.choice(_ALPHABET) for _ in range(ID_LENGTH))
    secret = secrets.token_urlsafe(32)
    session.add(
        ApiKey(
            id=key_id,
            organization_id=organization_id,
            name=name,
            role=role,
            secret_hash=_hash(secret),
            expires_at=func.now() + lifetime if lifetime is not None else None,
        )
    )
    session.flush()
    return f"{PREFIX}_{key_id}_{secret}"


def revoke(session: Session, organization_id: UUID, key_id: str) -> None:
    """End a key for good; other processes notice within CACHE_SECONDS."""
    ended = session.execute(
        update(ApiKey)
        .where(ApiKey.id == key_id, ApiKey.organization_id == organization_id, ApiKey.revoked_at.is_(None))
        .values(revoked_at=func.now())
    )
    if ended.rowcount != 1:  # type: ignore[attr-defined]
        raise NotFound(f"API key {key_id} not found")
    forget()


def forget() -> None:
    """Believe no key any longer without asking the database."""
    _cache.clear()


def authenticate(key: str, *, bootstrap: str | None = None) -> Caller | None:
    """The caller behind a key; None when there is none, or the key has expired or been revoked.

    `bootstrap` is the operator's own admin key from the settings: it needs no row.
    """
    digest = _hash(key)
    if bootstrap and hmac.compare_digest(digest, _hash(bootstrap)):
        return Caller(DEFAULT_ORGANIZATION_ID, DEFAULT_ORGANIZATION_NAME, "bootstrap", "admin")
    believed = _cache.get(digest)
    if believed and believed[0] > time.monotonic():
        return believed[1]
    caller = _look_up(key)
    if caller is None:
        _cache.pop(digest, None)
        return None
    if len(_cache) >= CACHE_SIZE:
        _cache.clear()
    _cache[digest] = (time.monotonic() + CACHE_SECONDS, caller)
    return caller


def ensure_default_organization(session: Session) -> UUID:
    """The organization of the bootstrap key; made when missing."""
    session.execute(
        insert(Organization)
        .values(id=DEFAULT_ORGANIZATION_ID, name=DEFAULT_ORGANIZATION_NAME)
        .on_conflict_do_nothing()
    )
    return DEFAULT_ORGANIZATION_ID


def _look_up(key: str) -> Caller | None:
    key_id, secret = _split(key)
    if key_id is None:
        return None
    with transaction() as session:
        row = session.execute(
            select(ApiKey.secret_hash, ApiKey.role, Organization.id, Organization.name)
            .join(Organization, Organization.id == ApiKey.organization_id)
            .where(
                ApiKey.id == key_id,
                ApiKey.revoked_at.is_(None),
                or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > func.now()),
            )
        ).one_or_none()
        # an unknown id costs the same comparison as a wrong secret
        same = hmac.compare_digest(_hash(secret), row.secret_hash if row else _NOBODY)
        if row is None or not same:
            return None
        session.execute(
            update(ApiKey)
            .where(
                ApiKey.id == key_id,
                or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < func.now() - LAST_USED_GRAIN),
            )
            .values(last_used_at=func.now())
        )
    return Caller(row.id, row.name, key_id, row.role)


def _split(key: str) -> tuple[str | None, str]:
    prefix, _, rest = key.partition("_")
    key_id, _, secret = rest.partition("_")
    well_formed = key.isascii() and key_id.isalnum() and len(key_id) == ID_LENGTH
    if prefix != PREFIX or not well_formed or len(secret) != SECRET_LENGTH:
        return None, ""
    return key_id, secret


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
