"""The health of the process: damage by user code, and user code that blocks the event loop.

Damage is a change that a node made to the process and that would break all later runs. The host cannot undo it: it
reports the damage, and the runner sends it no new runs. A blocked event loop cannot report itself, so a separate thread
watches it and logs the line of code that blocks it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from math import inf
from resource import RLIM_INFINITY, RLIMIT_NOFILE, RLIMIT_NPROC, getrlimit
from sys import modules
from threading import active_count
from types import FrameType

from . import frames
from .connection import Connection
from .standard import get_ident, json_dumps, monotonic, sleep

TICK_SECONDS = 1.0
BLOCKED_SECONDS = 5.0


class DamageWatch:
    """Compares the process with its state when the graphs were loaded."""

    def __init__(self) -> None:
        self._files = _most(RLIMIT_NOFILE)
        self._threads = _most(RLIMIT_NPROC) / 2

    def describe(self) -> str | None:
        """Return a description of the damage; None if there is none."""
        if _most(RLIMIT_NOFILE) < self._files:
            return "a node lowered the limit of open files"
        if __name__ not in modules:
            return "a node removed loaded modules"
        if active_count() > self._threads:
            return "nodes left more threads than half of what it may have"
        return None


def _most(resource: int) -> float:
    most, _ = getrlimit(resource)
    return inf if most == RLIM_INFINITY else most


class LoopWatch:
    """Watches the loop of the calling thread from a separate thread, and logs when it has not run for BLOCKED_SECONDS."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        self._loop = loop
        self._connection = connection
        self._thread = get_ident()
        self._ran_at = monotonic()
        self._tick()
        threading.Thread(target=self._look, name="loop-watch", daemon=True).start()

    def _tick(self) -> None:
        self._ran_at = monotonic()
        self._loop.call_later(TICK_SECONDS, self._tick)

    def _look(self) -> None:
        reported_at = 0.0
        while True:
            sleep(TICK_SECONDS)
            blocked = monotonic() - self._ran_at
            if blocked < BLOCKED_SECONDS or self._ran_at == reported_at:
                continue
            frame = sys._current_frames().get(self._thread)
            where = _user_frame(frame)
            message = f"{where} has blocked the event loop for {blocked:.0f} s: no other run can go on"
            document = {"level": "WARNING", "message": message, "logger": "runyard"}
            if self._connection.send_from_outside(frames.LOG, frames.NOBODY, json_dumps(document).encode()):
                reported_at = self._ran_at


def _user_frame(frame: FrameType | None) -> str:
    """Return the innermost frame of the project's code as text, or the innermost frame of any code."""
    directory = os.getcwd() + os.sep
    innermost = frame
    while frame is not None:
        path = frame.f_code.co_filename
        if os.path.abspath(path).startswith(directory) and "site-packages" not in path:
            innermost = frame
            break
        frame = frame.f_back
    if innermost is None:
        return "something"
    name = os.path.relpath(innermost.f_code.co_filename, directory)
    return f"{innermost.f_code.co_name} ({name}:{innermost.f_lineno})"
