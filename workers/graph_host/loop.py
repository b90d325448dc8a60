"""The event loop that graphs run on: asyncio's loop, without needless wake-ups of itself.

LangGraph passes each streamed chunk by `call_soon_threadsafe`, mostly on the loop's own thread. asyncio then writes to
a socket to wake the loop, and reads that socket in the next turn: two system calls for a loop that was not waiting.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

from .standard import get_ident


class Selector(selectors.DefaultSelector):
    """A selector that records whether the loop waits in it, and returns at once if callbacks were added meanwhile."""

    is_waiting = False
    has_more = False  # the loop's own thread has added a callback

    def select(self, timeout: float | None = None) -> list[Any]:
        self.is_waiting = True  # set before `has_more` is read: a signal handler may run at any point
        if self.has_more:
            self.has_more, timeout = False, 0
        try:
            return super().select(timeout)
        finally:
            self.is_waiting = False


class Loop(asyncio.SelectorEventLoop):
    """An event loop that belongs to the thread that creates it."""

    def __init__(self) -> None:
        self._waits = Selector()
        super().__init__(self._waits)
        self._own_thread = get_ident()

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        if self._waits.is_waiting or get_ident() != self._own_thread:
            return super().call_soon_threadsafe(callback, *args, context=context)
        self._waits.has_more = True
        return self.call_soon(callback, *args, context=context)
