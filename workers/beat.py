"""The Celery app of beat: a schedule of task names, without code that could do the work.

Run it as `python -m workers.beat`. It only wakes up upkeep every SWEEP_SECONDS. Without beat, upkeep runs on its own
timer and nothing else changes.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import time
from typing import Any, NoReturn

from celery.beat import ScheduleEntry, Scheduler, SchedulingError
from celery.bin.base import CLIContext
from celery.bin.beat import beat
from celery.signals import beat_init, setup_logging

from shared.infra import broker, logs
from shared.infra.health_socket import HealthSocket
from shared.infra.system import close_memory
from shared.settings import Settings
from workers import celery_app
from workers.celery_app import STOP_SIGNALS

log = logging.getLogger("workers.beat")  # also if this module runs as `__main__`

SWEEP_SECONDS = 10.0
SILENT_SECONDS = 6 * SWEEP_SECONDS

close_memory()
settings = Settings.from_env(os.environ)
app = celery_app.configure(
    settings.redis_broker_url or settings.redis_url or "redis://127.0.0.1:6379/0", pool=settings.pool
)
app.conf.update(
    beat_schedule={
        "sweep": {"task": broker.SWEEP, "schedule": SWEEP_SECONDS, "options": {"queue": broker.BUILDS}}
    },
)


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


app.conf.beat_scheduler = TimedScheduler


def why_not_ready() -> str | None:
    """Return why beat sends no notifications, or None if it does."""
    if TimedScheduler.ticked_at is None:
        return "it has not reached Redis yet"
    silent = time.monotonic() - TimedScheduler.ticked_at
    return f"it has notified nobody for {silent:.0f} s" if silent > SILENT_SECONDS else None


@beat_init.connect
def answer(**_: Any) -> None:
    """Open the health socket and install the signal handlers.

    The socket has its own thread, because beat's loop blocks as long as Redis is unreachable.
    """
    health = HealthSocket(settings.runtime_dir, "beat", why_not_ready)
    health.open()
    atexit.register(health.close)
    for number in STOP_SIGNALS:
        signal.signal(number, stop)


def stop(*_: Any) -> NoReturn:
    """End this process. Celery's handler would raise again, during shutdown, for each further signal."""
    celery_app.ignore_stop_signals()
    raise SystemExit


@setup_logging.connect
def configure_logging(**_: Any) -> None:
    logs.configure(settings)


if __name__ == "__main__":
    beat(obj=CLIContext(app=app, no_color=None, workdir=None, quiet=True), prog_name="python -m workers.beat")
