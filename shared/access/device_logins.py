"""Sign-in of the command line (RFC 8628): it gets a code, a signed-in person confirms the code, it gets an API key.

A request for a key is pending, then approved or denied, and ends after LIFETIME_SECONDS. Its device code has 256 random
bits and stays with the command line. The person compares and confirms the short user code. Only hashes of both are
stored. The first poll after the approval deletes the row and creates the key in the same transaction, so that a device
code yields one key.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from shared import audit
from shared.access import api_keys
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID, OPERATOR, Caller
from shared.errors import NotFound, TooMany, Unavailable
from shared.infra.tokens import new_token, token_hash
from shared.records import one_line
from shared.sql import statement

LIFETIME_SECONDS = 600
INTERVAL_SECONDS = 5
SLOWED_BY_SECONDS = 5
LONGEST_INTERVAL_SECONDS = 60
CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"  # no vowels, no digits: 20 letters that people do not confuse
CODE_LENGTH, GROUP = 8, 4
UNNAMED = "an unnamed machine"
MAX_PENDING, MAX_PENDING_OF_ADDRESS = 5_000, 20

PENDING, SLOW_DOWN, DENIED, EXPIRED, COMPLETED = "pending", "slow_down", "denied", "expired", "completed"
STATUSES = (PENDING, SLOW_DOWN, DENIED, EXPIRED, COMPLETED)

_COUNT = statement("sign_in.count_device_logins")
_CREATE = statement("sign_in.create_device_login")
_PENDING = statement("sign_in.pending_device_login")
_ANSWER = statement("sign_in.answer_device_login")
_POLL = statement("sign_in.poll_device_login")
_NOTE_POLL = statement("sign_in.note_poll")
_END = statement("sign_in.end_device_login")
_PURGE = statement("sign_in.purge_device_logins")


@dataclass(frozen=True, kw_only=True)
class DeviceLogin:
    """A new request of a command line."""

    device_code: str = field(repr=False)
    user_code: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Poll:
    """The state of a request, and the key if the request is completed."""

    status: str
    interval_seconds: int = INTERVAL_SECONDS
    key: str | None = field(default=None, repr=False)
    role: str | None = None
    name: str | None = None  # of the person
    organization: str | None = None


def begin(conn: Connection, *, device: str, address: str) -> DeviceLogin:
    """Insert a request. Raises TooMany and Unavailable if an address, or all of them, have too many pending ones."""
    purge_expired(conn)
    (pending,) = _COUNT.rows(conn, address=address)
    if pending["of_address"] >= MAX_PENDING_OF_ADDRESS:
        raise TooMany(
            "Too many logins from this address wait to be confirmed", retry_after_seconds=LIFETIME_SECONDS
        )
    if pending["total"] >= MAX_PENDING:
        raise Unavailable("too many logins wait to be confirmed: try again later")
    login = DeviceLogin(device_code=new_token(), user_code=_new_user_code())
    _CREATE.count(
        conn,
        id=token_hash(login.device_code),
        user_code_hash=_code_hash(login.user_code),
        device=one_line(device) or UNNAMED,
        address=address,
        interval_seconds=INTERVAL_SECONDS,
        seconds=LIFETIME_SECONDS,
    )
    return login


def pending(conn: Connection, user_code: str) -> dict[str, Any]:
    """Return device, address and expiry of the request with this code. Raises NotFound if none is pending."""
    row = _PENDING.row(conn, user_code_hash=_code_hash(user_code))
    if row is None:
        raise _unknown()
    return row


def answer(conn: Connection, caller: Caller, user_code: str, *, is_approved: bool) -> None:
    """Approve a request as the signed-in caller, or deny it. Raises NotFound if none is pending.

    The key of an operator belongs to the default organization, also while they act for another one.
    """
    organization_id = DEFAULT_ORGANIZATION_ID if caller.may(OPERATOR) else caller.organization_id
    changed = _ANSWER.count(
        conn,
        user_code_hash=_code_hash(user_code),
        account_id=caller.key_id if is_approved else None,
        organization_id=organization_id if is_approved else None,
        role=caller.role if is_approved else None,
        is_approved=is_approved,
    )
    if changed != 1:
        raise _unknown()


def _unknown() -> NotFound:
    return NotFound(
        "No login with this code waits to be confirmed. Check the code, or start `runyard login` again."
    )


def poll(conn: Connection, device_code: str, *, key_days: int, address: str) -> Poll:
    """Return the state of a request. Creates the API key of an approved request, and ends it.

    A poll that comes too early lengthens the interval.
    """
    id = token_hash(device_code)
    row = _POLL.row(conn, id=id)
    if row is None:
        return Poll(status=EXPIRED)
    if row["is_too_soon"]:
        interval = min(row["interval_seconds"] + SLOWED_BY_SECONDS, LONGEST_INTERVAL_SECONDS)
        _NOTE_POLL.count(conn, id=id, interval_seconds=interval)
        return Poll(status=SLOW_DOWN, interval_seconds=interval)
    if row["is_denied"]:
        _END.count(conn, id=id)
        return Poll(status=DENIED)
    if row["account_id"] is None:
        _NOTE_POLL.count(conn, id=id, interval_seconds=row["interval_seconds"])
        return Poll(status=PENDING, interval_seconds=row["interval_seconds"])
    _END.count(conn, id=id)
    if row["organization_name"] is None:  # it was deleted meanwhile
        return Poll(status=DENIED)
    name = f"runyard login on {row['device']}"
    key = api_keys.create(
        conn,
        row["organization_id"],
        name=name,
        role=row["role"],
        lifetime=timedelta(days=key_days),
        created_by=row["name"],
    )
    audit.add(
        conn,
        row["organization_id"],
        audit.Action.KEY_CREATED,
        name,
        by=audit.Actor(row["account_id"], row["name"], address),
        of_key=api_keys.id_of(key),
        role=row["role"],
    )
    return Poll(
        status=COMPLETED,
        key=key,
        role=row["role"],
        name=row["name"],
        organization=row["organization_name"],
    )


def purge_expired(conn: Connection) -> None:
    """Remove expired requests."""
    _PURGE.count(conn)


def _new_user_code() -> str:
    letters = "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))
    return f"{letters[:GROUP]}-{letters[GROUP:]}"


def _code_hash(user_code: str) -> bytes:
    """Return the hash of a code, which people may type with small letters and other separators."""
    return token_hash("".join(letter for letter in user_code.upper() if letter in CODE_LETTERS))
