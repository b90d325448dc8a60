"""The database's time, for times that one process writes and another compares. Clocks of machines differ.

A statement compares stored times with its own `now()`. This module is for times outside of statements: in tokens, in
webhook headers, and in time windows.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from shared.errors import Unavailable
from shared.infra.postgres import driver, query

KNOWN_SECONDS = 60.0  # then it is read again: the database's clock may have been set

_known: tuple[float, float] | None = None  # the database's time, and the monotonic time of the query


def now() -> datetime:
    """Return the database's time. Raises Unavailable if the database has never answered."""
    return datetime.fromtimestamp(seconds(), UTC)


def seconds() -> float:
    """Return the database's time in seconds since 1970. Raises Unavailable as `now` does."""
    global _known
    asked_at = time.monotonic()
    if _known is None or asked_at - _known[1] > KNOWN_SECONDS:
        try:
            _known = _ask(), asked_at
        except Unavailable:
            if _known is None:
                raise
    there, asked_at = _known
    return there + time.monotonic() - asked_at


def _ask() -> float:
    with driver() as conn:
        [row] = query(conn, "SELECT extract(epoch FROM clock_timestamp())::float8 AS seconds", {}).fetchall()
    return row["seconds"]
