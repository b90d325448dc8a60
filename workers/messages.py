"""What a task's message is to a worker: nothing to acknowledge.

Queues keep nothing of a message that was delivered (`shared/infra/broker.py`), and kombu's Redis transport asks
Redis to forget it all the same: a round-trip a message, from a pool of ten connections that a burst exhausts.
"""

from __future__ import annotations

from celery import Task
from celery.worker.request import Request


class MessageRequest(Request):
    """A message that is not acknowledged."""

    def acknowledge(self) -> None:
        self.acknowledged = True


class MessageTask(Task):
    """The base of every task."""

    abstract = True
    Request = MessageRequest
