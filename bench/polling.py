"""Callers who poll a revision until it is deployed: the latency of their requests, and the effect on runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from bench.client import Client, Reply
from bench.measuring import Row, milliseconds
from bench.server import Server
from bench.session import ECHO, PAUSE_AFTER_ERROR_SECONDS, Session
from bench.targets import TargetError

WAIT = "?wait=25"
NOT_MODIFIED = 304


@dataclass
class Polls:
    """The poll responses of one window."""

    seconds: list[float] = field(default_factory=list)
    errors: int = 0

    def add(self, reply: Reply) -> None:
        if reply.error or reply.status not in (200, NOT_MODIFIED):
            self.errors += 1
        else:
            self.seconds.append(reply.seconds)

    def report(self) -> Row:
        return {
            "polls": len(self.seconds),
            "poll_errors": self.errors,
            **milliseconds("poll", self.seconds),
        }


async def measure(session: Session) -> None:
    """Measure the latency of a poll, and the slowdown of runs beside many polling or long-polling callers."""
    if not isinstance(session.target, Server) or not session.options.revision_url:
        raise TargetError("polling needs --base-url and --revision-url")
    revision = Client(session.options.revision_url, session.target.headers)
    try:
        await _one_caller(session, revision)
        await _beside(session, "runs_alone", [])
        for count in session.options.pollers:
            asking = [_Asking(revision, session.options.poll_seconds * n / count) for n in range(count)]
            await _beside(session, f"{count}_callers_who_ask", asking)
            held = (await _ask(revision, session)).tag
            waiting = [_Waiting(revision, held) for _ in range(count)]
            await _beside(session, f"{count}_callers_who_wait", waiting)
    finally:
        await revision.aclose()


async def _ask(revision: Client, session: Session) -> Reply:
    return await revision.get("", timeout_seconds=session.options.timeout_seconds)


async def _one_caller(session: Session, revision: Client) -> None:
    polls = Polls()
    for _ in range(3):
        await _ask(revision, session)
    with session.window() as window:
        while (
            len(polls.seconds) < session.options.samples
            and window.elapsed_seconds() < session.options.seconds
        ):
            polls.add(await _ask(revision, session))
    session.emit("polling", "one_caller", {**polls.report(), **window.report(len(polls.seconds))})


@dataclass
class _Asking:
    """A caller who polls at intervals, as deploy commands do."""

    revision: Client
    starts_after: float

    async def go(self, session: Session, polls: Polls) -> None:
        await asyncio.sleep(self.starts_after)
        while True:
            polls.add(await _ask(self.revision, session))
            await asyncio.sleep(session.options.poll_seconds)


@dataclass
class _Waiting:
    """A caller who long-polls repeatedly for a change that never comes."""

    revision: Client
    held: str

    async def go(self, session: Session, polls: Polls) -> None:
        while True:
            reply = await self.revision.get(
                WAIT,
                headers={"If-None-Match": self.held},
                timeout_seconds=session.options.timeout_seconds,
            )
            polls.add(reply)
            if reply.status != NOT_MODIFIED:
                await asyncio.sleep(PAUSE_AFTER_ERROR_SECONDS)


async def _beside(session: Session, case: str, callers: list[_Asking] | list[_Waiting]) -> None:
    """Measure one client's runs while callers poll until the client has its samples."""
    polls = Polls()
    tasks = [asyncio.create_task(caller.go(session, polls)) for caller in callers]
    try:
        if tasks:
            await asyncio.sleep(max(session.options.warmup_seconds, session.options.poll_seconds))
        tally, window = await session.one_by_one(ECHO)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    row = {**tally.report(), **tally.whole_runs(), **window.report(len(tally.outcomes))}
    session.emit("polling", case, {**row, **polls.report()} if callers else row)
