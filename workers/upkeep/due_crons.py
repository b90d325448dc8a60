"""Fires due crons, in each round of upkeep.

A cron that acts for a user is authorized in its own greenlet, because user code may take long to answer.
"""

from __future__ import annotations

import logging
import time
from uuid import UUID

from gevent.pool import Pool

from shared.crons import firing
from shared.errors import Unanswered, Unavailable
from shared.infra.postgres import connection
from shared.runs.create import Created
from shared.settings import Settings

log = logging.getLogger(__name__)

AUTHORIZED_AT_ONCE = 8
RETRY_SECONDS = 10.0  # pause after an unanswered authorization call
CANDIDATES = 500  # due crons to read: those that wait for a retry must not block the others


class DueCrons:
    """Fires due crons."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool = Pool(AUTHORIZED_AT_ONCE)
        self._asking: set[UUID] = set()
        self._not_before: dict[UUID, float] = {}

    def fire(self) -> None:
        """Fire the due crons without authorization, and begin to authorize the others."""
        self.fire_unguarded()
        self.begin_guarded()

    def fire_unguarded(self) -> list[Created]:
        """Fire the due crons without authorization. Returns the created runs."""
        with connection() as conn:
            due = firing.due(conn, guarded=False)
        return [run for cron_id in due if (run := self._fire(cron_id, guarded=False)) is not None]

    def begin_guarded(self) -> None:
        """Begin to authorize and fire the due crons that act for users, while the pool has free slots."""
        now = time.monotonic()
        self._not_before = {id: at for id, at in self._not_before.items() if at > now}
        with connection() as conn:
            due = firing.due(conn, guarded=True, limit=CANDIDATES)
        for cron_id in due:
            if not self._pool.free_count():
                return
            if cron_id not in self._asking and cron_id not in self._not_before:
                self._asking.add(cron_id)
                self._pool.spawn(self._fire_guarded, cron_id)

    def join(self) -> None:
        """Wait until all crons that are being authorized have fired or not."""
        self._pool.join()

    def _fire(self, cron_id: UUID, *, guarded: bool) -> Created | None:
        """Fire a cron. Skips its run if that raises an unexpected error. Raises Unanswered, Unavailable."""
        try:
            return firing.fire(cron_id, self._settings, guarded=guarded)
        except (Unanswered, Unavailable):
            raise
        except Exception:  # outermost loop over the crons: one that fails must not stop the others
            log.exception("cron %s: skipped this run", cron_id)
            firing.skip(cron_id, guarded=guarded)
            return None

    def _fire_guarded(self, cron_id: UUID) -> None:
        try:
            self._fire(cron_id, guarded=True)
        except (Unanswered, Unavailable) as error:
            log.warning("cron %s: tried again later: %s", cron_id, error)
            self._not_before[cron_id] = time.monotonic() + RETRY_SECONDS
        finally:
            self._asking.discard(cron_id)
