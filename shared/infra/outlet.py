"""Writing to a descriptor without blocking on its reader.

The command line uses this module too, mostly without gevent. It therefore looks gevent up and never imports it.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from _queue import SimpleQueue  # queue.SimpleQueue is another class once gevent has patched it
from collections.abc import Callable
from typing import Any

MOST_WAITING = 10_000  # lines kept for a slow reader


def unpatched(module: str, name: str) -> Any:
    """Return this function of a module as it was before gevent patched it."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey.get_original(module, name) if monkey else getattr(importlib.import_module(module), name)


select = unpatched("select", "select")
sleep = unpatched("time", "sleep")
start_new_thread = unpatched("_thread", "start_new_thread")


class Outlet:
    """A descriptor with its own writer thread. Lines are written in order; lines over MOST_WAITING are dropped.

    The thread and its primitives are real ones, also under gevent, because the thread is meant to block. Each line
    carries how many lines were dropped before it, so that the notice about them appears in their place.
    """

    def __init__(self, descriptor: int, notice: Callable[[int], bytes]) -> None:
        self._descriptor, self._notice = descriptor, notice
        self._dropped = 0  # lines dropped by `put` so far
        self._begin()
        # A forked child has no writer thread, and the queued lines belong to the parent.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lines: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
        self._written = self._accepted = 0
        self._reported = self._dropped
        self._is_writing = False

    def put(self, line: bytes) -> None:
        """Queue a line. Never blocks."""
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
            except BlockingIOError:  # another process made the descriptor non-blocking
                select((), (self._descriptor,), ())
            except OSError:
                return  # the reader is gone, and there is no other place to report it
