"""Fires crons that act for users. Each is authorized in its own greenlet, because user code may take long to answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from uuid import UUID

from gevent.pool import Pool

from shared import crons, user_crons
from shared.crons import Fired
from shared.infra.postgres import connection
from shared.user_crons import NoAnswer

log = logging.getLogger(__name__)

ASKED_AT_ONCE = 8
RETRY_SECONDS = 10.0  # pause after an unanswered authorization call
CANDIDATES = 500  # due crons to read: those that wait for a retry must not block the others


class UserCrons:
    """The crons that this process is authorizing and firing. `on_fired` is called for each created run."""

    def __init__(self, on_fired: Callable[[Fired], None], *, max_pending: int) -> None:
        self._on_fired, self._max_pending = on_fired, max_pending
        self._pool = Pool(ASKED_AT_ONCE)
        self._asking: set[UUID] = set()
        self._not_before: dict[UUID, float] = {}

    def begin(self) -> None:
        """Start to authorize and fire the crons that are due, while the pool has free slots."""
        now = time.monotonic()
        self._not_before = {id: at for id, at in self._not_before.items() if at > now}
        with connection() as conn:
            due = crons.due(conn, guarded=True, limit=CANDIDATES)
        for cron_id in due:
            if not self._pool.free_count():
                return
            if cron_id not in self._asking and cron_id not in self._not_before:
                self._asking.add(cron_id)
                self._pool.spawn(self._fire, cron_id)

    def join(self) -> None:
        """Wait until all started crons are done."""
        self._pool.join()

    def _fire(self, cron_id: UUID) -> None:
        try:
            fired = user_crons.fire(cron_id, max_pending=self._max_pending)
            if fired is not None:
                self._on_fired(fired)
        except NoAnswer as error:
            log.warning("cron %s: tried again later: %s", cron_id, error.__cause__)
            self._not_before[cron_id] = time.monotonic() + RETRY_SECONDS
        except Exception:  # outermost loop of this greenlet
            log.exception("cron %s: could not be fired", cron_id)
            self._not_before[cron_id] = time.monotonic() + RETRY_SECONDS
        finally:
            self._asking.discard(cron_id)
