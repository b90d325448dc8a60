"""Check whether PostgreSQL accepts writes. With a full disk or a read-only server, all reads still succeed.

A small UPDATE proves nothing on a full disk: it fits into an existing page, while every statement that needs a new page
fails. The check lets PostgreSQL write a temporary file, which is on the data disk unless `temp_tablespaces` says
otherwise and is removed at once. It then writes a record to the write-ahead log and commits, which needs that log's
disk, and the standby if commits wait for one. No row and no page is left behind.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sqlalchemy import Connection, text

from shared.errors import Unavailable
from shared.infra.postgres import connection, sqlstate

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0  # minimum time between two checks of a process
DISK_FULL = "53100"
READ_ONLY = text("SELECT current_setting('transaction_read_only') = 'on'")
LITTLE_MEMORY = text("SET LOCAL work_mem = '64kB'")
# 1 MiB. PostgreSQL adds pages of 8 KiB one by one, so less free space than this counts as a full disk.
FILL = text("SELECT count(*) FROM unnest(array_fill(repeat('x', 8192), ARRAY[128])) AS filler")
WAL_RECORD = text("SELECT pg_logical_emit_message(true, 'runyard', '')")


class WriteCheck:
    """The last known state of the database, checked again after CHECK_SECONDS."""

    def __init__(
        self, look: Callable[[], str | None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`look` returns why the database refuses writes, or None if it accepts them."""
        self._look = look or refusal
        self._clock = clock
        self._checked_at: float | None = None
        self._refusal: str | None = None

    def require(self) -> None:
        """Raise Unavailable if the database refuses writes or is unreachable."""
        now = self._clock()
        if self._checked_at is None or now - self._checked_at > CHECK_SECONDS:
            self._checked_at = now  # set first: concurrent requests use the previous result
            self._learn(self._look())
        if self._refusal is not None:
            raise Unavailable(self._refusal)

    def _learn(self, refusal: str | None) -> None:
        if refusal != self._refusal:
            level = logging.INFO if refusal is None else logging.ERROR
            log.log(level, "%s", refusal or "the database accepts writes again")
        self._refusal = refusal


def refusal() -> str | None:
    """Return why the database refuses writes, or None if it accepts them. Raises Unavailable if it is unreachable."""
    try:
        with connection() as conn:
            return _refusal(conn)
    except Unavailable as error:
        if sqlstate(error.__cause__) == DISK_FULL:
            return "the database has no disk space left"
        raise


def _refusal(conn: Connection) -> str | None:
    if conn.execute(READ_ONLY).scalar_one():
        return "the database is read-only"
    conn.execute(LITTLE_MEMORY)
    conn.execute(FILL)
    conn.execute(WAL_RECORD)
    return None
