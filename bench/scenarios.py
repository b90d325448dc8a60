"""The scenarios. Each answers one question about the session's target."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import NamedTuple

from bench import deploying, polling, remembering, starting, watching
from bench.measuring import Row, milliseconds
from bench.session import ECHO, Session, Tally, on_thread, streamed
from bench.targets import Call, Event, Outcome

TEN_STEPS = Call("steps", {"steps_left": 10}, proof="steps_left")
TOKEN_GRAPHS = {"custom": ("tokens", "custom"), "messages": ("llm", "messages-tuple")}
AGES = 5  # number of blocks in which an aging run is reported
AGING_CLIENTS = 32
BLOCK_CLIENTS = 32
MEMORY_RUNS = 200


async def latency(session: Session) -> None:
    """Measure one client's time to the metadata, to the first data and to the end of the run."""
    thread = await session.target.create_thread()
    cases = {
        "stream_stateless": streamed(ECHO),
        "stream_threaded": streamed(on_thread(ECHO, thread)),
        "wait_stateless": ECHO,
        "wait_threaded": on_thread(ECHO, thread),
        "wait_threaded_10_steps": on_thread(TEN_STEPS, thread),
    }
    for case, call in cases.items():
        tally, window = await session.one_by_one(call)
        session.emit(
            "latency",
            case,
            {
                **tally.report(),
                **milliseconds("metadata", _first(tally, "metadata")),
                **milliseconds("first_data", _first(tally, "updates")),
                **tally.whole_runs(),
                **window.report(len(tally.outcomes)),
            },
        )


def _first(tally: Tally, name: str) -> list[float]:
    """Return each run's time to its first event of that name, without the runs that have none."""
    times = []
    for outcome in tally.outcomes:
        at = next((event.arrived_at for event in outcome.events() if event.name == name), None)
        if at is not None:
            times.append(at - outcome.sent_at)
    return times


async def throughput(session: Session) -> None:
    """Measure the runs per second of N clients, and their CPU cost."""
    threads = await session.threads(max(session.options.clients))
    cases: dict[str, Callable[[int], Call]] = {
        "wait_stateless": lambda number: ECHO,
        "wait_threaded": lambda number: on_thread(ECHO, threads[number]),
        "stream_threaded": lambda number: streamed(on_thread(ECHO, threads[number])),
    }
    for case, call in cases.items():
        for clients in session.options.clients:
            session.emit("throughput", f"{case}_{clients}_clients", await session.under_load(clients, call))


class Token(NamedTuple):
    arrived_at: float
    number: int
    made_at: float


class Delivery(NamedTuple):
    """The numbered events of some streams, and how many were lost, doubled or out of order."""

    received: int
    lost: int
    doubled: int
    disordered: int
    streams: list[list[Token]]

    def report(self) -> Row:
        return {
            "events": self.received,
            "lost": self.lost,
            "doubled": self.doubled,
            "disordered": self.disordered,
            **milliseconds("delay", [t.arrived_at - t.made_at for tokens in self.streams for t in tokens]),
        }


def delivery(tally: Tally, kind: str, expected: int) -> Delivery:
    """Count the deliveries of the runs that ended. Failed runs are counted as errors, without their events."""
    streams = [_tokens(outcome, kind) for outcome in tally.outcomes]
    numbers = [[token.number for token in tokens] for tokens in streams]
    distinct = sum(len(set(seen)) for seen in numbers)
    received = sum(map(len, numbers))
    disordered = sum(later < earlier for seen in numbers for earlier, later in pairwise(seen))
    return Delivery(
        received, len(tally.outcomes) * expected - distinct, received - distinct, disordered, streams
    )


def _tokens(outcome: Outcome, kind: str) -> list[Token]:
    return [token for event in outcome.events() if event.name == kind for token in _tokens_of(event, kind)]


def _tokens_of(event: Event, kind: str) -> list[Token]:
    """Return the tokens of one event. A server may merge chunks of a message, so one event may hold several."""
    if kind == "custom":
        return [Token(event.arrived_at, event.data["index"], event.data["made_at"])]
    pairs = (word.partition(":") for word in event.data[0]["content"].split())
    return [Token(event.arrived_at, int(index), float(made_at)) for index, _, made_at in pairs]


def _token_call(kind: str, count: int, interval_seconds: float) -> Call:
    graph, mode = TOKEN_GRAPHS[kind]
    asked = {"count": count, "interval_seconds": interval_seconds}
    return Call(graph, asked, stream_mode=mode, ends_with_client=True)


async def tokens(session: Session) -> None:
    """Measure events per second, and check that all arrive, once and in order."""
    options = session.options
    for kind in TOKEN_GRAPHS:
        call = _token_call(kind, options.tokens, 0)
        for streams in options.token_streams:
            await session.run(call)
            tally = Tally()
            calls = iter([call] * (streams * options.token_rounds))
            with session.window() as window:
                await session.shared_out(calls, streams, tally)
            seen = delivery(tally, kind, options.tokens)
            session.emit(
                "tokens",
                f"{kind}_{streams}_streams",
                {
                    **tally.report(),
                    "events_per_second": round(seen.received / window.seconds, 1),
                    **seen.report(),
                    **window.report(len(tally.outcomes)),
                },
            )


async def paced(session: Session) -> None:
    """Measure the delay that the server adds to streams at the pace of a model."""
    options = session.options
    for kind in TOKEN_GRAPHS:
        for streams in options.paced_streams:
            call = _token_call(kind, options.tokens, options.paced_interval_seconds)
            tally, window = await session.at_once([call] * streams, stagger_seconds=1.0)
            seen = delivery(tally, kind, options.tokens)
            session.emit(
                "paced",
                f"{kind}_{streams}_streams",
                {
                    "streams": streams,
                    **tally.report(),
                    "all_done_seconds": round(window.seconds, 3),
                    **seen.report(),
                    **milliseconds("behind_schedule", _lags(seen, options.paced_interval_seconds)),
                    **window.report(len(tally.outcomes)),
                },
            )


def _lags(seen: Delivery, interval_seconds: float) -> list[float]:
    """Return the arrival delays against the schedule that the first event of each stream starts.

    `delay` counts from an event's creation; this figure also shows that the graph itself was held up.
    """
    return [
        token.arrived_at - (tokens[0].made_at + (token.number - tokens[0].number) * interval_seconds)
        for tokens in seen.streams
        for token in tokens
    ]


async def idle(session: Session) -> None:
    """Run many graphs at once that wait, as graphs do for models and tools."""
    options = session.options
    call = Call("idle", {"seconds": options.idle_seconds}, proof="spent_seconds", ends_with_client=True)
    before = session.processes.memory_mb()
    memory = asyncio.create_task(_memory_after(session, options.idle_seconds / 2))
    tally, window = await session.at_once([call] * options.idle_runs)
    during = await memory
    session.emit(
        "idle",
        f"{options.idle_runs}_runs",
        {
            **tally.report(),
            "all_done_seconds": round(window.seconds, 3),
            "ideal_seconds": options.idle_seconds,
            **tally.whole_runs(),
            **_memory("memory_before", before),
            **_memory("memory", during),
            **window.report(len(tally.outcomes)),
        },
    )


async def _memory_after(session: Session, seconds: float) -> dict[str, float]:
    await asyncio.sleep(seconds)
    return session.processes.memory_mb()


def _memory(name: str, by_process: dict[str, float]) -> Row:
    if not by_process:
        return {}
    return {f"{name}_mb": round(sum(by_process.values()), 1), f"{name}_mb_by": by_process}


async def block(session: Session) -> None:
    """Measure how many synchronous nodes can block in parallel before they delay each other."""
    seconds = session.options.block_seconds
    call = Call("block", {"seconds": seconds}, proof="spent_seconds")
    row = await session.under_load(BLOCK_CLIENTS, lambda number: call)
    session.emit(
        "block", f"{BLOCK_CLIENTS}_clients", {"ideal_runs_per_second": BLOCK_CLIENTS / seconds, **row}
    )


async def noisy(session: Session) -> None:
    """Measure how much a small run slows down beside runs that use all the CPU they get."""
    for burners in (0, *session.options.burners):
        row = await _beside_burners(session, burners)
        session.emit("noisy", f"{burners}_burners" if burners else "quiet", row)


async def _beside_burners(session: Session, burners: int) -> Row:
    seconds = session.options.burn_seconds
    call = Call("burn", {"seconds": seconds}, proof="spent_seconds")
    stop, burned = asyncio.Event(), Tally()

    async def burner() -> None:
        while not stop.is_set():
            burned.add(await session.run(call, target=session.noisy))

    async with asyncio.TaskGroup() as group:
        for _ in range(burners):
            group.create_task(burner())
        if burners:
            await asyncio.sleep(session.options.warmup_seconds)
        tally, window = await session.one_by_one(ECHO)
        stop.set()
    return {
        **tally.report(),
        **tally.whole_runs(),
        "burner_runs": len(burned.outcomes),
        "burner_errors": burned.errors,
        **window.report(len(tally.outcomes)),
    }


async def aging(session: Session) -> None:
    """Check that the five-thousandth run costs no more than the first."""
    threads = await session.threads(AGING_CLIENTS)
    size = max(session.options.aging_runs // AGES, 1)
    first: float | None = None
    for age in range(AGES):
        calls = (streamed(on_thread(ECHO, threads[number % AGING_CLIENTS])) for number in range(size))
        tally = Tally()
        with session.window() as window:
            await _in_lanes(session, list(calls), tally)
        median = statistics.median([outcome.seconds for outcome in tally.outcomes] or [0.0])
        first = first or median
        session.emit(
            "aging",
            f"runs_{age * size + 1}_to_{(age + 1) * size}",
            {
                **tally.report(),
                "runs_per_second": round(len(tally.outcomes) / window.seconds, 2),
                "times_the_first": round(median / first, 3) if first else None,
                **tally.whole_runs(),
                **_memory("memory", session.processes.memory_mb()),
                **window.report(len(tally.outcomes)),
            },
        )


async def _in_lanes(session: Session, calls: list[Call], tally: Tally) -> None:
    """Execute the calls with one client per thread: a second concurrent run on a thread would be refused."""

    async def lane(number: int) -> None:
        for call in calls[number::AGING_CLIENTS]:
            tally.add(await session.run(call))

    await asyncio.gather(*(lane(number) for number in range(AGING_CLIENTS)))


async def memory(session: Session) -> None:
    """Measure the memory of the target's processes before and after some runs."""
    before = session.processes.memory_mb()
    tally = Tally()
    await session.shared_out(iter([ECHO] * MEMORY_RUNS), 8, tally)
    after = session.processes.memory_mb()
    session.emit(
        "memory",
        f"{MEMORY_RUNS}_runs",
        {**tally.report(), **_memory("memory_before", before), **_memory("memory", after)},
    )


async def coldstart(session: Session) -> None:
    """Measure the time from the start command to the end of the first run."""
    server = starting.server_of(session)
    started_at = time.perf_counter()
    async with starting.started(session.options.start_command) as process:
        listening_seconds, first_run_seconds = await starting.first_run(session, server, process, started_at)
        session.emit(
            "coldstart",
            "start_to_first_run",
            {
                "listening_seconds": round(listening_seconds, 3),
                "first_run_seconds": round(first_run_seconds, 3),
                **starting.cost(process),
            },
        )


SCENARIOS: dict[str, Callable[[Session], Awaitable[None]]] = {
    "memory": memory,
    "latency": latency,
    "throughput": throughput,
    "tokens": tokens,
    "paced": paced,
    "idle": idle,
    "block": block,
    "noisy": noisy,
    "aging": aging,
    "long_thread": remembering.long_thread,
    "search": remembering.search,
    "watching": watching.measure,
    "polling": polling.measure,
    "deploying": deploying.measure,
    "coldstart": coldstart,
}
# Not run by default: they start the server, or need a revision URL, commands, or a server that stores data.
ASKED_FOR = ("coldstart", "polling", "deploying", "long_thread", "search", "watching")
BY_DEFAULT = [name for name in SCENARIOS if name not in ASKED_FOR]
