"""Bulk operations: works through the runs of each open operation at the operation's rate.

Each operation has its own greenlet. A replaced leader may still work through an operation: a run is handled once, because
the transaction that handles it locks its record.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from uuid import UUID

import gevent
from gevent.pool import Pool

from shared.errors import Unavailable
from shared.infra.postgres import Row, connection
from shared.runs import bulk
from shared.settings import Settings

log = logging.getLogger(__name__)

OPERATIONS_AT_ONCE = 4
TURN_SECONDS = (
    30.0  # then the greenlet of an operation ends, because others may wait, or another process leads
)


class BulkOperations:
    """The step of upkeep for bulk operations."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool = Pool(OPERATIONS_AT_ONCE)
        self._handled: set[UUID] = set()

    def begin(self) -> None:
        """Begin to work through open operations, while the pool has free slots."""
        with connection() as conn:
            due = [id for id in bulk.due(conn) if id not in self._handled]
        for operation_id in due[: self._pool.free_count()]:
            self._handled.add(operation_id)
            self._pool.spawn(self._work_through, operation_id)

    def join(self) -> None:
        """Wait until the begun turns of operations have ended."""
        self._pool.join()

    def _work_through(self, operation_id: UUID) -> None:
        until = time.monotonic() + TURN_SECONDS
        try:
            while time.monotonic() < until and (rows := self._next(operation_id)):
                begun = time.monotonic()
                for row in rows:
                    try:
                        bulk.handle(operation_id, row, self._settings)
                    except Unavailable:
                        raise
                    except Exception:  # outermost loop over the runs: one that fails must not stop the others
                        log.exception("bulk operation %s: run %s", operation_id, row["run_id"])
                        bulk.fail(operation_id, row)
                gevent.sleep(max(0.0, len(rows) / rows[0]["rate"] - (time.monotonic() - begun)))
        except Unavailable as error:
            log.warning("bulk operation %s: continues later: %s", operation_id, error)
        finally:
            self._handled.discard(operation_id)

    def _next(self, operation_id: UUID) -> Sequence[Row]:
        """Return the runs of about one second."""
        with connection() as conn:
            rows = bulk.next_runs(conn, operation_id, limit=bulk.HANDLED_AT_ONCE)
        return rows[: math.ceil(rows[0]["rate"])] if rows else []
