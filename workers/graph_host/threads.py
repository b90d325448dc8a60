"""The threads that synchronous nodes run on, and the runs that wait for a thread.

Runs of each depth have their own threads (`shared/runs/nesting.py`), because a node that waits for a nested run keeps
its thread.
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
