"""Task messages without acknowledgement, revocation or results: only arguments for the call of a task.

Queues do not track delivered messages (`shared/infra/broker.py`), but kombu's Redis transport would still ask Redis
to delete each one. That is a round-trip per message, from a pool of ten connections that a burst exhausts. Celery's
request and trace of each task serve results, retries, limits and events. Only the events are used here, and only if
Celery's tools are enabled.
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
    """Return how many tasks this process executes now."""
    return _executing


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
    except Exception:
        log.exception("task %s failed", task.name)


def _done(_: None) -> None:
    """Do nothing. Celery's pools require a callback."""


class MessageRequest(Request):
    """A message that is never acknowledged to the broker."""

    def acknowledge(self) -> None:
        self.acknowledged = True


class MessageTask(Task):
    """The base class of every task. Counts the tasks that are executing."""

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
