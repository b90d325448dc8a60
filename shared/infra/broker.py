"""Notifications through the broker: names of queues and tasks, and the Celery messages that are sent.

A message is a notification: it carries ids and may be lost, duplicated or late. The row is committed before it is sent.
A failed notification is therefore only logged; the caller sees no error and never waits. Senders do not import Celery;
workers do (`workers/celery_app.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Sequence
from uuid import UUID, uuid4

import orjson
from redis import Redis
from redis.exceptions import ConnectionError, RedisError

from shared.infra import redis
from shared.infra.loops import forever
from shared.infra.redis_connections import SenderConnection, command, pack

log = logging.getLogger(__name__)

BUILDS = "builds"
EXECUTE_RUNS = "runs.execute"
PREPARE_HOSTS = "hosts.prepare"
BUILD_REVISION = "builds.build"
SWEEP = "upkeep.sweep"
CANARY = "workers.canary"

CELERY_PREFIX = redis.PREFIX + "celery:"
BREAKER_FAILURES, BREAKER_SECONDS = 2, 5.0
IDS_A_MESSAGE = 50  # ids in one message
FULL_QUEUE = 200  # messages in a queue beyond which further notifications tell a runner nothing new
# Third part of the body of a Celery message.
EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
SHOWN_CHARACTERS = 200  # of the arguments, for Celery's tools


def runs_queue(pool: str) -> str:
    return f"runs.{pool}"


def hosts_queue(pool: str) -> str:
    return f"hosts.{pool}"


def canary_queue(worker: str) -> str:
    """Return the queue of messages that a worker process sends to itself, to verify that messages reach it."""
    return f"canary.{worker}"


def full_pools(pools: Iterable[str]) -> list[str]:
    """Return the pools whose queue holds FULL_QUEUE notifications. Empty if Redis is unreachable."""
    try:
        lengths = {pool: redis.broker().llen(f"{CELERY_PREFIX}{runs_queue(pool)}") for pool in pools}
    except RedisError:
        return []
    return [pool for pool, length in lengths.items() if length >= FULL_QUEUE]


def forget_worker(worker: str) -> None:
    """Delete the canary queue of a worker process that has ended."""
    redis.broker().delete(f"{CELERY_PREFIX}{canary_queue(worker)}")


def task_message(task: str, queue: str, args: Sequence[object]) -> bytes:
    """Return a Celery message (protocol 2) in kombu's Redis format, as JSON. Any Celery worker accepts it.

    `Celery.send_task` passes through four layers, although messages differ only in task, queue, id and arguments.
    """
    id = str(uuid4())
    return orjson.dumps(
        {
            "body": b64encode(orjson.dumps([args, {}, EMBED])).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py",
                "task": task,
                "id": id,
                "shadow": None,
                "eta": None,
                "expires": None,
                "group": None,
                "group_index": None,
                "retries": 0,
                "timelimit": [None, None],
                "root_id": id,
                "parent_id": None,
                "argsrepr": repr(args)[:SHOWN_CHARACTERS],
                "kwargsrepr": "{}",
                "origin": None,
                "ignore_result": True,
                "replaced_task_nesting": 0,
                "stamped_headers": None,
                "stamps": {},
            },
            "properties": {
                "correlation_id": id,
                "reply_to": None,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": id,
            },
        }
    )


class Notifier:
    """Sends notifications in the background.

    The caller does not wait, and simultaneous notifications share a round-trip.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, str, str]] = deque()  # task, queue, id
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._breaker_open_until = 0.0
        self._redis: Redis | None = None
        self._connection: SenderConnection

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
            for start in range(0, len(ids), IDS_A_MESSAGE):
                message = task_message(task, queue, [ids[start : start + IDS_A_MESSAGE]])
                messages.setdefault(queue, []).append(pack(message))
        self._send(
            [
                command(2 + len(of_queue), pack(b"LPUSH", f"{CELERY_PREFIX}{queue}".encode()), *of_queue)
                for queue, of_queue in messages.items()
            ]
        )

    def _send(self, commands: list[bytes]) -> None:
        """Send what `Celery.send_task` would send for each message, for all queues in one round-trip."""
        if time.monotonic() < self._breaker_open_until:
            return  # upkeep notifies again for unclaimed rows
        if self._redis is not redis.broker():
            self._redis = redis.broker()
            self._connection = SenderConnection(self._redis)
        try:
            try:
                self._connection.send(commands)
            except ConnectionError:  # the idle connection was lost meanwhile
                self._connection.send(commands)
            self._failures = 0
        except (RedisError, OSError) as error:
            self._failures += 1
            if self._failures >= BREAKER_FAILURES:
                self._breaker_open_until = time.monotonic() + BREAKER_SECONDS
            log.warning("could not notify %d queues: %s", len(commands), error)


notifier = Notifier()


def enqueue_run(pool: str, run_id: UUID | str) -> None:
    """Notify the runners of a pool that a run is pending."""
    notifier.notify(EXECUTE_RUNS, runs_queue(pool), run_id)


def enqueue_host(pool: str, revision_id: UUID) -> None:
    """Notify the runners of a pool that a caller waits for a host of this revision."""
    notifier.notify(PREPARE_HOSTS, hosts_queue(pool), revision_id)


def enqueue_build(revision_id: UUID | str) -> None:
    """Notify the builders that a revision is waiting."""
    notifier.notify(BUILD_REVISION, BUILDS, revision_id)
