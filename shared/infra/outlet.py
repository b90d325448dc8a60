"""Writes to a descriptor without ever waiting for whoever reads it.

The command line uses it too, most of which has nothing to do with gevent: that is asked, never loaded.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from _queue import SimpleQueue  # queue's is another one once gevent has patched it
from collections.abc import Callable
from typing import Any

MOST_WAITING = 10_000  # lines that are kept for a reader who does not keep up


def unpatched(module: str, name: str) -> Any:
    """This function as it is without gevent."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey.get_original(module, name) if monkey else getattr(importlib.import_module(module), name)


select = unpatched("select", "select")
sleep = unpatched("time", "sleep")
start_new_thread = unpatched("_thread", "start_new_thread")


class Outlet:
    """A descriptor that a thread of its own writes to, line by line in order, and drops what does not fit.

    The thread and what it waits on are the system's, also under gevent: it is there to be blocked. Each line
    carries how many were dropped before it, so that the notice of them comes where they would have been.
    """

    def __init__(self, descriptor: int, notice: Callable[[int], bytes]) -> None:
        self._descriptor, self._notice = descriptor, notice
        self._dropped = 0  # by `put`
        self._begin()
        os.register_at_fork(
            after_in_child=self._begin
        )  # threads do not come along, lines belong to the parent

    def _begin(self) -> None:
        self._lines: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
        self._written = self._accepted = 0
        self._reported = self._dropped
        self._is_writing = False

    def put(self, line: bytes) -> None:
        """Never waits."""
        if not self._is_writing:
            self._is_writing = True
            start_new_thread(self._write_forever, ())
        if self._accepted - self._written >= MOST_WAITING:
            self._dropped += 1
            return
        self._accepted += 1
        self._lines.put((self._dropped, line))

    def flush(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._written < self._accepted and time.monotonic() < deadline:
            sleep(0.001)

    def _write_forever(self) -> None:
        while True:
            dropped, line = self._lines.get()
            self._report(dropped)
            self._write(line)
            self._written += 1
            if self._lines.empty():
                self._report(self._dropped)

    def _report(self, dropped: int) -> None:
        if dropped > self._reported:
            self._write(self._notice(dropped - self._reported))
            self._reported = dropped

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # somebody else has made it so
                select((), (self._descriptor,), ())
            except OSError:
                return  # there is no reader any more, and nobody to tell
