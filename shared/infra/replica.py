"""Reads that may lag: they go to a read replica if one has kept up with the primary.

Such an answer may lack the writes of the last MAX_LAG_SECONDS. Decisions, and reads by which a caller sees its own
write, therefore use `postgres.connection()`.

The lag is measured without comparing clocks: a replica's own estimate grows while nothing is written, and its machine's
clock may be wrong. This process records the primary's log position over time, and asks the replica how far it replayed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, text

from shared.errors import NotFound, Unavailable
from shared.infra import postgres
from shared.infra.loops import forever

log = logging.getLogger(__name__)

MAX_LAG_SECONDS = 5.0
LOOK_SECONDS = 0.5
WRITTEN = text("SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')")
# NULL: the server is not a replica.
REPLAYED = text("SELECT pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')")

P = ParamSpec("P")
R = TypeVar("R")


class Replica:
    """A read replica, and the time until which its lag is known to be acceptable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._written: deque[tuple[float, int]] = deque(maxlen=round(MAX_LAG_SECONDS / LOOK_SECONDS) + 1)
        self._fresh_until = 0.0
        self._thread: threading.Thread | None = None
        self._is_used = False  # as last logged
        self._is_closed = False

    @property
    def is_fresh(self) -> bool:
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_looking, name="replica", daemon=True)
            self._thread.start()
        return time.monotonic() < self._fresh_until

    def _keep_looking(self) -> None:
        forever(self.look, LOOK_SECONDS, what="looking at the read replica", until=lambda: self._is_closed)

    def look(self) -> None:
        """Compare the replica's replayed position with the primary's recorded positions. Raises Unavailable."""
        try:
            read_at = time.monotonic()
            with postgres.connection() as conn:
                self._written.append((read_at, int(conn.execute(WRITTEN).scalar_one())))
            replayed = self.ask(lambda conn: conn.execute(REPLAYED).scalar_one())
            if replayed is not None:
                reached = [at for at, written in self._written if written <= replayed]
                self._fresh_until = max(reached, default=0.0) + MAX_LAG_SECONDS
        finally:
            self._log_change()

    def _log_change(self) -> None:
        is_used = time.monotonic() < self._fresh_until
        if is_used != self._is_used:
            self._is_used = is_used
            state = (
                "has caught up: reads go to it"
                if is_used
                else "is unavailable or lags too far: reads go to the primary"
            )
            log.log(logging.INFO if is_used else logging.WARNING, "the read replica %s", state)

    def ask(self, query: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `query(conn, …)` on the replica and return its result. Raises Unavailable."""
        with postgres.translated(), self._engine.connect() as conn:
            return query(conn, *args, **kwargs)

    def suspend(self) -> None:
        """Stop using the replica until the next look."""
        self._fresh_until = 0.0

    def close(self) -> None:
        """Stop looking and close the connections."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.join()
        self._engine.dispose()


_replica: Replica | None = None


def connect(
    url: str | None, *, pool_size: int = 8, statement_timeout_seconds: int = 30, pooler: str = "none"
) -> None:
    """Use the replica at this URL for this process's reads. None: there is no replica."""
    global _replica
    _replica = None
    if url is not None:
        engine = postgres.make_engine(
            url,
            pool_size=pool_size,
            isolation_level="AUTOCOMMIT",
            statement_timeout_seconds=statement_timeout_seconds,
            application="runyard reads",
            pooler=pooler,
        )
        _replica = Replica(engine)


def replica() -> Replica | None:
    """Return this process's replica, or None."""
    return _replica


def read(query: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `query(conn, …)` on the replica if it is fresh, else on the primary. The result may lag.

    The query must only read. It is repeated on the primary if the replica fails, or raises NotFound because an object
    has not arrived there yet.
    """
    if _replica is not None and _replica.is_fresh:
        try:
            return _replica.ask(query, *args, **kwargs)
        except NotFound:
            log.debug("the read replica does not have the record, reading from the primary")
        except Unavailable as error:
            log.warning("the read replica failed, reading from the primary: %s", error)
            _replica.suspend()
    with postgres.connection() as conn:
        return query(conn, *args, **kwargs)
