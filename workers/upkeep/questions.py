"""Questions that wait for people: inserts due webhooks, and lets questions expire.

A graph host executes a cancellation, and may take long to answer. Each expiry therefore has its own greenlet.
"""

from __future__ import annotations

import logging
import time
from uuid import UUID

from gevent.pool import Pool

from shared.inbox import expiry, notices
from shared.infra.postgres import connection
from shared.settings import Settings

log = logging.getLogger(__name__)

BATCHES_A_TICK = 10
EXPIRED_AT_ONCE = 8
RETRY_SECONDS = 10.0  # pause after an expiry that failed


class Questions:
    """The steps of upkeep for questions."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool = Pool(EXPIRED_AT_ONCE)
        self._expiring: set[UUID] = set()
        self._not_before: dict[UUID, float] = {}

    def send_webhooks(self) -> None:
        """Insert deliveries of due announcements and reminders."""
        for _ in range(BATCHES_A_TICK):
            with connection() as conn:
                if notices.send_due(conn) < notices.CLAIMED_AT_ONCE:
                    return

    def begin_expiries(self) -> None:
        """Begin to expire the questions whose time is over, while the pool has free slots."""
        now = time.monotonic()
        self._not_before = {id: at for id, at in self._not_before.items() if at > now}
        with connection() as conn:
            due = expiry.due(conn)
        for question_id in due:
            if not self._pool.free_count():
                return
            if question_id not in self._expiring and question_id not in self._not_before:
                self._expiring.add(question_id)
                self._pool.spawn(self._expire, question_id)

    def join(self) -> None:
        """Wait until the begun expiries are complete or have failed."""
        self._pool.join()

    def _expire(self, question_id: UUID) -> None:
        try:
            expiry.expire(question_id, self._settings)
        except expiry.TEMPORARY as error:
            log.warning("question %s: its expiry is tried again later: %s", question_id, error)
            self._not_before[question_id] = time.monotonic() + RETRY_SECONDS
        except Exception:  # outermost loop over the questions: one that fails must not stop the others
            log.exception("question %s: its expiry failed", question_id)
            self._not_before[question_id] = time.monotonic() + RETRY_SECONDS
        finally:
            self._expiring.discard(question_id)
