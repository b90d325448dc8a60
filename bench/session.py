"""A sequence of measurements of one target, on which every scenario builds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from bench.measuring import Processes, Row, Window, milliseconds
from bench.targets import Call, Outcome, Target, TargetError

ECHO = Call("echo", {"text": "x"}, proof="echo: x")
PAUSE_AFTER_ERROR_SECONDS = 0.05  # avoids flooding a server that refuses every request
MAX_STRETCH = 4  # a window extends up to this factor for a target too slow to fill it


@dataclass(frozen=True)
class Options:
    """Sizes and durations of the measurements."""

    samples: int = 100
    seconds: float = 5.0
    warmup_seconds: float = 1.0
    timeout_seconds: float = 60.0
    clients: Sequence[int] = (1, 8, 32)
    tokens: int = 200
    token_streams: Sequence[int] = (1, 32)
    token_rounds: int = 5
    paced_streams: Sequence[int] = (100, 500)
    paced_interval_seconds: float = 0.02
    idle_runs: int = 1000
    idle_seconds: float = 5.0
    block_seconds: float = 0.2
    burners: Sequence[int] = (1, 4)
    burn_seconds: float = 0.5
    aging_runs: int = 5000
    past_runs: int = 1000
    search_threads: int = 100_000
    watchers: Sequence[int] = (1000,)
    revision_url: str = ""
    pollers: Sequence[int] = (300,)
    poll_seconds: float = 3.0
    deploy_command: str = ""
    rollback_command: str = ""
    requirements: str = ""
    start_command: str = ""
    start_seconds: float = 120.0


@dataclass
class Tally:
    """The runs that ended in a window: the successful outcomes, and the errors of the others by message."""

    outcomes: list[Outcome] = field(default_factory=list)
    why: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        if outcome.error:
            self.why[outcome.error[:80]] += 1
        else:
            self.outcomes.append(outcome)

    @property
    def ended(self) -> int:
        return len(self.outcomes) + self.errors

    @property
    def errors(self) -> int:
        return sum(self.why.values())

    def report(self) -> Row:
        row: Row = {"runs": len(self.outcomes), "errors": self.errors}
        return row | ({"why": dict(self.why)} if self.why else {})

    def whole_runs(self) -> Row:
        return milliseconds("whole", [outcome.seconds for outcome in self.outcomes])


class Session:
    def __init__(
        self,
        target: Target,
        options: Options,
        *,
        processes: Processes,
        emit: Callable[[Row], None],
        noisy: Target | None = None,
        repeat: int = 0,
    ) -> None:
        self.target = target
        self.noisy = noisy or target
        self.options = options
        self.processes = processes
        self._emit = emit
        self._repeat = repeat

    def emit(self, scenario: str, case: str, row: Row) -> None:
        self._emit(
            {"scenario": scenario, "case": case, "label": self.target.label, "repeat": self._repeat, **row}
        )

    def window(self) -> Window:
        return Window(self.processes, shares_our_process=self.target.shares_our_process)

    async def run(self, call: Call, *, target: Target | None = None) -> Outcome:
        return await (target or self.target).run(call, timeout_seconds=self.options.timeout_seconds)

    async def check(self) -> None:
        """Execute one run of the simplest graph. Raises TargetError if it fails."""
        outcome = await self.run(ECHO)
        if outcome.error:
            raise TargetError(f"{self.target.label}: a run of graph `echo` failed: {outcome.error}")

    async def threads(self, count: int) -> list[str]:
        return [await self.target.create_thread() for _ in range(count)]

    async def one_by_one(self, call: Call) -> tuple[Tally, Window]:
        """Execute runs one after another with one client, limited in count and time."""
        for _ in range(3):
            await self.run(call)
        tally = Tally()
        with self.window() as window:
            while tally.ended < self.options.samples and window.elapsed_seconds() < self.options.seconds:
                tally.add(await self.run(call))
        return tally, window

    async def at_once(self, calls: Sequence[Call], *, stagger_seconds: float = 0.0) -> tuple[Tally, Window]:
        """Start all calls together, spread evenly over `stagger_seconds`, and wait for the last to end."""
        tally = Tally()

        async def issue(number: int, call: Call) -> None:
            await asyncio.sleep(number / len(calls) * stagger_seconds)
            tally.add(await self.run(call))

        with self.window() as window:
            await asyncio.gather(*(issue(number, call) for number, call in enumerate(calls)))
        return tally, window

    async def shared_out(self, calls: Iterator[Call], clients: int, tally: Tally) -> None:
        """Share the calls among clients: each takes the next call when its last has ended."""

        async def client() -> None:
            for call in calls:
                tally.add(await self.run(call))

        await asyncio.gather(*(client() for _ in range(clients)))

    async def under_load(self, clients: int, call: Callable[[int], Call]) -> Row:
        """Start runs with several clients, one at a time each. Only runs that end in the window are counted."""
        tally, ignored, stop = Tally(), Tally(), asyncio.Event()
        current = ignored

        async def client(number: int) -> None:
            while not stop.is_set():
                outcome = await self.run(call(number))
                current.add(outcome)
                if outcome.error:
                    await asyncio.sleep(PAUSE_AFTER_ERROR_SECONDS)

        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(client(number))
            await asyncio.sleep(self.options.warmup_seconds)
            with self.window() as window:
                current = tally
                await asyncio.sleep(self.options.seconds)
                while tally.ended < clients and window.elapsed_seconds() < MAX_STRETCH * self.options.seconds:
                    await asyncio.sleep(PAUSE_AFTER_ERROR_SECONDS)
                current = ignored
            stop.set()
        good = len(tally.outcomes)
        return {
            "clients": clients,
            "runs_per_second": round(good / window.seconds, 2),
            **tally.report(),
            **tally.whole_runs(),
            **window.report(good),
        }


def on_thread(call: Call, thread_id: str) -> Call:
    return replace(call, thread_id=thread_id)


def streamed(call: Call, mode: str = "updates") -> Call:
    return replace(call, stream_mode=mode)
