"""The schedule of beat: it wakes up upkeep every SWEEP_SECONDS. Without it, upkeep runs on its own timer.

The process `beat` runs it (`workers/beat.py`), or a builder that was started with `--with-beat`.
"""

from __future__ import annotations

import atexit
import logging
import time
from functools import partial
from typing import Any

import gevent
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler, SchedulingError, Service

from shared.infra import broker
from shared.infra.health_socket import HealthSocket
from shared.infra.loops import forever
from shared.settings import Settings

log = logging.getLogger(__name__)

SWEEP_SECONDS = 10.0
SILENT_SECONDS = 6 * SWEEP_SECONDS


class TimedScheduler(Scheduler):
    """Celery's scheduler without a schedule file: after a restart the schedule begins anew.

    `ticked_at` is the time of the last loop iteration. Celery logs a traceback for each task that cannot be sent; this
    class logs one line when an outage of Redis begins and one when it ends.
    """

    ticked_at: float | None = None
    is_cut_off = False

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        TimedScheduler.ticked_at = time.monotonic()
        return super().tick(*args, **kwargs)

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        try:
            self.apply_async(entry, producer=producer, advance=False)
        except SchedulingError as error:
            self._report_outage(error)
        else:
            self._report_return()

    def _ensure_connected(self) -> Any:
        """Wait for Redis. Celery's own method would log a line for each attempt."""
        return self.connection.ensure_connection(
            lambda error, interval: self._report_outage(error), self.app.conf.broker_connection_max_retries
        )

    def _report_outage(self, error: Exception) -> None:
        if not self.is_cut_off:
            self.is_cut_off = True
            log.warning("Redis is unreachable, upkeep gets no notifications until it returns: %s", error)

    def _report_return(self) -> None:
        if self.is_cut_off:
            self.is_cut_off = False
            log.info("Redis is back")


def configure(app: Celery) -> None:
    """Give the app the schedule."""
    app.conf.update(
        beat_schedule={
            "sweep": {"task": broker.SWEEP, "schedule": SWEEP_SECONDS, "options": {"queue": broker.BUILDS}}
        },
        beat_scheduler=TimedScheduler,
    )


def why_not_ready() -> str | None:
    """Return why the schedule sends no notifications, or None if it does."""
    if TimedScheduler.ticked_at is None:
        return "it has not reached Redis yet"
    silent = time.monotonic() - TimedScheduler.ticked_at
    return f"it has notified nobody for {silent:.0f} s" if silent > SILENT_SECONDS else None


def open_health_socket(settings: Settings) -> None:
    """Answer `runyard health beat` until the process exits.

    In the process `beat` the socket has its own thread, because the loop blocks as long as Redis is unreachable.
    """
    health = HealthSocket(settings.runtime_dir, "beat", why_not_ready)
    health.open()
    atexit.register(health.close)


def start_within(app: Celery, settings: Settings) -> None:
    """Run the schedule in a greenlet of this worker. A failed loop starts again."""
    configure(app)
    open_health_socket(settings)
    gevent.spawn(forever, partial(_run, app), SWEEP_SECONDS, what="the schedule of beat")


def _run(app: Celery) -> None:
    Service(app, scheduler_cls=TimedScheduler, remote_control=False).start()
