"""The database's time, for what one process stamps and another compares: the wall clocks of machines differ.

A statement compares stored times with `now()` of its own. This is for times that leave by another way: in tokens, in
headers of webhooks, in windows of time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from shared.errors import Unavailable
from shared.infra.postgres import driver, query

KNOWN_SECONDS = 60.0  # then it is asked again: the database's clock may have been set

_known: tuple[float, float] | None = None  # its time, and the monotonic time at which it was asked


def now() -> datetime:
    """The time; raises Unavailable where the database has never said it."""
    return datetime.fromtimestamp(seconds(), UTC)


def seconds() -> float:
    """The time in seconds since 1970; raises Unavailable as `now` does."""
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
