"""Re-encrypts stored values with the operator's first key, so that the other keys can be removed.

It works in short transactions while the service runs and skips values that are done. After an interruption it can be
run again. A value that another process writes meanwhile stays as written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Column, Row, Table, select, tuple_, update

from shared.infra import encryption
from shared.infra.encryption import Undecryptable
from shared.infra.postgres import connection
from shared.models import METADATA

CHUNK = 200

# Every column that shared/infra/encryption.py writes. A test checks this list against all columns of bytes.
ENCRYPTED = (
    "secret.value",
    "oauth_provider.client_secret",
    "oauth_grant.access_token",
    "oauth_grant.refresh_token",
    "oauth_request.verifier",
    "idempotent_answer.answer",
    "session.id_token",
    "cron.auth_user",
)

ROTATED, CURRENT, UNREADABLE, CHANGED = "rotated", "current", "unreadable", "changed"


def rotate(report: Callable[[str, Counter[str]], None] = lambda column, counts: None) -> Counter[str]:
    """Re-encrypt all values with the first key. Returns counts of rotated, current, unreadable and changed values.

    `report` is called after each column. An unreadable value is one that none of the keys can decrypt. A changed value
    was written by another process meanwhile.
    """
    totals: Counter[str] = Counter()
    for name in ENCRYPTED:
        counts = _rotate_column(_column(name))
        report(name, counts)
        totals += counts
    return totals


def check(most: int) -> Counter[str]:
    """Count what `rotate` would return for the first `most` values of each column. Changes nothing."""
    totals: Counter[str] = Counter()
    for name in ENCRYPTED:
        for stored in _first_values(_column(name), most):
            totals[_state_of(stored)] += 1
    return totals


def _first_values(column: Column[Any], most: int) -> list[bytes]:
    with connection() as conn:
        query = select(column).where(column.is_not(None)).order_by(*_keys(column)).limit(most)
        return [bytes(value) for value in conn.execute(query).scalars()]


def _state_of(stored: bytes) -> str:
    if encryption.is_current(stored):
        return CURRENT
    try:
        encryption.decrypt(stored)
    except Undecryptable:
        return UNREADABLE
    return ROTATED


def _column(name: str) -> Column[Any]:
    table, _, column = name.partition(".")
    return METADATA.tables[table].c[column]


def _rotate_column(column: Column[Any]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for rows in _chunks(column):
        with connection() as conn:
            for key, stored in rows:
                counts[_rotate_value(conn, column, key, stored)] += 1
    return counts


def _rotate_value(conn: Any, column: Column[Any], key: tuple[Any, ...], stored: bytes) -> str:
    if encryption.is_current(stored):
        return CURRENT
    try:
        renewed = encryption.rotate(stored)
    except Undecryptable:
        return UNREADABLE
    statement = update(column.table).where(column == stored, *_is_row(column, key)).values({column: renewed})
    return ROTATED if conn.execute(statement).rowcount else CHANGED


def _is_row(column: Column[Any], key: tuple[Any, ...]) -> list[Any]:
    return [part == value for part, value in zip(_keys(column), key, strict=True)]


def _keys(column: Column[Any]) -> list[Column[Any]]:
    assert isinstance(column.table, Table)
    return list(column.table.primary_key.columns)


def _chunks(column: Column[Any]) -> Iterator[list[tuple[tuple[Any, ...], bytes]]]:
    """Yield all non-null values of a column as `(primary key, value)` in chunks, in the order of the keys."""
    keys = _keys(column)
    last: tuple[Any, ...] | None = None
    while True:
        query = select(*keys, column).where(column.is_not(None)).order_by(*keys).limit(CHUNK)
        if last is not None:
            query = query.where(tuple_(*keys) > last)
        with connection() as conn:
            rows: list[Row[Any]] = list(conn.execute(query).all())
        if not rows:
            return
        chunk = [(tuple(row[:-1]), bytes(row[-1])) for row in rows]
        yield chunk
        last = chunk[-1][0]
