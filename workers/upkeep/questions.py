"""Questions that wait for people: inserts due webhooks, and lets questions expire.

A graph host executes a cancellation, and may take long to answer. The expiries of each deployment therefore have their
own greenlet, so thousands of due questions of one deployment do not delay those of others.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from uuid import UUID

from gevent.pool import Pool

from shared.errors import Unavailable
from shared.inbox import expiry, notices
from shared.infra.postgres import connection
from shared.settings import Settings

log = logging.getLogger(__name__)

BATCHES_A_TICK = 10
DEPLOYMENTS_AT_ONCE = 8
TURN_SECONDS = 30.0  # then the greenlet of a deployment ends, because others may wait
RETRY_SECONDS = 10.0  # pause after an attempt


class Questions:
    """The steps of upkeep for questions."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool = Pool(DEPLOYMENTS_AT_ONCE)
        self._expiring: set[UUID] = set()  # deployments
        self._not_before: dict[UUID, float] = {}  # by question

    def send_webhooks(self) -> None:
        """Insert deliveries of due announcements and reminders."""
        for _ in range(BATCHES_A_TICK):
            with connection() as conn:
                if notices.send_due(conn) < notices.CLAIMED_AT_ONCE:
                    return

    def begin_expiries(self) -> None:
        """Begin to expire the due questions of deployments, in random order, while the pool has free slots."""
        now = time.monotonic()
        self._not_before = {id: at for id, at in self._not_before.items() if at > now}
        with connection() as conn:
            due = [id for id in expiry.due_deployments(conn) if id not in self._expiring]
        random.shuffle(due)
        for deployment_id in due[: self._pool.free_count()]:
            self._expiring.add(deployment_id)
            self._pool.spawn(self._expire_all, deployment_id)

    def join(self) -> None:
        """Wait until the begun expiries are complete or have failed."""
        self._pool.join()

    def _expire_all(self, deployment_id: UUID) -> None:
        until = time.monotonic() + TURN_SECONDS
        try:
            while due := self._due(deployment_id):
                for question_id in due:
                    if time.monotonic() > until:
                        return
                    self._expire(question_id)
        except Unavailable as error:
            log.warning("due questions could not be read: %s", error)
        finally:
            self._expiring.discard(deployment_id)

    def _due(self, deployment_id: UUID) -> Sequence[UUID]:
        with connection() as conn:
            return expiry.due(conn, deployment_id, paused=list(self._not_before))

    def _expire(self, question_id: UUID) -> None:
        try:
            expiry.expire(question_id, self._settings)
        except expiry.TEMPORARY as error:
            log.warning("question %s: its expiry is tried again later: %s", question_id, error)
        except Exception:  # outermost loop over the questions: one that fails must not stop the others
            log.exception("question %s: its expiry failed", question_id)
        self._not_before[question_id] = time.monotonic() + RETRY_SECONDS
