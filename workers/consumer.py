"""The consumer of a worker: the broker's transport, the messages of tasks, and Celery's own tools.

Anyone who can write to Redis can put anything into a queue. Celery and kombu read a message in many places, and in most
of them an unreadable message ends the consumer. The transport drops such messages before Celery sees them. A flood of
them must not fill the disk with log lines: of a burst the 1st, 10th, 100th … are logged.

A message is a task's name and its arguments. Messages are neither acknowledged nor revoked, and have no results. Queues
do not track delivered messages (`shared/infra/broker.py`), but kombu's Redis transport would still ask Redis to delete
each one: a round-trip per message, from a pool of ten connections that a burst exhausts. Celery's request and trace of
each task serve results, retries, limits and events. Only the events are used here, if Celery's tools are enabled.
"""

from __future__ import annotations

import logging
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar
from uuid import UUID, uuid4

import orjson
from celery import Celery, Task
from celery.bootsteps import StartStopStep
from celery.worker import pidbox
from celery.worker import strategy as celerys
from celery.worker.consumer.tasks import Tasks
from celery.worker.request import Request
from kombu.connection import Connection as KombuConnection
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as kombu_redis

from shared.infra import broker

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
BURST_SECONDS = 60.0
TAKES_IDS = (broker.EXECUTE_RUNS, broker.PREPARE_HOSTS, broker.BUILD_REVISION)
TAKES_NOTHING = (broker.SWEEP, broker.CANARY)
CONTROL_RETRY_SECONDS = 1.0  # of the connection for Celery's tools


def install(app: Celery, *, has_control: bool = False) -> None:
    """Install the transport for the app, for every kind of Redis URL.

    `has_control`: the app's worker answers Celery's own tools.
    """
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
    app.amqp.Connection = Connection
    if has_control:
        app.steps["consumer"].add(ControlStep)  # pyright: ignore[reportOptionalSubscript]  filled when the app is made


class Drops:
    """Counts dropped messages by queue and logs each power of ten. A minute without a drop ends a burst."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bursts: dict[str, tuple[int, float]] = {}

    def add(self, queue: str, reason: object) -> None:
        count, last_at = self._bursts.get(queue, (0, 0.0))
        now = self._clock()
        count = 1 if now - last_at > BURST_SECONDS else count + 1
        self._bursts[queue] = count, now
        if count == 1:
            log.warning("a message in %s is dropped: %s", queue, reason)
        elif str(count).strip("0") == "1":
            log.warning(
                "%d messages in %s are dropped so far, the last of them because %s", count, queue, reason
            )


class Malformed(Exception):
    """The message is not one of this service; the text says why."""


def checked(item: bytes) -> bytes:
    """Rebuild a message from its task name and arguments only, so that nothing else in it reaches Celery.

    Raises Malformed.
    """
    try:
        message = orjson.loads(item)
        kind = message["content-type"], message["content-encoding"]
        task = message["headers"]["task"]
        arguments, options, _ = orjson.loads(b64decode(message["body"], validate=True))
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(f"it cannot be read ({type(error).__name__})") from error
    if kind != ("application/json", "utf-8") or options or not _fits(task, arguments):
        raise Malformed("no task takes it")
    return orjson.dumps(
        {
            "headers": {"lang": "py", "task": task, "id": str(uuid4())},
            "properties": {"body_encoding": "base64", "delivery_tag": str(uuid4()), "delivery_info": {}},
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "body": b64encode(orjson.dumps([arguments, {}, {}])).decode(),
        }
    )


def _fits(task: object, arguments: object) -> bool:
    match arguments:
        case []:
            return task in TAKES_NOTHING
        case [[*ids]]:
            return task in TAKES_IDS and all(_is_id(id) for id in ids)
    return False


def _is_id(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(UUID(value))
    except ValueError:
        return False


class Connection(KombuConnection):
    """Reconnects at short intervals. kombu's grow to half a minute, even if the broker returns earlier."""

    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        pauses = {"interval_start": RETRY_SECONDS, "interval_step": 0, "interval_max": RETRY_SECONDS}
        return super().ensure_connection(*args, **{**pauses, **options})


drops = Drops()


class Client(kombu_redis.PrefixedStrictRedis):
    """Redis client whose answers to BRPOP are messages of this service or None."""

    def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        answer = super().parse_response(connection, command_name, **options)
        if command_name != "BRPOP" or not answer:
            return answer
        queue, item = answer
        try:
            return queue, checked(item)
        except Malformed as error:
            drops.add(queue.decode(), error)
            return None


class Channel(kombu_redis.Channel):
    def _get_client(self) -> Any:
        return partial(Client, global_keyprefix=self.global_keyprefix)


class Transport(kombu_redis.Transport):
    Channel = Channel


def strategy(task: MessageTask, app: Celery, consumer: Any) -> Callable[..., Any]:
    """Return the function that handles a task's messages.

    It is Celery's own if Celery's tools are enabled, else one that only calls the task.
    """
    if app.conf.worker_send_task_events:
        return celerys.default(task, app, consumer)

    def take(message: Any, *_: Any) -> None:
        arguments, _, _ = orjson.loads(message.body)
        consumer.pool.apply_async(execute, (task, arguments), callback=_done)

    return take


def execute(task: MessageTask, arguments: list[Any]) -> None:
    """Call a task. Logs an exception, because no caller could receive it."""
    try:
        task(*arguments)
    except Exception:  # outermost frame of a task
        log.exception("task %s failed", task.name)


def _done(_: None) -> None:
    """Do nothing. Celery's pools require a callback."""


class MessageRequest(Request):
    """A message that is never acknowledged to the broker."""

    def acknowledge(self) -> None:
        self.acknowledged = True


class MessageTask(Task):
    """The base class of every task. Counts the tasks that this process executes now."""

    abstract = True
    Request = MessageRequest
    Strategy = f"{__name__}:strategy"
    executing: ClassVar[int] = 0

    def __call__(self, *arguments: Any) -> None:
        MessageTask.executing += 1
        try:
            self.run(*arguments)
        finally:
            MessageTask.executing -= 1


class Mailbox(pidbox.gPidbox):  # type: ignore[misc]
    """Celery's mailbox of a worker.

    Reconnects when its own connection is lost, where Celery's mailbox would end for good.
    """

    _started: object | None = None

    def start(self, c: Any) -> None:
        self._started = object()
        super().start(c)

    def on_stop(self) -> None:
        self._started = None
        super().on_stop()

    def loop(self, c: Any) -> None:
        started = self._started
        while started is self._started and c.connection:
            try:
                super().loop(c)
            except c.connection_errors as error:
                log.warning("the connection for Celery's tools was lost: %s", error)
                time.sleep(CONTROL_RETRY_SECONDS)


class ControlStep(StartStopStep):
    """Replacement of Celery's own control step that uses the reconnecting mailbox."""

    requires = (Tasks,)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self.mailbox = Mailbox(parent)

    def start(self, parent: Any) -> None:
        self.mailbox.start(parent)

    def stop(self, parent: Any) -> None:
        self.mailbox.stop(parent)

    def shutdown(self, parent: Any) -> None:
        self.mailbox.shutdown(parent)
