"""The Celery app of beat: a schedule of names, and nothing that could do the work.

`celery -A workers.beat beat` decides nothing. Without it, crons are late and nothing else changes.
"""

from __future__ import annotations

import os
from typing import Any

from celery.signals import setup_logging

from shared.infra import broker, logs
from shared.infra.hardening import close_memory
from shared.settings import Settings

close_memory()
settings = Settings.from_env(os.environ)
app = broker.configure(
    settings.redis_broker_url or settings.redis_url or "redis://127.0.0.1:6379/0", pool=settings.pool
)
app.conf.update(
    beat_schedule={"sweep": {"task": broker.SWEEP, "schedule": 10.0, "options": {"queue": broker.BUILDS}}},
    beat_scheduler="celery.beat:Scheduler",  # keeps no file: after a restart it begins anew
)


@setup_logging.connect
def configure_logging(**_: Any) -> None:
    logs.configure(settings)
