"""The event loop that graphs run on, the threads of synchronous nodes, and the watch over both.

The loop is asyncio's, without needless wake-ups of itself.
LangGraph passes each streamed chunk by `call_soon_threadsafe`, mostly on the loop's own thread. asyncio then writes to
a socket to wake the loop, and reads that socket in the next turn: two system calls for a loop that was not waiting.

The consumer of a chunk would be resumed four turns later, and a turn of a host with many runs takes long. Chunks of a
queue with a receiver (`receiving`) therefore skip the queue.

Runs of each depth have their own threads (`shared/runs/nesting.py`), because a node that waits for a nested run keeps
its thread. The pool knows the runs that wait for a thread.

Damage is a change that a node made to the process and that would break all later runs. The host cannot undo it: it
reports the damage, and the runner sends it no new runs. A blocked event loop cannot report itself, so a separate thread
watches it and logs the line of code that blocks it.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
from _thread import get_ident
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from json import dumps as json_dumps
from math import inf
from resource import RLIM_INFINITY, RLIMIT_NOFILE, RLIMIT_NPROC, getrlimit
from sys import modules
from threading import active_count
from time import monotonic, sleep
from types import FrameType
from typing import Any

from . import frames
from .connection import Connection
from .output import current_run_id

current_depth: ContextVar[int] = ContextVar("current_depth", default=0)  # of the run

TICK_SECONDS = 1.0
BLOCKED_SECONDS = 5.0


Receiver = Callable[[Any], None]


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
        self._loop_thread = get_ident()
        self._receivers: dict[int, Receiver] = {}  # by the id of the queue
        self._received = asyncio.Handle(lambda: None, (), self)  # the handle of every received item

    @contextmanager
    def receiving(self, queue: asyncio.Queue[Any], receiver: Receiver) -> Iterator[None]:
        """Pass items that `call_soon_threadsafe` would put into this queue to a receiver, within the block.

        Items of the loop's own thread are passed at once.
        """
        self._receivers[id(queue)] = receiver
        try:
            yield
        finally:
            del self._receivers[id(queue)]

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        receiver = self._receivers.get(id(getattr(callback, "__self__", None)))
        if self._waits.is_waiting or get_ident() != self._loop_thread:
            return super().call_soon_threadsafe(receiver or callback, *args, context=context)
        if receiver is not None:
            receiver(*args)
            return self._received
        self._waits.has_more = True
        return self.call_soon(callback, *args, context=context)


class NodeThreads(ThreadPoolExecutor):
    """A thread pool that records the run and the submit time of each call.

    A node may wait for another run of its deployment. A run that was created without naming its caller may have the
    same depth as the node's run. When all threads of a depth wait for such runs, no call of that depth ends by itself,
    and the runs that wait for a thread must be executed in another host.
    """

    def __init__(self, most: int) -> None:
        super().__init__(most, thread_name_prefix="node")
        self._most = most
        self._nested: dict[int, ThreadPoolExecutor] = {}  # by depth
        self._calls: dict[Future[Any], tuple[bytes, int, float]] = {}  # unfinished: run, depth, submit time

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn` on a thread, for the current run."""
        depth = current_depth.get()
        future = self._submit_to(depth)(fn, *args, **kwargs)
        self._calls[future] = (current_run_id.get(), depth, monotonic())
        future.add_done_callback(self._calls.pop)
        return future

    def _submit_to(self, depth: int) -> Callable[..., Future[Any]]:
        if not depth:
            return super().submit
        if depth not in self._nested:
            self._nested[depth] = ThreadPoolExecutor(self._most, thread_name_prefix=f"node-{depth}")
        return self._nested[depth].submit

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads of each depth."""
        for pool in self._nested.values():
            pool.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)

    @property
    def queued(self) -> int:
        """The number of calls that wait for a thread."""
        by_depth = Counter(depth for _, depth, _ in self._calls.copy().values())
        return sum(max(calls - self._most, 0) for calls in by_depth.values())

    def starved(self, seconds: float) -> set[bytes]:
        """Return the runs all of whose calls have waited this long for a thread."""
        limit = monotonic() - seconds
        waiting, others = set(), {frames.NOBODY}
        for future, (run_id, _, submitted_at) in self._calls.copy().items():
            is_starved = submitted_at <= limit and not future.running()
            (waiting if is_starved else others).add(run_id)
        return waiting - others


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
            return "nodes left more threads running than half of the process's limit"
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
        threading.Thread(target=self._watch, name="loop-watch", daemon=True).start()

    def _tick(self) -> None:
        self._ran_at = monotonic()
        self._loop.call_later(TICK_SECONDS, self._tick)

    def _watch(self) -> None:
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
