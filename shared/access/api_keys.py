"""API keys: creating, checking and revoking them.

A key is `ryd_<id: 8 characters>_<secret: 43 characters, 256 random bits>`. The id finds the row. Of the secret only a
hash is stored (shared/infra/tokens.py). A key is shown once, when it is created.

A key belongs to one organization and has a role. `operator` is above `admin`: it is for the people who run the
installation, may act for every organization, and exists in the default one only.

Every request carries a key, so valid keys are cached for CACHE_SECONDS. A revoked or expired key keeps working that
long.
"""

from __future__ import annotations

import hmac
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from cachetools import TTLCache
from sqlalchemy import Connection, RowMapping, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from shared import audit
from shared.errors import Conflict, Forbidden, Invalid, NotFound
from shared.figures import budgets
from shared.infra.postgres import connection
from shared.infra.tokens import new_token, token_hash
from shared.models import API_KEY
from shared.records import (
    COUNT_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_NULL,
    Record,
    RecordField,
    one_of,
)
from shared.setting_values import ROLES

OPERATOR = "operator"
BOOTSTRAP = "bootstrap"  # id of the key in the settings
PREFIX = "ryd"
USER_PREFIX = "user:"  # prefix of the ids of callers without a key: users of a deployment's own auth
ACCOUNT_PREFIX = "account:"  # prefix of the ids of people who sign in (shared/access/sessions.py)
ID_LENGTH = 8
SECRET_LENGTH = 43
CACHE_SECONDS = 5.0
REFUSAL_SECONDS = 300.0
CACHE_SIZE = 10_000
LAST_USED_GRAIN = timedelta(minutes=1)
ENDED_DAYS = 90  # how long an ended key is still listed

DEFAULT_ORGANIZATION_NAME = "default"
DEFAULT_ORGANIZATION_ID = uuid5(NAMESPACE_URL, "runyard:organization:default")

_ALPHABET = string.ascii_letters + string.digits
_NOBODY = token_hash(new_token())


@dataclass(frozen=True)
class Caller:
    """The authenticated caller: the organization of a key or a session, and its role."""

    organization_id: UUID
    organization_name: str
    key_id: str  # of the key, or the id of the person's account
    role: str
    session: bytes | None = None  # id of the session; None for a key
    name: str | None = None  # of the person who has signed in; `caller_name` also returns those of keys

    def may(self, role: str) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


_callers: TTLCache[bytes, Caller] = TTLCache(CACHE_SIZE, CACHE_SECONDS)
_alive: TTLCache[str, bool] = TTLCache(CACHE_SIZE, CACHE_SECONDS)
_refused: TTLCache[str, bool] = TTLCache(CACHE_SIZE, REFUSAL_SECONDS)


def create(
    conn: Connection,
    organization_id: UUID,
    *,
    name: str,
    role: str = "admin",
    lifetime: timedelta | None = None,
    expires_at: datetime | None = None,
    created_by: str | None = None,
    **limits: Any,
) -> str:
    """Insert a key with these LIMITS and return its text, which cannot be retrieved again. Raises Invalid."""
    _check_role(role, organization_id)
    key_id = "".join(secrets.choice(_ALPHABET) for _ in range(ID_LENGTH))
    secret = new_token()
    conn.execute(
        insert(API_KEY).values(
            id=key_id,
            organization_id=organization_id,
            name=name,
            role=role,
            secret_hash=token_hash(secret),
            expires_at=func.now() + lifetime if lifetime is not None else expires_at,
            created_by=created_by,
            **{name: value or None for name, value in limits.items()},
        )
    )
    budgets.forget()
    return f"{PREFIX}_{key_id}_{secret}"


def create_for(conn: Connection, caller: Caller, *, role: str, **options: Any) -> tuple[str, str]:
    """Insert a key of the caller's organization. Returns its id and text. Raises Forbidden above the caller's role."""
    if role in ROLES and not caller.may(role):
        raise Forbidden(f"A key with the role {caller.role} cannot create a key with the role {role}")
    creator = caller_name(conn, caller)
    key = create(conn, caller.organization_id, role=role, created_by=creator, **options)
    return id_of(key), key


def id_of(key: str) -> str:
    """Return the id in the text of a key."""
    return key.split("_")[1]


def _check_role(role: str, organization_id: UUID) -> None:
    if role not in ROLES:
        raise Invalid(f"role must be one of {', '.join(ROLES)}", loc=("body", "role"), kind="literal_error")
    if role == OPERATOR and organization_id != DEFAULT_ORGANIZATION_ID:
        raise Invalid("operators belong to the default organization", loc=("body", "role"))


LIMITS = ("max_concurrent_runs", *budgets.NAMES_OF_KEY)
RECORD = Record(
    "ApiKey",
    {
        "id": RecordField(TEXT),
        "name": RecordField(TEXT),
        "role": RecordField(one_of(*ROLES)),
        "created_at": RecordField(TIME),
        "created_by": RecordField(TEXT_OR_NULL),
        "expires_at": RecordField(TIME_OR_NULL),
        "last_used_at": RecordField(TIME_OR_NULL),
        "revoked_at": RecordField(TIME_OR_NULL),
        "max_concurrent_runs": RecordField(COUNT_OR_NULL),
        **{name: budgets.FIELDS[name] for name in budgets.NAMES_OF_KEY},
    },
)


_SHOWN = [API_KEY.c[name] for name in RECORD.columns]


def list_of(conn: Connection, organization_id: UUID, *, limit: int, offset: int) -> list[RowMapping]:
    """Return an organization's keys, newest first, including ended ones."""
    query = (
        select(*_SHOWN)
        .where(API_KEY.c.organization_id == organization_id)
        .order_by(API_KEY.c.created_at.desc(), API_KEY.c.id)
        .limit(limit)
        .offset(offset)
    )
    return list(conn.execute(query).mappings())


def get(conn: Connection, organization_id: UUID, key_id: str, *, lock: bool = False) -> RowMapping:
    """Return a key without its secret. `lock` holds its row until the transaction ends. Raises NotFound."""
    query = select(*_SHOWN).where(API_KEY.c.id == key_id, API_KEY.c.organization_id == organization_id)
    row = conn.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    if row is None:
        raise _missing(key_id)
    return row


def name_of(conn: Connection, key_id: str) -> str:
    """Return the name of a key or of a person who signs in, or the id if it has no row."""
    table = "account" if key_id.startswith(ACCOUNT_PREFIX) else "api_key"
    name = conn.execute(text(f"SELECT name FROM {table} WHERE id = :id"), {"id": key_id}).scalar()
    return key_id if name is None else name


def caller_name(conn: Connection, caller: Caller) -> str:
    """Return the name of the caller's key, or of the person who has signed in, for records of what the caller did."""
    return caller.name if caller.name is not None else name_of(conn, caller.key_id)


def change(conn: Connection, caller: Caller, key_id: str, changes: Mapping[str, Any]) -> RowMapping:
    """Set a key's `name`, `role`, `expires_at` (None: never) and LIMITS (0 removes one).

    Other processes accept the old role or expiry for CACHE_SECONDS. Raises NotFound; Forbidden if the old or the new
    role is above the caller's; Conflict if the key is revoked, or if the caller's key would change its own role or
    expiry.
    """
    _check_rights(caller, get(conn, caller.organization_id, key_id, lock=True), changes)
    values = {name: value or None if name in LIMITS else value for name, value in changes.items()}
    is_key = (API_KEY.c.id == key_id) & (API_KEY.c.organization_id == caller.organization_id)
    row = conn.execute(update(API_KEY).where(is_key).values(values).returning(*_SHOWN)).mappings().one()
    if any(values.get(name) for name in budgets.DAILY):
        budgets.begin(conn, (budgets.KEY, key_id))
    budgets.forget()
    forget()
    return row


def _check_rights(caller: Caller, row: RowMapping, changes: Mapping[str, Any]) -> None:
    if row["revoked_at"] is not None:
        raise Conflict(f"API key {row['id']} is revoked. Create another one.")
    if row["id"] == caller.key_id and changes.keys() & {"role", "expires_at"}:
        raise Conflict("A key cannot change its own role or expiry. Make the change with another key.")
    role = changes.get("role", row["role"])
    _check_role(role, caller.organization_id)
    for needed in (row["role"], role):
        if not caller.may(needed):
            raise Forbidden(f"A key with the role {caller.role} cannot change one with the role {needed}")


def revoke(conn: Connection, organization_id: UUID, key_id: str) -> None:
    """Revoke a key for good. Other processes notice within CACHE_SECONDS. Raises NotFound."""
    query = text(
        "UPDATE api_key SET revoked_at = coalesce(revoked_at, now())"
        " WHERE id = :id AND organization_id = :organization_id"
    )
    ended = conn.execute(query, {"id": key_id, "organization_id": organization_id})
    if ended.rowcount != 1:
        raise _missing(key_id)
    forget()


def purge_ended(conn: Connection) -> int:
    """Remove keys that ended over ENDED_DAYS days ago. Returns how many."""
    query = text(
        "DELETE FROM api_key WHERE least(revoked_at, expires_at) < now() - make_interval(days => :days)"
    )
    return conn.execute(query, {"days": ENDED_DAYS}).rowcount


def _missing(key_id: str) -> NotFound:
    return NotFound(f"API key {key_id} not found.")


def forget() -> None:
    """Clear the cache of keys."""
    _callers.clear()
    _alive.clear()
    _refused.clear()


def authenticate(key: str, *, bootstrap: str | None = None) -> Caller | None:
    """Return the caller of a key, or None if the key is unknown, expired or revoked.

    `bootstrap` is the operator's key from the settings, which has no row.
    """
    digest = token_hash(key)
    if bootstrap and hmac.compare_digest(digest, token_hash(bootstrap)):
        return Caller(DEFAULT_ORGANIZATION_ID, DEFAULT_ORGANIZATION_NAME, BOOTSTRAP, OPERATOR)
    caller = _callers.get(digest)
    if caller is None:
        caller = _look_up(key)
        if caller is not None:
            _callers[digest] = caller
    return caller


VALID_KEY = text("""
SELECT k.secret_hash, k.role, o.id, o.name FROM api_key k JOIN organization o ON o.id = k.organization_id
WHERE k.id = :id AND k.revoked_at IS NULL AND o.deleted_at IS NULL
  AND (k.expires_at IS NULL OR k.expires_at > now())
""")


def is_alive(key_id: str) -> bool:
    """Whether a key that was accepted before is still valid. For connections that outlast a request."""
    if key_id == BOOTSTRAP or key_id.startswith(USER_PREFIX):
        return True
    is_known = _alive.get(key_id)
    if is_known is not None:
        return is_known
    with connection() as conn:
        is_known = conn.execute(VALID_KEY, {"id": key_id}).first() is not None
    _alive[key_id] = is_known
    return is_known


def ensure_default_organization(conn: Connection) -> UUID:
    """Insert the organization of the bootstrap key if it is missing. Returns its id."""
    conn.execute(
        text("INSERT INTO organization (id, name) VALUES (:id, :name) ON CONFLICT DO NOTHING"),
        {"id": DEFAULT_ORGANIZATION_ID, "name": DEFAULT_ORGANIZATION_NAME},
    )
    return DEFAULT_ORGANIZATION_ID


NOTE_USE = text("""
UPDATE api_key SET last_used_at = now()
WHERE id = :id AND (last_used_at IS NULL OR last_used_at < now() - CAST(:grain AS interval))
""")


def _look_up(key: str) -> Caller | None:
    key_id, secret = _split(key)
    if key_id is None:
        return None
    with connection() as conn:
        row = conn.execute(VALID_KEY, {"id": key_id}).one_or_none()
        # an unknown id costs the same comparison as a wrong secret
        same = hmac.compare_digest(token_hash(secret), row.secret_hash if row else _NOBODY)
        if row is None or not same:
            return None
        conn.execute(NOTE_USE, {"id": key_id, "grain": LAST_USED_GRAIN})
    return Caller(row.id, row.name, key_id, row.role)


def record_refusal(key: str, *, address: str | None) -> None:
    """Record in the audit log that a key with a known id was refused. Each process does it once in REFUSAL_SECONDS."""
    key_id, _ = _split(key)
    if key_id is None or key_id in _refused:
        return
    _refused[key_id] = True
    with connection() as conn:
        audit.add_refused_key(conn, key_id, address=address)


def _split(key: str) -> tuple[str | None, str]:
    prefix, _, rest = key.partition("_")
    key_id, _, secret = rest.partition("_")
    well_formed = key.isascii() and key_id.isalnum() and len(key_id) == ID_LENGTH
    if prefix != PREFIX or not well_formed or len(secret) != SECRET_LENGTH:
        return None, ""
    return key_id, secret
