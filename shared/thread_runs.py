"""Follows a thread's runs one after the other, for as long as a reader stays; what it shows of them is its kind's.

Runners publish a wake-up when a run's log begins, writers of state when it is written. It may be lost: the rows are
looked at now and then anyway, in one statement for all readers of the process for whom nothing happens.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import UUID

from sqlalchemy import text

from shared.errors import Unavailable
from shared.eventlog.hub import Reader
from shared.infra.postgres import connection

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0  # between two looks at the rows without a wake-up
LOOKED_AT_ONCE = 1_000  # threads a statement

Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True)
class Look:
    """What the rows say of a thread: its newest run's number, and the next run to follow."""

    last_run: int
    run: Any  # its row, with `created_seq`; None: there is none yet
    state_at: int = 0  # microseconds: when its state was last moved


@dataclass(eq=False, slots=True)
class _Idle:
    """A reader that waits for something to happen on its thread since the last look."""

    deployment_id: UUID
    thread_id: UUID
    look: Look
    wake_ups: Reader
    has_moved: bool = False
    due_at: float = field(default_factory=lambda: time.monotonic() + LOOK_SECONDS)


class _IdleReaders:
    """Those of this process. One that is due looks for all that soon are, and wakes those whose threads have moved."""

    # A thread that is gone has moved too.
    MOVED = text("""
SELECT known.number
FROM unnest(CAST(:deployments AS uuid[]), CAST(:threads AS uuid[]), CAST(:runs AS bigint[]), CAST(:states AS bigint[]))
    WITH ORDINALITY AS known (deployment_id, thread_id, last_seq, state_at, number)
LEFT JOIN thread AS t ON t.deployment_id = known.deployment_id AND t.thread_id = known.thread_id
WHERE t.last_seq IS DISTINCT FROM known.last_seq
    OR known.state_at <> 0 AND CAST(extract(epoch FROM t.state_updated_at) * 1000000 AS bigint) <> known.state_at
""")

    def __init__(self) -> None:
        self._all: dict[int, _Idle] = {}
        self._lock = threading.Lock()

    def add(self, idle: _Idle) -> None:
        with self._lock:
            self._all[id(idle)] = idle

    def remove(self, idle: _Idle) -> None:
        with self._lock:
            del self._all[id(idle)]

    def look(self) -> None:
        """Look for all that are due or soon are; what cannot be looked at now is due again in its time."""
        due = self._take_due()
        if not due:
            return
        known = {
            "deployments": [idle.deployment_id for idle in due],
            "threads": [idle.thread_id for idle in due],
            "runs": [idle.look.last_run for idle in due],
            "states": [idle.look.state_at for idle in due],
        }
        try:
            with connection() as conn:
                moved = conn.execute(self.MOVED, known).scalars().all()
        except Unavailable as error:
            log.warning("%d threads: whether runs began there cannot be looked up now: %s", len(due), error)
            return
        for number in moved:
            due[number - 1].has_moved = True
            due[number - 1].wake_ups.wake()

    def _take_due(self) -> list[_Idle]:
        now = time.monotonic()
        with self._lock:
            soon = now + LOOK_SECONDS / 2  # so that those who came one by one are soon looked for together
            due = [idle for idle in self._all.values() if idle.due_at <= soon]
            due = sorted(due, key=lambda idle: idle.due_at)[:LOOKED_AT_ONCE]
            for idle in due:
                idle.due_at = now + LOOK_SECONDS
        return due


_idle_readers = _IdleReaders()


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

    def _wait(
        self, look: Look, wake_ups: Reader, quiet_seconds: Callable[[], float]
    ) -> Iterator[list[Shown]]:
        """Until there may be more than at this look."""
        idle = _Idle(self._deployment_id, self._thread_id, look, wake_ups)
        _idle_readers.add(idle)
        try:
            while not idle.has_moved:
                left = idle.due_at - time.monotonic()
                if left <= 0:
                    _idle_readers.look()
                    continue
                notified, missed = wake_ups.take(min(quiet_seconds(), left))
                yield []
                if notified or missed:
                    return
        finally:
            _idle_readers.remove(idle)

    def _pause(self, wake_ups: Reader, quiet_seconds: Callable[[], float]) -> Iterator[list[Shown]]:
        """The same without a look to compare with: until it is time for the next."""
        deadline = time.monotonic() + LOOK_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            notified, missed = wake_ups.take(min(quiet_seconds(), left))
            yield []
            if notified or missed:
                return
