"""The threads of a graph host: what waits for one, and which runs get none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.waiting import wait_until
from workers.graph_host.output import current_run_id
from workers.graph_host.threads import NodeThreads, current_depth

ONE, OTHER = b"1" * 16, b"2" * 16


class Threads:
    """Two threads, and calls that return when they are let go."""

    def __init__(self) -> None:
        self.pool = NodeThreads(2)
        self.gate = threading.Event()
        self.calls: list[Future[Any]] = []

    def call(self, run_id: bytes, times: int = 1) -> None:
        current_run_id.set(run_id)
        self.calls += [self.pool.submit(self.gate.wait) for _ in range(times)]

    def open(self) -> None:
        self.gate.set()
        wait(self.calls)


@contextmanager
def blocked() -> Iterator[Threads]:
    threads = Threads()
    token = current_run_id.set(ONE)
    try:
        yield threads
    finally:
        current_run_id.reset(token)
        threads.open()
        threads.pool.shutdown()


@pytest.mark.parametrize(("calls", "queued"), [(1, 0), (2, 0), (5, 3)])
def test_calls_beyond_the_threads_wait(calls: int, queued: int) -> None:
    with blocked() as threads:
        threads.call(ONE, calls)
        assert threads.pool.queued == queued

        threads.open()
        assert threads.pool.queued == 0


def test_a_call_that_was_cancelled_waits_no_more() -> None:
    with blocked() as threads:
        threads.call(ONE, 3)
        threads.calls.pop().cancel()

        assert threads.pool.queued == 0


def test_a_run_none_of_whose_calls_has_a_thread_is_starved() -> None:
    with blocked() as threads:
        threads.call(ONE, 3)
        wait_until(lambda: all(call.running() for call in threads.calls[:2]))
        threads.call(OTHER)

        assert threads.pool.starved(0) == {OTHER}
        assert threads.pool.starved(60) == set()


def test_a_run_that_calls_again_is_not_starved_yet() -> None:
    with blocked() as threads:
        threads.call(ONE, 2)
        wait_until(lambda: all(call.running() for call in threads.calls))
        threads.call(OTHER)
        future = threads.calls[-1]
        run_id, depth, since = threads.pool._calls[future]
        threads.pool._calls[future] = (run_id, depth, since - 60)
        assert threads.pool.starved(30) == {OTHER}

        threads.call(OTHER)
        assert threads.pool.starved(30) == set()


def test_runs_of_each_depth_have_threads_of_their_own() -> None:
    with blocked() as threads:
        threads.call(ONE, 4)
        token = current_depth.set(1)
        try:
            nested = threads.pool.submit(threading.get_ident)
            threads.call(OTHER, 3)
        finally:
            current_depth.reset(token)

        assert nested.result(timeout=10)
        assert threads.pool.queued == 2 + 1
