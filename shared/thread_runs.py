"""Follows a thread's runs one after the other, for as long as a reader stays; what it shows of them is its kind's.

Runners publish a wake-up when a run's log begins, writers of state when it is written. It may be lost: the rows are
looked at now and then anyway.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from shared.errors import Unavailable
from shared.eventlog.hub import Reader

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0  # between two looks at the rows without a wake-up

Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True)
class Look:
    """What the rows say of a thread: its newest run's number, and the next run to follow."""

    last_run: int
    run: Any  # its row, with `created_seq`; None: there is none yet
    state_at: int = 0  # microseconds: when its state was last moved


class ThreadReader(ABC, Generic[Shown]):
    """One reader of one thread."""

    def __init__(self, deployment_id: UUID, thread_id: UUID) -> None:
        self._deployment_id, self._thread_id = deployment_id, thread_id
        self._after = 0  # all of this run, and of those before it, has been shown or is not to be
        self._is_awaited = False  # the thread may still come to be

    def batches(self, wake_ups: Reader, quiet_seconds: Callable[[], float]) -> Iterator[list[Shown]]:
        """What there is to show, in batches, until the thread is gone; [] on each quiet spell.

        `wake_ups` listens to the thread's channel. Raises Stopping when the process stops.
        """
        while True:
            try:
                look = self._look()
            except Unavailable as error:
                log.warning("thread %s: its runs cannot be looked up now: %s", self._thread_id, error)
                yield from self._wait(wake_ups, quiet_seconds)
                continue
            if look is None and not self._is_awaited:
                return
            if look is not None:
                self._is_awaited = False
                yield from self._between(look)
            if look is None or look.run is None:
                self._after = self._after if look is None else look.last_run
                yield from self._wait(wake_ups, quiet_seconds)
            else:
                yield from self._run(look.run, quiet_seconds)
                self._after = look.run.created_seq

    @property
    def _keys(self) -> dict[str, UUID]:
        return {"deployment_id": self._deployment_id, "thread_id": self._thread_id}

    @abstractmethod
    def _look(self) -> Look | None:
        """The thread now; None when there is none. Raises Unavailable."""

    def _between(self, look: Look) -> Sequence[list[Shown]]:
        """What is to be shown before the next run."""
        return ()

    @abstractmethod
    def _run(self, run: Any, quiet_seconds: Callable[[], float]) -> Iterator[list[Shown]]:
        """What is to be shown of one run, to its end."""

    def _wait(self, wake_ups: Reader, quiet_seconds: Callable[[], float]) -> Iterator[list[Shown]]:
        deadline = time.monotonic() + LOOK_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            notified, missed = wake_ups.take(min(quiet_seconds(), left))
            yield []
            if notified or missed:
                return
