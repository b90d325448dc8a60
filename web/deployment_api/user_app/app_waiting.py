"""Waiting for the next part of an app's answer. Other greenlets can end the wait: when the client disconnects, when the
request's body breaks off, and when the server stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import gevent

from web.http.connections import shutdown_hooks

Part = tuple[bytes, bytes]

_all: WeakSet[Waiting] = WeakSet()


class Waiting:
    """The successive waits of one greenlet, which other greenlets can end."""

    def __init__(self) -> None:
        self._alarm = gevent.Timeout()  # never started: only thrown into the greenlet to wake it
        self._greenlet: Any = None
        self.reason: Exception | None = None
        _all.add(self)

    def next(self, parts: Iterator[Part]) -> Part | None:
        """Return the next part, or None after the last one. Raises the reason given to `end`."""
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
        """End the current wait and all later ones with this reason. May be called from any greenlet of the process."""
        if self.reason is None:
            self.reason = reason
        if self._greenlet is not None:
            gevent.get_hub().loop.run_callback(self._throw)

    def _throw(self) -> None:
        if self._greenlet is not None:
            self._greenlet.throw(self._alarm)


def end_all(reason: Exception) -> None:
    """End all waits of this process, because it shuts down."""
    for waiting in list(_all):
        waiting.end(reason)


shutdown_hooks.append(end_all)
