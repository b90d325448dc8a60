"""Fires crons that act for users: each is asked about in a greenlet of its own, for an answer may take its time."""

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
RETRY_SECONDS = 10.0  # after a question that was not answered
CANDIDATES = 500  # looked at: those that wait to be tried again must not be in the others' way


class UserCrons:
    """What this process asks about; `on_fired` is called for each run that was created."""

    def __init__(self, on_fired: Callable[[Fired], None], *, max_pending: int) -> None:
        self._on_fired, self._max_pending = on_fired, max_pending
        self._pool = Pool(ASKED_AT_ONCE)
        self._asking: set[UUID] = set()
        self._not_before: dict[UUID, float] = {}

    def begin(self) -> None:
        """Begin to ask about the crons that are due, as far as there is room."""
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
        """Wait until everything is answered."""
        self._pool.join()

    def _fire(self, cron_id: UUID) -> None:
        try:
            fired = user_crons.fire(cron_id, max_pending=self._max_pending)
            if fired is not None:
                self._on_fired(fired)
        except NoAnswer as error:
            log.warning("cron %s: tried again later: %s", cron_id, error.__cause__)
            self._not_before[cron_id] = time.monotonic() + RETRY_SECONDS
        except Exception:  # the outermost of this greenlet
            log.exception("cron %s: could not be fired", cron_id)
            self._not_before[cron_id] = time.monotonic() + RETRY_SECONDS
        finally:
            self._asking.discard(cron_id)
