"""`python -m bench capacity`: compute the machines that a load needs from the cost of a run, event and stream.

The costs are measured on a platform that this command starts and stops (`bench/costs.py`), or read from a file.
They are CPU time and bytes, so they scale linearly: twice the runs cost twice as much until a single server is
full. The table shows that limit; `docs/operating/sizing.md` explains what to do about it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

PARTS = ("web", "runner", "hosts", "postgres", "redis")
DAY = 86_400
GB, MB, KB = 1e9, 1e6, 1e3
BUSY = 0.6  # of a core at the peak; above it, waiting times grow faster than the load
STREAMS_A_WEB = 5_000  # RUNYARD_MAX_STREAMS
CONNECTIONS = {"web": 16, "runner": 8}  # maximum PostgreSQL connections per process
SLOTS = 2_000  # RUNYARD_RUNNER_SLOTS


@dataclass(frozen=True)
class Costs:
    """Measured costs: CPU milliseconds per run, CPU microseconds per event and per stream-second, memory in bytes."""

    run_cpu_ms: Mapping[str, float]
    event_cpu_us: Mapping[str, float]
    stream_cpu_us: Mapping[str, float]
    stream_bytes: float
    process_bytes: Mapping[str, float]  # without streams
    connection_bytes: float
    run_transactions: float
    run_wal_syncs: float  # disk flushes per run; runs that commit together share one
    run_wal_bytes: float
    run_disk_bytes: float  # one run on its own thread, with indexes
    run_redis_bytes: float
    event_redis_bytes: float
    run_publishes: float
    event_publishes: float
    commits_per_second: float  # what this disk sustains with eight writers

    @classmethod
    def read(cls, path: Path) -> Costs:
        """Read costs that `write` saved. Raises OSError and ValueError."""
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or set(found) != {field.name for field in fields(cls)}:
            raise ValueError(f"{path} does not have the costs that `--save` writes")
        return cls(**found)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


@dataclass(frozen=True)
class Load:
    """The load to plan for. `peak` is the ratio of the busiest rate to the day's mean."""

    runs_per_day: float = 1_000_000
    streams: int = 100_000
    threads: int = 10_000_000
    tokens_per_run: float = 200
    run_seconds: float = 20
    peak: float = 3
    retention_seconds: float = 900  # RUNYARD_EVENT_RETENTION_SECONDS

    @property
    def peak_runs(self) -> float:
        """Runs a second at the busiest time."""
        return self.runs_per_day / DAY * self.peak

    @property
    def runs_in_flight(self) -> float:
        return self.peak_runs * self.run_seconds


@dataclass(frozen=True)
class Need:
    """Resources of one part at the peak. `ends_at` is the most runs per second that one process or server handles."""

    part: str
    cores: float
    processes: int
    memory_bytes: float
    ends_at: float


def needs(costs: Costs, load: Load) -> dict[str, Need]:
    """Return the processes, cores and memory of each part for a load."""
    cores = {part: _cores(costs, load, part) for part in PARTS}
    web = max(_whole(cores["web"] / BUSY), _whole(load.streams / STREAMS_A_WEB))
    runner = max(_whole(cores["runner"] / BUSY), _whole(load.runs_in_flight / SLOTS))
    hosts = max(_whole(cores["hosts"] / BUSY), runner)
    redis = _whole(cores["redis"] / BUSY)
    connections = web * CONNECTIONS["web"] + runner * CONNECTIONS["runner"]
    memory = {
        "web": web * costs.process_bytes["web"] + load.streams * costs.stream_bytes,
        "runner": runner * costs.process_bytes["runner"],
        "hosts": hosts * costs.process_bytes["hosts"],
        "postgres": connections * costs.connection_bytes,
        "redis": load.peak_runs * load.retention_seconds * _redis_bytes(costs, load),
    }
    processes = {"web": web, "runner": runner, "hosts": hosts, "postgres": 1, "redis": redis}
    return {
        part: Need(part, cores[part], processes[part], memory[part], _ends_at(costs, load, part))
        for part in PARTS
    }


def _cores(costs: Costs, load: Load, part: str) -> float:
    of_runs = load.peak_runs * _run_seconds(costs, load, part)
    return of_runs + load.streams * costs.stream_cpu_us.get(part, 0.0) / 1e6


def _run_seconds(costs: Costs, load: Load, part: str) -> float:
    """CPU seconds of one run, including its tokens."""
    return (
        costs.run_cpu_ms.get(part, 0.0) / 1e3 + load.tokens_per_run * costs.event_cpu_us.get(part, 0.0) / 1e6
    )


def _ends_at(costs: Costs, load: Load, part: str) -> float:
    """Return the most runs per second: limited by disk flushes for PostgreSQL, by one core for the other parts."""
    if part == "postgres":
        return costs.commits_per_second / costs.run_wal_syncs if costs.run_wal_syncs else math.inf
    seconds = _run_seconds(costs, load, part)
    return BUSY / seconds if seconds else math.inf


def _redis_bytes(costs: Costs, load: Load) -> float:
    return costs.run_redis_bytes + load.tokens_per_run * costs.event_redis_bytes


def _whole(number: float) -> int:
    return max(1, math.ceil(number))


def stored(costs: Costs, load: Load) -> Iterator[tuple[str, float, str]]:
    """Yield `(name, number, unit)` for the totals: cores, memory, runs, and the I/O and storage of the databases."""
    needed = needs(costs, load)
    most = sum(needed[part].processes * each for part, each in CONNECTIONS.items())
    yield "cores in all, busy to 60 % at the peak", sum(need.cores for need in needed.values()) / BUSY, ""
    yield "memory in all", sum(need.memory_bytes for need in needed.values()) / GB, "GB"
    yield "runs at the peak", load.peak_runs, "a second"
    yield "runs in flight at the peak", load.runs_in_flight, ""
    yield "PostgreSQL's transactions at the peak", load.peak_runs * costs.run_transactions, "a second"
    yield "PostgreSQL's waits for its disk at the peak", load.peak_runs * costs.run_wal_syncs, "a second"
    yield "PostgreSQL's log", load.runs_per_day * costs.run_wal_bytes / GB, "GB a day"
    yield "PostgreSQL's tables, new threads alone", load.runs_per_day * costs.run_disk_bytes / GB, "GB a day"
    yield "stored threads", load.threads * costs.run_disk_bytes / GB, "GB"
    yield "threads to the GB", GB / costs.run_disk_bytes if costs.run_disk_bytes else math.inf, ""
    yield "PostgreSQL's connections without a pooler", most, ""
    publishes = costs.run_publishes + load.tokens_per_run * costs.event_publishes
    yield "Redis' publishes at the peak", load.peak_runs * publishes, "a second"


def table(costs: Costs, load: Load) -> str:
    """Render the plan as Markdown."""
    rows = [
        "| part | cores at the peak | processes | memory | one bears |",
        "|---|---|---|---|---|",
    ]
    for part, need in needs(costs, load).items():
        bears = f"{need.ends_at:,.0f} runs a second"
        if part == "web":
            bears += f", or {STREAMS_A_WEB:,} streams"
        rows.append(
            f"| {part} | {need.cores:.1f} | {need.processes} | {need.memory_bytes / GB:.1f} GB | {bears} |"
        )
    rows += ["", "| what | how much |", "|---|---|"]
    rows += [
        f"| {name} | {_shown(number)} {unit}".rstrip() + " |" for name, number, unit in stored(costs, load)
    ]
    return "\n".join(rows)


def cost_table(costs: Costs) -> str:
    """Render the costs as Markdown."""
    rows = [
        f"| | {' | '.join(PARTS)} | sum |",
        "|---|" + "---|" * (len(PARTS) + 1),
        _row("a run, ms of CPU", costs.run_cpu_ms, 2),
        _row("an event, µs of CPU", costs.event_cpu_us, 0),
        _row("an open stream, µs of CPU a second", costs.stream_cpu_us, 0),
        _row("a process, MB", {part: size / MB for part, size in costs.process_bytes.items()}, 0, sums=False),
        "",
        "| | |",
        "|---|---|",
        f"| an open stream, in `web` | {costs.stream_bytes / KB:.0f} KB |",
        f"| a connection, in PostgreSQL | {costs.connection_bytes / MB:.1f} MB |",
        f"| a run, in PostgreSQL | {costs.run_transactions:.1f} transactions, {costs.run_wal_syncs:.1f} waits for the"
        f" disk, {costs.run_wal_bytes / KB:.1f} KB of log, {costs.run_disk_bytes / KB:.1f} KB of tables |",
        f"| a run, in Redis | {costs.run_redis_bytes / KB:.1f} KB, {costs.run_publishes:.1f} publishes |",
        f"| an event, in Redis | {costs.event_redis_bytes:.0f} bytes, {costs.event_publishes:.2f} publishes |",
        f"| this disk | {costs.commits_per_second:,.0f} commits a second of eight writers |",
    ]
    return "\n".join(rows)


def _row(name: str, by_part: Mapping[str, float], digits: int, *, sums: bool = True) -> str:
    cells = [f"{by_part[part]:.{digits}f}" if part in by_part else "–" for part in PARTS]
    return f"| {name} | {' | '.join(cells)} | {f'{sum(by_part.values()):.{digits}f}' if sums else ''} |"


def _shown(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def parser() -> argparse.ArgumentParser:
    usage = argparse.ArgumentParser(prog="python -m bench capacity", description=__doc__)
    wanted = usage.add_argument_group("the load")
    for field in fields(Load):
        kind = int if isinstance(field.default, int) else float
        wanted.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    costs = usage.add_argument_group("the costs")
    costs.add_argument("--costs", type=Path, metavar="FILE", help="measure nothing: take these")
    costs.add_argument("--save", type=Path, metavar="FILE", help="write what was measured")
    costs.add_argument("--runs", type=int, default=400, help="how many runs to measure")
    costs.add_argument("--watched", type=int, default=500, help="how many streams to measure")
    return usage


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    values: dict[str, Any] = {field.name: getattr(asked, field.name) for field in fields(Load)}
    if any(value < 0 for value in values.values()) or min(asked.runs, asked.watched) < 10:
        print("bench: a load is not negative, and less than 10 runs or streams tell nothing", file=sys.stderr)
        return 1
    try:
        costs = Costs.read(asked.costs) if asked.costs else _measured(asked.runs, asked.watched)
        if asked.save:
            costs.write(asked.save)
    except (OSError, ValueError, RuntimeError) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    print(cost_table(costs), table(costs, Load(**values)), sep="\n\n")
    return 0


def _measured(runs: int, watched: int) -> Costs:
    from bench.costs import measure  # imported here: a plan from a file needs no platform

    return measure(runs=runs, watched=watched)
