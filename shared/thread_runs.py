"""Following the runs of a thread one after the other. Subclasses of ThreadReader decide what a reader gets.

Runners publish a wake-up when a run's log begins. Writers of a thread's state publish one when the state is written.
Wake-ups may be lost, so idle readers also poll the rows.
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
from shared.eventlog.polls import Polling, SharedPolls
from shared.infra.arrays import bigints, uuids
from shared.infra.postgres import connection
from shared.sql import statement

log = logging.getLogger(__name__)

_CHANGED = statement("threads.changed")
LOOK_SECONDS = 10.0  # interval at which rows are polled without a wake-up

Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a poll of a thread: the number of its newest run, and the next run to follow."""

    last_run: int
    run: Any  # the row of the next run, with `created_seq`; None: there is no next run yet
    state_at: int = 0  # time of the last change of the thread's state, in microseconds


@dataclass(eq=False, slots=True, kw_only=True)
class _Idle(Polling):
    """A reader that waits for a change of its thread since its last poll."""

    deployment_id: UUID
    thread_id: UUID
    look: Look


class _IdleReaders(SharedPolls[_Idle]):
    """The idle readers of this process."""

    most = 1_000

    def _changed(self, due: Sequence[_Idle]) -> list[_Idle]:
        with connection() as conn:
            rows = _CHANGED.rows(
                conn,
                deployment_ids=uuids([idle.deployment_id for idle in due]),
                thread_ids=uuids([idle.thread_id for idle in due]),
                last_runs=bigints([idle.look.last_run for idle in due]),
                state_times=bigints([idle.look.state_at for idle in due]),
            )
        return [due[row["number"] - 1] for row in rows]


_idle_readers = _IdleReaders()


class ThreadReader(ABC, Generic[Shown]):
    """A reader of one thread."""

    def __init__(self, deployment_id: UUID, thread_id: UUID) -> None:
        self._deployment_id, self._thread_id = deployment_id, thread_id
        self._after = 0  # number of the last run that has been shown or skipped
        self._is_awaited = False  # the thread may be created later

    def batches(self, wake_ups: Reader, quiet_seconds: Callable[[], float]) -> Iterator[list[Shown]]:
        """Yield what the reader gets, in batches, until the thread is deleted. Yields [] when nothing has happened.

        `wake_ups` listens to the thread's channel. `quiet_seconds()` is the longest wait before an empty batch. Raises
        Stopping when the process shuts down.
        """
        while True:
            try:
                look = self._look()
            except Unavailable as error:
                log.warning("thread %s: its runs cannot be read now: %s", self._thread_id, error)
                yield from self._pause(wake_ups, quiet_seconds)
                continue
            if look is None and not self._is_awaited:
                return
            if look is not None:
                self._is_awaited = False
                yield from self._between(look)
            if look is None:
                yield from self._pause(wake_ups, quiet_seconds)
            elif look.run is None:
                self._after = look.last_run
                yield from self._wait(look, wake_ups, quiet_seconds)
            else:
                yield from self._run(look.run, quiet_seconds)
                self._after = look.run["created_seq"]

    @property
    def _keys(self) -> dict[str, UUID]:
        return {"deployment_id": self._deployment_id, "thread_id": self._thread_id}

    @abstractmethod
    def _look(self) -> Look | None:
        """Poll the thread. Returns None if it does not exist. Raises Unavailable."""

    def _between(self, look: Look) -> Sequence[list[Shown]]:
        """Return batches to yield before the next run."""
        return ()

    @abstractmethod
    def _run(self, run: Any, quiet_seconds: Callable[[], float]) -> Iterator[list[Shown]]:
        """Yield the batches of one run, to its end."""

    def _wait(
        self, look: Look, wake_ups: Reader, quiet_seconds: Callable[[], float]
    ) -> Iterator[list[Shown]]:
        """Wait for a change since `look`. Yields [] when nothing has happened."""
        idle = _Idle(
            wake_ups=wake_ups,
            seconds=LOOK_SECONDS,
            due_at=time.monotonic() + LOOK_SECONDS,
            deployment_id=self._deployment_id,
            thread_id=self._thread_id,
            look=look,
        )
        with _idle_readers.polling(idle):
            while not idle.has_changed:
                seconds = idle.seconds_left
                if seconds <= 0:
                    _idle_readers.poll()
                    continue
                notified, missed = wake_ups.take(min(quiet_seconds(), seconds))
                yield []
                if notified or missed:
                    return

    def _pause(self, wake_ups: Reader, quiet_seconds: Callable[[], float]) -> Iterator[list[Shown]]:
        """Wait for a wake-up, or until the next poll is due. Yields [] when nothing has happened."""
        deadline = time.monotonic() + LOOK_SECONDS
        while (seconds := deadline - time.monotonic()) > 0:
            notified, missed = wake_ups.take(min(quiet_seconds(), seconds))
            yield []
            if notified or missed:
                return
