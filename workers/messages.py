"""What a task's message is to a worker: nothing to acknowledge, revoke or report, only arguments to call a task with.

Queues keep nothing of a message that was delivered (`shared/infra/broker.py`), and kombu's Redis transport asks
Redis to forget it all the same: a round-trip a message, from a pool of ten connections that a burst exhausts.
Celery's record and trace of each task are for results, retries, limits and events: of these only the last are
wanted, and only where Celery's tools look on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import orjson
from celery import Celery, Task
from celery.worker import strategy as celerys
from celery.worker.request import Request

log = logging.getLogger(__name__)

_executing = 0


def executing() -> int:
    """How many tasks this process executes now."""
    return _executing


def strategy(task: MessageTask, app: Celery, consumer: Any) -> Callable[..., Any]:
    """What takes the messages of a task: Celery's own way where its tools look on, else the call and nothing more."""
    if app.conf.worker_send_task_events:
        return celerys.default(task, app, consumer)

    def take(message: Any, *_: Any) -> None:
        arguments, _, _ = orjson.loads(message.body)
        consumer.pool.apply_async(execute, (task, arguments), callback=_done)

    return take


def execute(task: MessageTask, arguments: list[Any]) -> None:
    """Call a task; there is nobody to raise to."""
    try:
        task(*arguments)
    except Exception:
        log.exception("task %s failed", task.name)


def _done(_: None) -> None:
    """Celery's pools ask for a callback."""


class MessageRequest(Request):
    """A message that is not acknowledged."""

    def acknowledge(self) -> None:
        self.acknowledged = True


class MessageTask(Task):
    """The base of every task."""

    abstract = True
    Request = MessageRequest
    Strategy = f"{__name__}:strategy"

    def __call__(self, *arguments: Any) -> None:
        global _executing
        _executing += 1
        try:
            self.run(*arguments)
        finally:
            _executing -= 1
