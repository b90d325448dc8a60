"""Idempotency keys: a repeated request returns the stored response of the first and is executed once.

The response is stored in the transaction that executes the request. A created row without a stored response is
therefore impossible, even if a process dies. Responses may contain secrets, so they are encrypted.

An advisory lock of that transaction marks the request as in progress. A row could not, because it would remain if the
process died.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import gevent
from sqlalchemy import Connection, text

from shared.errors import InProgress, Invalid
from shared.infra import encryption
from shared.infra.postgres import LARGE, Driver, dumps, loads, query

T = TypeVar("T", str, bytes)
R = TypeVar("R", str, bytes)

HEADER = "Idempotency-Key"
KEPT_HOURS = 24
REMOVED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request with an idempotency key. `id` identifies caller and key, `digest` the content of the request."""

    id: bytes
    organization_id: UUID
    digest: bytes

    @classmethod
    def of(cls, organization_id: UUID, caller: str, key: str, *request: str | bytes) -> KeyedRequest:
        """Build a keyed request. Only the same `caller` gets its response.

        `request` are all parts that must be equal.
        """
        return cls(_hash(str(organization_id), caller, key), organization_id, _hash(*request))


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A stored response."""

    status: int
    headers: Mapping[str, str]
    body: str


def _hash(*parts: str | bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode()
        digest.update(b"%d:" % len(raw) + raw)
    return digest.digest()


# A separate statement, so that the snapshot of FIND contains what the previous holder of the lock has committed.
LOCK = "SELECT pg_try_advisory_xact_lock(%(number)s) AS is_locked"
FIND = """
SELECT digest, answer FROM idempotent_answer
WHERE id = %(id)s AND created_at > now() - make_interval(hours => %(hours)s)
"""


def stored_response(conn: Connection | Driver, request: KeyedRequest) -> StoredResponse | None:
    """Return the stored response of this request, or None if it is the first.

    `conn` must be in a transaction. After None, repetitions of the request are refused until it ends. Raises InProgress
    while another transaction executes the request, Invalid if the key was used for another request.
    """
    number = int.from_bytes(request.id[:8], signed=True)
    locked = query(conn, LOCK, {"number": number}).fetchone()
    if not locked or not locked["is_locked"]:
        raise InProgress()
    row = query(conn, FIND, {"id": request.id, "hours": KEPT_HOURS}).fetchone()
    if row is None:
        return None
    if bytes(row["digest"]) != request.digest:
        raise Invalid("this key was used for another request", loc=("header", HEADER))
    return _unpacked(_beside_greenlets(encryption.decrypt, row["answer"]))


STORE = """
INSERT INTO idempotent_answer (id, organization_id, digest, answer)
VALUES (%(id)s, %(organization_id)s, %(digest)s, %(answer)s)
ON CONFLICT (id) DO UPDATE SET digest = excluded.digest, answer = excluded.answer, created_at = now()
"""


def store(conn: Connection | Driver, request: KeyedRequest, response: StoredResponse) -> None:
    """Store the response, in the transaction that called `stored_response()`."""
    values = {
        "id": request.id,
        "organization_id": request.organization_id,
        "digest": request.digest,
        "answer": _beside_greenlets(encryption.encrypt, _packed(response)),
    }
    query(conn, STORE, values)


def _packed(response: StoredResponse) -> str:
    """Serialize a response: status and headers as JSON in the first line, then the raw body.

    Quoting a large body is slow.
    """
    return dumps([response.status, dict(response.headers)]) + "\n" + response.body


def _unpacked(packed: str) -> StoredResponse:
    head, body = packed.split("\n", 1)
    status, headers = loads(head)
    return StoredResponse(status, headers, body)


def _beside_greenlets(change: Callable[[T], R], value: T) -> R:
    """Encrypt or decrypt a value. A large one is processed in a thread, so that other greenlets run meanwhile."""
    if len(value) <= LARGE:
        return change(value)
    changed: R = gevent.get_hub().threadpool.apply(change, (value,))
    return changed


def remove_old(conn: Connection) -> int:
    """Remove some responses older than KEPT_HOURS. Returns how many."""
    statement = text(
        "DELETE FROM idempotent_answer WHERE id IN (SELECT id FROM idempotent_answer"
        " WHERE created_at < now() - make_interval(hours => :hours) LIMIT :limit)"
    )
    return conn.execute(statement, {"hours": KEPT_HOURS, "limit": REMOVED_AT_ONCE}).rowcount
