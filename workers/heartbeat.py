"""The heartbeats of a worker process, and the canaries by which it notices that no message reaches it.

Every few seconds it writes its row (`shared/fleet.py`). Every other time it also sends a message to a queue
that nobody else reads: as long as these canaries come back, the whole way from the broker to a task is open.
A consumer that hangs looks alive from outside; one that no canary has reached for a minute although the broker
took its canaries ends its process, and the supervisor starts another. A broker that is away is no reason to
end: runs are then claimed from their rows.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import gevent
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from sqlalchemy.exc import DBAPIError

from shared import __version__, fleet
from shared.errors import Unavailable
from shared.fleet import DRAINING, READY, Heartbeat
from shared.infra import broker
from shared.infra.health_socket import HealthSocket
from shared.infra.loops import forever
from shared.infra.postgres import connection
from shared.models import HEARTBEAT_SECONDS, SILENT_SECONDS
from shared.settings import Settings
from workers import celery_app
from workers.isolation.sandbox import Isolation

log = logging.getLogger(__name__)

HEARTBEATS_A_CANARY = 2
DEAD_SECONDS = 60.0
DEAD_CANARIES = 4  # unanswered ones: what was lost with a broker that restarted does not count

Figures = Callable[[], Mapping[str, Any]]


def consume_canaries(consumed: Any, worker: str) -> None:
    """Have this process consume its own canaries too; `consumed` are its app's queues.

    The nameless exchange reaches every queue by its name: no binding stays in the broker when we are gone.
    """
    name = broker.canary_queue(worker)
    consumed.select_add(Queue(name, Exchange(""), routing_key=name, no_ack=True))
    consumed[name].exchange = Exchange("")


def send_canary(worker: str) -> None:
    """A message of this process to itself; raises what the broker's absence raises."""
    name = broker.canary_queue(worker)
    celery_app.celery.send_task(broker.CANARY, queue=Queue(name, Exchange(""), routing_key=name))


def stop_in_good_order() -> None:
    """What a supervisor does that stops this process."""
    os.kill(os.getpid(), signal.SIGTERM)


class HeartbeatSender:
    """Sends this process's heartbeats, and canaries to itself."""

    def __init__(
        self,
        settings: Settings,
        *,
        kind: str,
        isolation: Isolation,
        figures: Figures,
        is_full: Callable[[], bool],
        dies: Callable[[], None],
        stops: Callable[[], None] = stop_in_good_order,
        send_canary: Callable[[str], None] = send_canary,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`figures`: the fields of a Heartbeat that change; `is_full`: no task can begin, so no canary returns."""
        self._settings = settings
        self._kind = kind
        self._isolation = isolation
        self._figures = figures
        self._is_full = is_full
        self._dies = dies
        self._stops = stops
        self._send_canary = send_canary
        self._clock = clock
        self._canary_at = clock()
        self._unanswered = 0
        self._rounds = 0
        self._sent_at: float | None = None
        self.draining = False
        self._health = HealthSocket(settings.runtime_dir, kind, self.why_not_ready)

    def start(self) -> None:
        self._health.open()
        gevent.spawn(forever, self.send, HEARTBEAT_SECONDS, what="the row of this worker")
        gevent.spawn(forever, self.check, HEARTBEAT_SECONDS, what="looking after this process")

    def canary_returned(self) -> None:
        """A canary came back."""
        self._canary_at = self._clock()
        self._unanswered = 0

    def drain(self) -> None:
        """Say at once that this process takes nothing new."""
        self.draining = True
        gevent.spawn(self._try_send)
        # Celery waits for a message, up to four seconds, before it looks whether to stop, and once more after.
        for _ in range(2):
            gevent.spawn(self._try_canary)

    def why_not_ready(self) -> str | None:
        """Why this process should be given no work; None when it should."""
        if self.draining:
            return "it drains"
        if self._sent_at is None:
            return "it has not reached the database yet"
        silent = self._clock() - self._sent_at
        if silent > SILENT_SECONDS:
            return f"it has not reached the database for {silent:.0f} s"
        return None

    def leave(self) -> None:
        """The process ends in good order."""
        self._health.close()
        try:
            broker.forget_worker(self._settings.worker)
            with connection() as conn:
                fleet.leave(conn, self._settings.worker)
        except (Unavailable, DBAPIError, RedisError) as error:
            log.info("the row of this worker stays for a minute: %s", error)

    def _try_send(self) -> None:
        try:
            self.send()
        except (Unavailable, DBAPIError) as error:
            log.warning("the row of this worker waits: %s", error)

    def send(self) -> None:
        """Write our row."""
        heartbeat = Heartbeat(
            id=self._settings.worker,
            kind=self._kind,
            pool=self._settings.pool if self._kind == "runner" else None,
            host_name=self._settings.worker.partition(":")[0],
            pid=os.getpid(),
            version=__version__,
            isolation=self._isolation.level,
            bounds_tasks=self._isolation.bounds_tasks,
            bounds_memory=self._isolation.bounds_memory,
            state=DRAINING if self.draining else READY,
            heard_seconds=round(self._clock() - self._canary_at, 1),
            **self._figures(),
        )
        with connection() as conn:
            is_to_drain = fleet.record_heartbeat(conn, heartbeat)
        self._sent_at = self._clock()
        if is_to_drain and not self.draining:
            log.info("an operator wants this process drained")
            self._stops()

    def check(self) -> None:
        """Send a canary now and then; end the process when none comes back."""
        if self.draining or self._is_full():
            self.canary_returned()  # none can return now, and that is as it should be
            return
        if self._clock() - self._canary_at > DEAD_SECONDS and self._unanswered >= DEAD_CANARIES:
            log.critical("no message has come through for %.0f s: this process ends", DEAD_SECONDS)
            self._dies()
        self._rounds += 1
        if self._rounds % HEARTBEATS_A_CANARY == 0:
            self._try_canary()

    def _try_canary(self) -> None:
        try:
            self._send_canary(self._settings.worker)
            self._unanswered += 1
        except (OperationalError, RedisError, OSError):
            self.canary_returned()  # the broker is away: said elsewhere
