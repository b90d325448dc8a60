"""Bulk operations: works through the runs of each open operation at the operation's rate.

Each operation has its own greenlet, for a turn. Deployments take turns, and so do the operations of each, because a slow
operation can take days. A replaced leader may still work through an operation: a run is handled once, because
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

from shared.errors import TooMany, Unavailable
from shared.infra.postgres import Row, connection
from shared.runs import bulk
from shared.settings import Settings

log = logging.getLogger(__name__)

OPERATIONS_AT_ONCE = 4
TURN_SECONDS = 10.0  # then the greenlet ends, because others may wait, or another process leads


class BulkOperations:
    """The step of upkeep for bulk operations."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool = Pool(OPERATIONS_AT_ONCE)
        self._handled: set[UUID] = set()
        self._turns: dict[UUID, int] = {}  # number of the last turn, by deployment and by operation
        self._count = 0

    def begin(self) -> None:
        """Begin to work through open operations, while the pool has free slots."""
        with connection() as conn:
            due = bulk.due(conn)
        last = self._turns = {
            id: self._turns.get(id, 0) for row in due for id in (row["deployment_id"], row["id"])
        }
        waiting = [row for row in due if row["id"] not in self._handled]
        while waiting and self._pool.free_count():
            row = min(waiting, key=lambda row: (last[row["deployment_id"]], last[row["id"]]))
            waiting.remove(row)
            self._count += 1
            last[row["deployment_id"]] = last[row["id"]] = self._count
            self._handled.add(row["id"])
            self._pool.spawn(self._work_through, row["id"])

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
                    except (Unavailable, TooMany):
                        raise
                    except Exception:  # outermost loop over the runs: one that fails must not stop the others
                        log.exception("bulk operation %s: run %s", operation_id, row["run_id"])
                        bulk.fail(operation_id, row)
                gevent.sleep(max(0.0, len(rows) / rows[0]["rate"] - (time.monotonic() - begun)))
        except TooMany as error:  # the runs of users come first
            log.debug("bulk operation %s: continues later: %s", operation_id, error)
        except Unavailable as error:
            log.warning("bulk operation %s: continues later: %s", operation_id, error)
        finally:
            self._handled.discard(operation_id)

    def _next(self, operation_id: UUID) -> Sequence[Row]:
        """Return the runs of about one second."""
        with connection() as conn:
            rows = bulk.next_runs(conn, operation_id, limit=bulk.HANDLED_AT_ONCE)
        return rows[: math.ceil(rows[0]["rate"])] if rows else []
