"""Remote control by Celery's own tools, with a mailbox that reconnects after it has lost its connection."""

from __future__ import annotations

import logging
import time
from typing import Any

from celery import Celery
from celery.bootsteps import StartStopStep
from celery.worker import pidbox
from celery.worker.consumer.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


def use(app: Celery) -> None:
    """Let this process's worker answer Celery's tools through this module."""
    app.steps["consumer"].add(ControlStep)  # pyright: ignore[reportOptionalSubscript]  filled when the app is made


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
                time.sleep(RETRY_SECONDS)


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
