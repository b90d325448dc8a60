"""The Celery app that worker processes start from, and what a worker sets up when it starts.

`python -m workers -P gevent -Q runs.default,hosts.default` is a runner,
`… -Q builds` a builder. With `--with-beat` the worker also runs the schedule of beat.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
from functools import partial
from typing import Any

import click
import gevent
from celery.bootsteps import StartStopStep
from celery.signals import setup_logging, worker_init, worker_ready
from celery.worker import state

from shared.infra import broker, database_version, logs, postgres, redis, system, tracing
from shared.infra.system import close_memory
from shared.settings import Settings
from workers import celery_app, consumer, heartbeat
from workers.celery_app import STOP_SIGNALS

log = logging.getLogger(__name__)

close_memory()
settings = Settings.from_env(os.environ)
app = celery_app.configure(
    settings.redis_broker_url or settings.redis_url or "redis://127.0.0.1:6379/0",
    pool=settings.pool,
    sends_events=settings.celery_control,
)
app.conf.update(imports=["workers.tasks"])


@setup_logging.connect
def configure_logging(**_: Any) -> None:
    logs.configure(settings)


@worker_init.connect
def prepare(**_: Any) -> None:
    """Connect this process to the servers and declare its canary queue.

    The transport that accepts only messages of this service is installed here and not at import: Celery's tools import
    this module too, and must be able to read the replies of workers.
    """
    system.freeze_loaded_objects()
    consumer.install(app, has_control=settings.celery_control)
    if settings.database_url is None or settings.redis_url is None:
        raise SystemExit(
            "A worker needs DATABASE_URL and REDIS_URL: start it with `runyard up`, or set them."
        )
    if not settings.encryption_keys:
        raise SystemExit("A worker needs RUNYARD_ENCRYPTION_KEYS, the same as all other processes.")
    database_version.wait(settings.database_url)
    postgres.connect(
        settings.database_url,
        application="runyard worker",
        pool_size=postgres.WORKER_POOL,
        waits_for_disk=False,
        pooler=settings.database_pooler,
    )
    redis.connect(
        settings.redis_url, broker_url=settings.redis_broker_url, events_urls=settings.redis_events_urls
    )
    tracing.configure(settings, "worker")
    heartbeat.consume_canaries(app.amqp.queues, settings.worker)


@worker_ready.connect
def start(sender: Any, **_: Any) -> None:
    """Start the runner or builder, and upkeep."""
    from workers import tasks  # imported here: greenlets start with the worker, not with the import

    consumed = set(sender.app.amqp.queues.consume_from)
    is_runner = broker.runs_queue(settings.pool) in consumed
    queue = broker.runs_queue(settings.pool) if is_runner else broker.BUILDS
    tasks.process.start(
        settings,
        is_runner=is_runner,
        slots=sender.controller.concurrency,
        consume=partial(_consume, sender, queue),
    )


def _consume(worker: Any, queue: str, is_active: bool) -> None:
    """Start or stop consuming a queue, as Celery's remote control does: in the consumer's own loop."""
    worker.call_soon(worker.add_task_queue if is_active else worker.cancel_task_queue, queue)


class SignalStep(StartStopStep):
    """Replace Celery's signal handlers by greenlets that drain this worker.

    Celery's handlers run wherever a signal interrupts the process. A second signal, or one that interrupts gevent's
    hub, would wait for a lock that is never released.
    """

    def start(self, parent: Any) -> None:
        for number in STOP_SIGNALS:
            gevent.signal_handler(number, drain, number)


class BeatStep(StartStopStep):
    """Run the schedule of beat in this worker. Celery's own option for this, `--beat`, refuses gevent."""

    def __init__(self, parent: Any, with_beat: bool = False, **options: Any) -> None:
        super().__init__(parent, **options)
        self.enabled = with_beat

    def start(self, parent: Any) -> None:
        from workers import schedule  # imported here: most workers have no schedule

        schedule.start_within(parent.app, settings)


app.steps["worker"].update((SignalStep, BeatStep))  # pyright: ignore[reportOptionalSubscript]  filled when the app is made
app.user_options["worker"].add(  # pyright: ignore[reportOptionalSubscript]
    click.Option(["--with-beat"], is_flag=True, help="Run the schedule of beat too.")
)


def drain(number: signal.Signals) -> None:
    """Accept no new work and exit when current work has ended. Further signals change nothing."""
    from workers import tasks  # see start()

    if state.should_stop is None:
        state.should_stop = os.EX_OK
        log.info("%s: accepting no new work, exiting when the current work has ended", number.name)
        tasks.process.drain()


@atexit.register
def close() -> None:
    from workers import tasks  # see start()

    tasks.process.close()
    celery_app.ignore_stop_signals()  # Python restores the default handlers before it exits
