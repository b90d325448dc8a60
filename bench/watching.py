"""Idle streams: their cost to the server, and their effect on concurrent runs."""

from __future__ import annotations

import asyncio
import resource

from bench.client import Reply
from bench.measuring import Row
from bench.remembering import server_of
from bench.server import Server
from bench.session import ECHO, Session
from bench.targets import TargetError

OPEN_AT_ONCE = 32
LOOK_SECONDS = 0.02


async def measure(session: Session) -> None:
    """Measure one client's runs and the memory, without and with many clients that stream idle threads."""
    server = server_of(session)
    _raise_open_files()
    alone = await _runs(session)
    before = session.processes.memory_mb()
    session.emit("watching", "no_streams", {**alone, **_memory(before)})
    for count in session.options.watchers:
        await _beside(session, server, count, alone, before)


async def _beside(session: Session, server: Server, count: int, alone: Row, before: dict[str, float]) -> None:
    threads = iter(await session.threads(count))
    replies: list[Reply] = []
    tasks: list[asyncio.Task[None]] = []

    async def opener() -> None:
        for thread in threads:
            replies.append(reply := Reply())
            tasks.append(asyncio.create_task(server.watch(thread, reply)))
            while not reply.status and not reply.error:
                await asyncio.sleep(LOOK_SECONDS)

    try:
        await asyncio.gather(*(opener() for _ in range(OPEN_AT_ONCE)))
        row = await _runs(session)
        during = session.processes.memory_mb()
        is_open = [
            reply.status == 200 and not task.done() for reply, task in zip(replies, tasks, strict=True)
        ]
        if not any(is_open):
            raise TargetError(f"no thread can be watched: {replies[0].error or replies[0].status}")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    row |= {"streams": sum(is_open), "streams_lost": is_open.count(False), **_memory(during)}
    if during:
        row["streams_memory_mb"] = round(sum(during.values()) - sum(before.values()), 1)
    if "whole_ms_p50" in row and "whole_ms_p50" in alone:
        row["times_alone"] = round(row["whole_ms_p50"] / alone["whole_ms_p50"], 3)
    session.emit("watching", f"{count}_streams", row)


async def _runs(session: Session) -> Row:
    tally, window = await session.one_by_one(ECHO)
    return {**tally.report(), **tally.whole_runs(), **window.report(len(tally.outcomes))}


def _memory(by_process: dict[str, float]) -> Row:
    if not by_process:
        return {}
    return {"memory_mb": round(sum(by_process.values()), 1), "memory_mb_by": by_process}


def _raise_open_files() -> None:
    """Raise the limit of open files: each stream also needs a descriptor in this process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
