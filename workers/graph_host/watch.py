"""Detection of user code that blocks the event loop, with the line of code that blocks it.

A blocked loop cannot report this itself, so a separate thread watches it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from types import FrameType

from . import frames
from .connection import Connection
from .standard import get_ident, json_dumps, monotonic, sleep

TICK_SECONDS = 1.0
BLOCKED_SECONDS = 5.0


def start(loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
    """Watch the loop of the calling thread."""
    Watch(loop, connection, get_ident())


class Watch:
    """Watches an event loop from a separate thread, and logs when it has not run for BLOCKED_SECONDS."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection, thread: int) -> None:
        self._loop = loop
        self._connection = connection
        self._thread = thread
        self._ran_at = monotonic()
        self._tick()
        threading.Thread(target=self._look, name="loop-watch", daemon=True).start()

    def _tick(self) -> None:
        self._ran_at = monotonic()
        self._loop.call_later(TICK_SECONDS, self._tick)

    def _look(self) -> None:
        told_at = 0.0
        while True:
            sleep(TICK_SECONDS)
            blocked = monotonic() - self._ran_at
            if blocked < BLOCKED_SECONDS or self._ran_at == told_at:
                continue
            frame = sys._current_frames().get(self._thread)
            where = _user_frame(frame)
            message = f"{where} has blocked the event loop for {blocked:.0f} s: no other run can go on"
            document = {"level": "WARNING", "message": message, "logger": "runyard"}
            if self._connection.send_from_outside(frames.LOG, frames.NOBODY, json_dumps(document).encode()):
                told_at = self._ran_at


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
