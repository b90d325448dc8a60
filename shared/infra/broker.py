"""Notifications by way of the broker: the names of queues and tasks, and the messages of Celery tasks that are put there.

A message is a notification: it carries ids and may be lost, doubled or late. The row was committed before it
is sent, so a notification that fails is logged, never an error to the caller, and never waited for. Who sends
needs no Celery for that; workers do: `workers/celery_app.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from uuid import UUID

from redis import Redis
from redis.exceptions import ConnectionError, RedisError

from shared.infra import redis, task_message
from shared.infra.loops import forever
from shared.infra.packed import OwnConnection, command, pack

log = logging.getLogger(__name__)

BUILDS = "builds"
EXECUTE_RUNS = "runs.execute"
ANSWER_QUERIES = "queries.answer"
PREPARE_HOSTS = "hosts.prepare"
BUILD_REVISION = "builds.build"
SWEEP = "upkeep.sweep"
CANARY = "workers.canary"

CELERY_PREFIX = redis.PREFIX + "celery:"
BREAKER_FAILURES, BREAKER_SECONDS = 2, 5.0
IDS_A_MESSAGE = 50  # ids in one message
ENOUGH = 200  # messages in a queue: more would tell its readers nothing new


def runs_queue(pool: str) -> str:
    return f"runs.{pool}"


def queries_queue(pool: str) -> str:
    return f"queries.{pool}"


def canary_queue(worker: str) -> str:
    """What one worker process sends to itself, to know that messages reach it."""
    return f"canary.{worker}"


def full_pools(pools: Iterable[str]) -> list[str]:
    """Those of these pools whose runners have enough notifications to read; none while Redis is away."""
    try:
        return [pool for pool in pools if redis.broker().llen(f"{CELERY_PREFIX}{runs_queue(pool)}") >= ENOUGH]
    except RedisError:
        return []


def forget_worker(worker: str) -> None:
    """Remove what a worker process that is gone has left in the broker."""
    redis.broker().delete(f"{CELERY_PREFIX}{canary_queue(worker)}")


class Notifier:
    """Notifies in the background: the caller continues at once, and notifications that meet travel together."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, str, str]] = deque()  # task, queue, id
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._open_until = 0.0
        self._redis: Redis | None = None
        self._connection: OwnConnection

    def notify(self, task: str, queue: str, id: UUID | str) -> None:
        self._waiting.append((task, queue, str(id)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_sending, name="notifier", daemon=True)
            self._thread.start()
        self._wake.set()

    def _keep_sending(self) -> None:
        forever(self._send_all, self._wait, what="notifying")

    def _wait(self) -> None:
        self._wake.wait()
        self._wake.clear()

    def _send_all(self) -> None:
        batches: dict[tuple[str, str], list[str]] = {}
        while self._waiting:
            task, queue, id = self._waiting.popleft()
            batches.setdefault((task, queue), []).append(id)
        messages: dict[str, list[bytes]] = {}
        for (task, queue), ids in batches.items():
            for at in range(0, len(ids), IDS_A_MESSAGE):
                made = task_message.made(task, queue, [ids[at : at + IDS_A_MESSAGE]])
                messages.setdefault(queue, []).append(pack(made))
        self._send(
            [
                command(2 + len(together), pack(b"LPUSH", f"{CELERY_PREFIX}{queue}".encode()), *together)
                for queue, together in messages.items()
            ]
        )

    def _send(self, commands: list[bytes]) -> None:
        """What `Celery.send_task` does for one message, for all queues in one round-trip."""
        if time.monotonic() < self._open_until:
            return  # upkeep notifies again for rows nobody claimed
        if self._redis is not redis.broker():
            self._redis = redis.broker()
            self._connection = OwnConnection(self._redis)
        try:
            try:
                self._connection.send(commands)
            except ConnectionError:  # nobody has used it for a while, and it was lost meanwhile
                self._connection.send(commands)
            self._failures = 0
        except (RedisError, OSError) as error:
            self._failures += 1
            if self._failures >= BREAKER_FAILURES:
                self._open_until = time.monotonic() + BREAKER_SECONDS
            log.warning("could not notify %d queues: %s", len(commands), error)


notifier = Notifier()


def enqueue_run(pool: str, run_id: UUID | str) -> None:
    """Notify the runners of a pool of a run that waits."""
    notifier.notify(EXECUTE_RUNS, runs_queue(pool), run_id)


def enqueue_query(pool: str, query_id: UUID) -> None:
    """Notify the runners of a pool of a query that waits."""
    notifier.notify(ANSWER_QUERIES, queries_queue(pool), query_id)


def enqueue_host(pool: str, revision_id: UUID) -> None:
    """Notify the runners of a pool that somebody waits for a host of this revision."""
    notifier.notify(PREPARE_HOSTS, queries_queue(pool), revision_id)


def enqueue_build(revision_id: UUID | str) -> None:
    """Notify the builders of a revision that waits."""
    notifier.notify(BUILD_REVISION, BUILDS, revision_id)
