"""The host's event loop, which schedules its own calls without wake-ups, and its thread pool for nodes."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.waiting import wait_until
from workers.graph_host.loop import Loop, NodeThreads, current_depth
from workers.graph_host.output import current_run_id

STUCK_SECONDS = 20  # after this, the loop wakes up anyway and the test fails


class CountingLoop(Loop):
    """A loop that counts its wake-ups."""

    wake_ups = 0

    def _write_to_self(self) -> None:
        self.wake_ups += 1
        super()._write_to_self()  # type: ignore[misc]  # missing in asyncio's type stubs


@pytest.fixture
def loop() -> Iterator[CountingLoop]:
    loop = CountingLoop()
    yield loop
    loop.close()


def run_until_called(loop: Loop, begin: Callable[[Callable[[], None]], Any]) -> bool:
    """Return whether the loop executed the callback that `begin` scheduled."""
    called: list[bool] = []

    def end(is_called: bool) -> None:
        called.append(is_called)
        loop.stop()

    stuck = loop.call_later(STUCK_SECONDS, end, False)
    begin(lambda: end(True))
    loop.run_forever()
    stuck.cancel()
    return called[0]


def test_what_the_loop_gives_itself_comes_in_order_and_without_a_wake_up(loop: CountingLoop) -> None:
    seen: list[str] = []

    def give() -> None:
        loop.call_soon(seen.append, "first")
        loop.call_soon_threadsafe(seen.append, "second")
        loop.call_soon(seen.append, "third")
        loop.call_soon_threadsafe(loop.stop)

    loop.call_soon(give)
    loop.run_forever()
    assert seen == ["first", "second", "third"]
    assert loop.wake_ups == 0


def test_another_thread_and_a_handler_of_a_signal_wake_a_loop_that_waits(loop: CountingLoop) -> None:
    def begin(done: Callable[[], None]) -> None:
        threading.Timer(0.05, loop.call_soon_threadsafe, (done,)).start()

    assert run_until_called(loop, begin)
    assert loop.wake_ups == 1

    earlier = signal.getsignal(signal.SIGALRM)

    def begin_by_signal(done: Callable[[], None]) -> None:
        signal.signal(signal.SIGALRM, lambda number, frame: loop.call_soon_threadsafe(done))
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    try:
        assert run_until_called(loop, begin_by_signal)
    finally:
        signal.signal(signal.SIGALRM, earlier)


def test_what_a_handler_gives_just_before_the_loop_waits_is_not_left_lying(loop: CountingLoop) -> None:
    waits = loop._waits
    select = waits.select

    def begin(done: Callable[[], None]) -> None:
        def interrupted(timeout: float | None = None) -> list[Any]:  # runs once the timeout has been computed
            waits.select = select  # type: ignore[method-assign]
            loop.call_soon_threadsafe(done)
            return select(timeout)

        waits.select = interrupted  # type: ignore[method-assign]

    assert run_until_called(loop, begin)


def test_what_is_given_can_be_cancelled_and_has_the_context_it_came_with(loop: CountingLoop) -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")
    seen: list[str] = []

    async def give() -> None:
        context = contextvars.copy_context()
        context.run(name.set, "given")
        loop.call_soon_threadsafe(lambda: seen.append(name.get()), context=context)
        loop.call_soon_threadsafe(seen.append, "cancelled").cancel()
        await asyncio.sleep(0)

    loop.run_until_complete(give())
    assert seen == ["given"]


def test_items_for_a_queue_with_a_receiver_are_received_at_once_and_from_other_threads(
    loop: CountingLoop,
) -> None:
    seen: list[str] = []
    queue: asyncio.Queue[str] = asyncio.Queue()
    other: asyncio.Queue[str] = asyncio.Queue()

    def give() -> None:
        with loop.receiving(queue, seen.append):
            loop.call_soon(seen.append, "called later")
            loop.call_soon_threadsafe(other.put_nowait, "other")
            loop.call_soon_threadsafe(queue.put_nowait, "own")
            assert seen == ["own"]
            thread = threading.Thread(target=loop.call_soon_threadsafe, args=(queue.put_nowait, "thread's"))
            thread.start()
            thread.join()
        loop.call_soon_threadsafe(queue.put_nowait, "after")
        loop.call_soon(loop.stop)

    loop.call_soon(give)
    loop.run_forever()
    assert seen == ["own", "called later", "thread's"]
    assert (queue.get_nowait(), other.get_nowait()) == ("after", "other")


# Threads for nodes


ONE, OTHER = b"1" * 16, b"2" * 16


class Threads:
    """A pool of two threads, with calls that block until the gate opens."""

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


def test_a_run_none_of_whose_calls_has_a_thread_is_starved_unless_it_calls_again() -> None:
    with blocked() as threads:
        threads.call(ONE, 3)
        wait_until(lambda: all(call.running() for call in threads.calls[:2]))
        threads.call(OTHER)

        assert threads.pool.starved(0) == {OTHER}
        assert threads.pool.starved(60) == set()

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
