"""The cost of stored data: runs on a thread with a long history, and searches among many threads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from bench.client import Reply
from bench.measuring import Row, milliseconds
from bench.server import Server
from bench.session import ECHO, Session, Tally, on_thread
from bench.targets import TargetError

MAKERS = 32  # concurrent clients that fill the server
USERS, TENANTS = 1_000, 10  # number of distinct values in the threads' metadata
HISTORY = 10  # states per page

Ask = Callable[[], Awaitable[Reply]]


def server_of(session: Session) -> Server:
    """Return the target if it is a server. Raises TargetError otherwise."""
    if not isinstance(session.target, Server):
        raise TargetError("only a server keeps what is to be measured: give --base-url")
    return session.target


async def long_thread(session: Session) -> None:
    """Measure a run, a read of the newest state and a page of history on a thread with many past runs."""
    server = server_of(session)
    thread = await server.create_thread()
    for _ in range(session.options.past_runs):
        outcome = await session.run(on_thread(ECHO, thread))
        if outcome.error:
            raise TargetError(f"a run of graph `echo` failed: {outcome.error}")
    await _runs_on(session, thread)
    await _asked(session, "long_thread", "newest_state", lambda: server.get(f"/threads/{thread}/state"))
    page = f"/threads/{thread}/history?limit={HISTORY}"
    await _asked(session, "long_thread", f"history_of_{HISTORY}", lambda: server.get(page))


async def _runs_on(session: Session, thread: str) -> None:
    """Alternate runs on the long thread with runs on new threads, so that disturbances affect both alike."""
    fresh = await session.threads(session.options.samples)
    first, one_more = Tally(), Tally()
    with session.window() as window:
        for new in fresh:
            first.add(await session.run(on_thread(ECHO, new)))
            one_more.add(await session.run(on_thread(ECHO, thread)))
    median = first.whole_runs().get("whole_ms_p50")
    for case, tally in (("first_run", first), (f"after_{session.options.past_runs}_runs", one_more)):
        row = {**tally.report(), **tally.whole_runs(), **window.report(len(tally.outcomes))}
        if median and "whole_ms_p50" in row:
            row["times_the_first"] = round(row["whole_ms_p50"] / median, 3)
        session.emit("long_thread", case, row)


async def search(session: Session) -> None:
    """Measure thread searches among many threads."""
    server = server_of(session)
    await _fill(session, server)
    filters = {
        f"one_in_{USERS}": {"metadata": {"user": "u7"}},
        f"one_in_{TENANTS}": {"metadata": {"tenant": "t7"}},
        "both": {"metadata": {"user": "u7", "tenant": "t7"}},
        "none_of_them": {"metadata": {"user": "nobody"}},
        "all": {},
    }
    for case, body in filters.items():
        await _asked(session, "search", case, lambda body=body: server.post("/threads/search", body))


async def _fill(session: Session, server: Server) -> None:
    """Create threads up to the requested number. Threads of an earlier repeat are reused."""
    counted = await server.post("/threads/count", {"metadata": {"made_by": "bench"}})
    if counted.status != 200:
        raise TargetError(f"POST /threads/count: {counted.error or counted.status}")

    async def maker(numbers: Iterator[int]) -> None:
        for number in numbers:
            await server.create_thread(_metadata(number))

    numbers = iter(range(json.loads(counted.body), session.options.search_threads))
    await asyncio.gather(*(maker(numbers) for _ in range(MAKERS)))


def _metadata(number: int) -> dict[str, Any]:
    return {"made_by": "bench", "user": f"u{number % USERS}", "tenant": f"t{number % TENANTS}"}


async def _asked(session: Session, scenario: str, case: str, ask: Ask) -> None:
    """Measure one client that repeats a request."""
    for _ in range(3):
        await ask()
    seconds: list[float] = []
    errors = 0
    with session.window() as window:
        while (
            len(seconds) + errors < session.options.samples
            and window.elapsed_seconds() < session.options.seconds
        ):
            reply = await ask()
            if reply.error or reply.status != 200:
                errors += 1
            else:
                seconds.append(reply.seconds)
    row: Row = {"answers": len(seconds), "errors": errors, **milliseconds("answer", seconds)}
    session.emit(scenario, case, {**row, **window.report(len(seconds))})
