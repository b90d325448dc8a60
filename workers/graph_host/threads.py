"""The threads that synchronous nodes run on, and which runs wait for one.

Runs of each depth have threads of their own (`shared/runs/nesting.py`): a node that waits for a nested run keeps its thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from . import frames
from .output import current_run_id
from .standard import monotonic

current_depth: ContextVar[int] = ContextVar("current_depth", default=0)  # of the run


class NodeThreads(ThreadPoolExecutor):
    """A pool that knows of each call whose it is and since when it waits.

    A node may wait for another run of its deployment. When all threads of a depth wait for runs of that depth, which
    did not say who called them, those runs must be executed elsewhere: nothing here ends by itself.
    """

    def __init__(self, most: int) -> None:
        super().__init__(most, thread_name_prefix="node")
        self._most = most
        self._nested: dict[int, ThreadPoolExecutor] = {}  # by depth
        self._calls: dict[Future[Any], tuple[bytes, int, float]] = {}  # not done: run, depth, since when

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call this on a thread, for the current run."""
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
        """How many calls wait for a thread."""
        by_depth = Counter(depth for _, depth, _ in self._calls.copy().values())
        return sum(max(calls - self._most, 0) for calls in by_depth.values())

    def starved(self, seconds: float) -> set[bytes]:
        """The runs all of whose calls have waited so long."""
        limit = monotonic() - seconds
        waiting, others = set(), {frames.NOBODY}
        for future, (run_id, _, submitted_at) in self._calls.copy().items():
            is_starved = submitted_at <= limit and not future.running()
            (waiting if is_starved else others).add(run_id)
        return waiting - others
