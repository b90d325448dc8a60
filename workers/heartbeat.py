"""Heartbeats of a worker process, and canaries that detect when no more messages reach it.

The process writes its row (`shared/fleet.py`) every few seconds. Every other time it also sends a canary message to a
queue that only it consumes. While canaries return, the whole path from the broker to a task works.

A consumer that hangs looks alive from outside. If the broker accepted the canaries but none returned for a minute, the
process ends and its supervisor starts another. An unreachable broker is no reason to end: runners then claim runs from
their rows.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gevent
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from shared import __version__, fleet
from shared.errors import Unavailable
from shared.fleet import DRAINING, READY, Heartbeat
from shared.infra import broker
from shared.infra.health_socket import HealthSocket
from shared.infra.loops import forever
from shared.infra.postgres import STATEMENT_ERRORS, connection
from shared.models import HEARTBEAT_SECONDS, SILENT_SECONDS
from shared.settings import Settings
from workers import celery_app
from workers.isolation.levels import Isolation

log = logging.getLogger(__name__)

HEARTBEATS_A_CANARY = 2
DEAD_SECONDS = 60.0
DEAD_CANARIES = 4  # unanswered in a row; a broker that restarted may have lost one or two


class Process(Protocol):
    """The worker process that the heartbeats describe."""

    kind: str
    isolation: Isolation

    @property
    def is_full(self) -> bool:
        """Whether no task can start, so that no canary can return."""
        ...

    def figures(self) -> Mapping[str, Any]:
        """Return the changing fields of a Heartbeat."""
        ...

    def set_drained(self, is_drained: bool) -> None:
        """Drain this process because an operator requested it, or resume it."""

    def die(self) -> None:
        """End the process because no messages reach it, so that its supervisor starts another."""


def consume_canaries(consumed: Any, worker: str) -> None:
    """Let this process consume its own canaries too. `consumed` are its app's queues.

    The nameless exchange routes to every queue by its name, so no binding stays in the broker after the process has
    ended.
    """
    name = broker.canary_queue(worker)
    consumed.select_add(Queue(name, Exchange(""), routing_key=name, no_ack=True))
    consumed[name].exchange = Exchange("")


def send_canary(worker: str) -> None:
    """Send a canary from this process to itself. Raises kombu's and Redis' errors if the broker is unreachable."""
    name = broker.canary_queue(worker)
    celery_app.celery.send_task(broker.CANARY, queue=Queue(name, Exchange(""), routing_key=name))


class HeartbeatSender:
    """Sends this process's heartbeats, and canaries to itself."""

    def __init__(
        self,
        settings: Settings,
        process: Process,
        *,
        send_canary: Callable[[str], None] = send_canary,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._process = process
        self._send_canary = send_canary
        self._clock = clock
        self._canary_at = clock()
        self._unanswered = 0
        self._rounds = 0
        self._sent_at: float | None = None
        self.draining = False  # to shut down
        self._is_drained = False  # by an operator
        self._health = HealthSocket(settings.runtime_dir, process.kind, self.why_not_ready)

    def start(self) -> None:
        self._health.open()
        gevent.spawn(forever, self.send, HEARTBEAT_SECONDS, what="the row of this worker")
        gevent.spawn(forever, self.check, HEARTBEAT_SECONDS, what="looking after this process")

    def canary_returned(self) -> None:
        """Record that a canary came back."""
        self._canary_at = self._clock()
        self._unanswered = 0

    def drain(self) -> None:
        """Write at once that this process accepts no new work."""
        self.draining = True
        gevent.spawn(self._try_send)
        # Celery waits up to four seconds for a message before it checks whether to stop, and once more afterwards.
        for _ in range(2):
            gevent.spawn(self._try_canary)

    def why_not_ready(self) -> str | None:
        """Return why this process should get no work, or None if it should."""
        if self.draining or self._is_drained:
            return "it drains"
        if self._sent_at is None:
            return "it has not reached the database yet"
        silent = self._clock() - self._sent_at
        if silent > SILENT_SECONDS:
            return f"it has not reached the database for {silent:.0f} s"
        return None

    def leave(self) -> None:
        """Remove this process's row and queue before it exits in good order."""
        self._health.close()
        try:
            broker.forget_worker(self._settings.worker)
            with connection() as conn:
                fleet.leave(conn, self._settings.worker)
        except (Unavailable, RedisError, *STATEMENT_ERRORS) as error:
            log.info("the row of this worker stays for a minute: %s", error)

    def _try_send(self) -> None:
        try:
            self.send()
        except (Unavailable, *STATEMENT_ERRORS) as error:
            log.warning("the row of this worker is not written now: %s", error)

    def send(self) -> None:
        """Write this process's row, and drain the process if an operator requested it."""
        process = self._process
        heartbeat = Heartbeat(
            id=self._settings.worker,
            kind=process.kind,
            pool=self._settings.pool if process.kind == "runner" else None,
            host_name=self._settings.worker.partition(":")[0],
            pid=os.getpid(),
            version=__version__,
            isolation=process.isolation.level,
            bounds_tasks=process.isolation.bounds_tasks,
            bounds_memory=process.isolation.bounds_memory,
            state=DRAINING if self.draining or self._is_drained else READY,
            heard_seconds=round(self._clock() - self._canary_at, 1),
            **process.figures(),
        )
        with connection() as conn:
            is_drained = fleet.record_heartbeat(
                conn, heartbeat, is_drained=self._is_drained and not self.draining
            )
        self._sent_at = self._clock()
        if is_drained != self._is_drained and not self.draining:
            log.info("an operator has %s this worker", "drained" if is_drained else "resumed")
            self._is_drained = is_drained
            process.set_drained(is_drained)

    def check(self) -> None:
        """Send a canary in every second call. End the process if no canary returns."""
        if self.draining or self._process.is_full:
            self.canary_returned()  # no canary can return now, which is expected
            return
        if self._clock() - self._canary_at > DEAD_SECONDS and self._unanswered >= DEAD_CANARIES:
            log.critical("no message has come through for %.0f s: this process ends", DEAD_SECONDS)
            self._process.die()
        self._rounds += 1
        if self._rounds % HEARTBEATS_A_CANARY == 0:
            self._try_canary()

    def _try_canary(self) -> None:
        try:
            self._send_canary(self._settings.worker)
            self._unanswered += 1
        except (OperationalError, RedisError, OSError):
            self.canary_returned()  # the broker is unreachable, which is logged elsewhere
