"""The wait for the next part of an app's answer, which others may end: a client that leaves, a body that breaks off,
a server that stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import gevent

Part = tuple[bytes, bytes]

_all: WeakSet[Waiting] = WeakSet()


class Waiting:
    """One greenlet's waits, one after the other."""

    def __init__(self) -> None:
        self._alarm = gevent.Timeout()  # never started: it is what the wait is woken with
        self._greenlet: Any = None
        self.reason: Exception | None = None
        _all.add(self)

    def next(self, parts: Iterator[Part]) -> Part | None:
        """The next part, None after the last one. Raises the reason for which waiting was ended."""
        if self.reason is not None:
            raise self.reason
        self._greenlet = gevent.getcurrent()
        try:
            return next(parts, None)
        except gevent.Timeout as alarm:
            if alarm is not self._alarm or self.reason is None:
                raise
            raise self.reason from None
        finally:
            self._greenlet = None

    def end(self, reason: Exception) -> None:
        """Wait no longer, neither now nor later; may be called from anywhere in the process."""
        if self.reason is None:
            self.reason = reason
        if self._greenlet is not None:
            gevent.get_hub().loop.run_callback(self._throw)

    def _throw(self) -> None:
        if self._greenlet is not None:
            self._greenlet.throw(self._alarm)


def end_all(reason: Exception) -> None:
    """End what this process waits for from apps: it stops."""
    for waiting in list(_all):
        waiting.end(reason)
