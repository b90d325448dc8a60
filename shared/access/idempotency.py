"""A request that is sent again under the same key is answered as the first time, and carried out once.

The answer is stored in the very transaction that carries the request out: there is never a created row
without it, whenever a process dies. Answers may hold secrets, so they are encrypted.

Why no row says "in progress": a lock of that transaction says it, and whoever dies lets go of it.
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
    """A request under a key: `id` says whose key, `digest` what was asked."""

    id: bytes
    organization_id: UUID
    digest: bytes

    @classmethod
    def of(cls, organization_id: UUID, caller: str, key: str, *request: str | bytes) -> KeyedRequest:
        """`caller` is who chose the key: no other caller gets its answer. `request` is all that counts of it."""
        return cls(_hash(str(organization_id), caller, key), organization_id, _hash(*request))


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """What was answered."""

    status: int
    headers: Mapping[str, str]
    body: str


def _hash(*parts: str | bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode()
        digest.update(b"%d:" % len(raw) + raw)
    return digest.digest()


# In a statement of its own: the next one must see what the lock's previous holder committed.
LOCK = "SELECT pg_try_advisory_xact_lock(%(number)s) AS taken"
FIND = f"""
SELECT digest, answer FROM idempotent_answer
WHERE id = %(id)s AND created_at > now() - interval '{KEPT_HOURS} hours'
"""


def earlier(conn: Connection | Driver, asked: KeyedRequest) -> KeptAnswer | None:
    """What this request was answered before; None: it is the first, and others wait until `conn` commits.

    `conn` must be in a transaction. Raises InProgress while another one carries the request out, and Invalid
    for a key that was used for another request.
    """
    number = int.from_bytes(asked.id[:8], signed=True)
    locked = query(conn, LOCK, {"number": number}).fetchone()
    if not locked or not locked["taken"]:
        raise InProgress()
    row = query(conn, FIND, {"id": asked.id}).fetchone()
    if row is None:
        return None
    if bytes(row["digest"]) != asked.digest:
        raise Invalid("this key was used for another request", loc=("header", HEADER))
    return _unpacked(_aside(encryption.decrypt, row["answer"]))


KEEP = """
INSERT INTO idempotent_answer (id, organization_id, digest, answer)
VALUES (%(id)s, %(organization_id)s, %(digest)s, %(answer)s)
ON CONFLICT (id) DO UPDATE SET digest = excluded.digest, answer = excluded.answer, created_at = now()
"""


def keep(conn: Connection | Driver, asked: KeyedRequest, answer: KeptAnswer) -> None:
    """Store the answer, in the transaction that began with `earlier()`."""
    values = {
        "id": asked.id,
        "organization_id": asked.organization_id,
        "digest": asked.digest,
        "answer": _aside(encryption.encrypt, _packed(answer)),
    }
    query(conn, KEEP, values)


def _packed(answer: KeptAnswer) -> str:
    """Status and headers as JSON in the first line, the body after it as it is: to quote a large one takes long."""
    return dumps([answer.status, dict(answer.headers)]) + "\n" + answer.body


def _unpacked(packed: str) -> KeptAnswer:
    """The answer again; all of it was JSON, in one line, when an earlier version kept it."""
    head, *body = packed.split("\n", 1)
    return KeptAnswer(*loads(head), *body)


def _aside(change: Callable[[T], R], value: T) -> R:
    """The changed value; a large one in a thread of its own, beside which others are served."""
    if len(value) <= LARGE:
        return change(value)
    changed: R = gevent.get_hub().threadpool.apply(change, (value,))
    return changed


def remove_old(conn: Connection) -> int:
    """Forget some of the answers that are too old to be given again; how many."""
    statement = text(
        "DELETE FROM idempotent_answer WHERE id IN (SELECT id FROM idempotent_answer"
        f" WHERE created_at < now() - interval '{KEPT_HOURS} hours' LIMIT :limit)"
    )
    return conn.execute(statement, {"limit": REMOVED_AT_ONCE}).rowcount
