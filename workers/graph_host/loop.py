"""The loop that graphs run on: asyncio's own, but for one that wakes itself.

The graph library hands each thing that it streams over by `call_soon_threadsafe`, mostly on the loop's own thread.
asyncio writes to a socket then, so that the loop does not wait, and reads it again a turn later: two system calls for
a loop that was not waiting.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

from .standard import get_ident


class Selector(selectors.DefaultSelector):
    """Knows whether the loop waits in it, and does not let it wait past what it was given meanwhile."""

    is_waiting = False
    has_more = False  # the loop was given something by its own thread

    def select(self, timeout: float | None = None) -> list[Any]:
        self.is_waiting = True  # before looking: a signal's handler comes in at any place
        if self.has_more:
            self.has_more, timeout = False, 0
        try:
            return super().select(timeout)
        finally:
            self.is_waiting = False


class Loop(asyncio.SelectorEventLoop):
    """The loop of the thread that makes it."""

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
