"""The threads that synchronous nodes run on, and which runs wait for one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from . import frames
from .output import current_run_id
from .standard import monotonic


class NodeThreads(ThreadPoolExecutor):
    """A pool that knows of each call whose it is and since when it waits.

    A node may wait for another run of its deployment. When all threads do so, the runs they wait for must be
    executed elsewhere: nothing here ends by itself.
    """

    def __init__(self, most: int) -> None:
        super().__init__(most, thread_name_prefix="node")
        self._most = most
        self._calls: dict[Future[Any], tuple[bytes, float]] = {}  # not done: of which run, and since when

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call this on a thread, for the current run."""
        future = super().submit(fn, *args, **kwargs)
        self._calls[future] = (current_run_id.get(), monotonic())
        future.add_done_callback(self._calls.pop)
        return future

    @property
    def queued(self) -> int:
        """How many calls wait for a thread."""
        return max(len(self._calls) - self._most, 0)

    def starved(self, seconds: float) -> set[bytes]:
        """The runs all of whose calls have waited so long."""
        limit = monotonic() - seconds
        waiting, others = set(), {frames.NOBODY}
        for future, (run_id, submitted_at) in self._calls.copy().items():
            is_starved = submitted_at <= limit and not future.running()
            (waiting if is_starved else others).add(run_id)
        return waiting - others
