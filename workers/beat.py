"""The process `beat`, without code that could do the work that it schedules: `python -m workers.beat`."""

from __future__ import annotations

import os
import signal
from typing import Any, NoReturn

from celery.bin.base import CLIContext
from celery.bin.beat import beat
from celery.signals import beat_init, setup_logging

from shared.infra import logs
from shared.infra.system import close_memory
from shared.settings import Settings
from workers import celery_app, schedule
from workers.celery_app import STOP_SIGNALS

close_memory()
settings = Settings.from_env(os.environ)
app = celery_app.configure(
    settings.redis_broker_url or settings.redis_url or "redis://127.0.0.1:6379/0", pool=settings.pool
)
schedule.configure(app)


@beat_init.connect
def start(**_: Any) -> None:
    """Open the health socket and install the signal handlers."""
    schedule.open_health_socket(settings)
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
