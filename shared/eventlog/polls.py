"""Polls of the database that the readers of a process share: one statement polls for all that are due soon."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from shared.errors import Unavailable
from shared.eventlog.hub import Reader

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True, kw_only=True)
class Polling:
    """A reader that polls every `seconds`. `has_changed`: a poll has found a change."""

    wake_ups: Reader
    seconds: float
    due_at: float
    has_changed: bool = False

    @property
    def seconds_left(self) -> float:
        return self.due_at - time.monotonic()


Polled = TypeVar("Polled", bound=Polling)


class SharedPolls(ABC, Generic[Polled]):
    """The polling readers of this process. A due reader polls for all that are due soon, and wakes those with changes.

    `most` is the maximum number of readers in a statement.
    """

    most: int

    def __init__(self) -> None:
        self._all: set[Polled] = set()
        self._lock = threading.Lock()

    @abstractmethod
    def _changed(self, due: Sequence[Polled]) -> Iterable[Polled]:
        """Poll for these readers, and return those with a change. Raises Unavailable."""

    @contextmanager
    def polling(self, reader: Polled) -> Iterator[None]:
        """Poll for a reader while the context is open."""
        with self._lock:
            self._all.add(reader)
        try:
            yield
        finally:
            with self._lock:
                self._all.remove(reader)

    def poll(self) -> None:
        """Poll for all readers that are due now or soon. A failed poll is repeated after the interval."""
        due = self._take_due()
        if not due:
            return
        try:
            changed = self._changed(due)
        except Unavailable as error:
            log.warning("%d readers: cannot look for changes now: %s", len(due), error)
            return
        for reader in changed:
            reader.has_changed = True
            reader.wake_ups.wake()

    def _take_due(self) -> list[Polled]:
        now = time.monotonic()
        with self._lock:
            # Readers that were added one by one share a poll before long.
            due = [reader for reader in self._all if reader.due_at <= now + reader.seconds / 2]
            due = sorted(due, key=lambda reader: reader.due_at)[: self.most]
            for reader in due:
                reader.due_at = now + reader.seconds
        return due
