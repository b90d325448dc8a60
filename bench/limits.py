"""`python -m bench limits`: measure how far one PostgreSQL and one Redis reach, each alone.

The figures are CPU time of the server, so a small machine can measure a server that would need a larger one.
`docs/operating/sizing.md` explains what they mean.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench import report
from bench.fan_out import EventLimit, measure_events
from bench.simulated_runners import RunLimit, measure_runs
from bench.targets import TargetError


def run_table(found: Sequence[RunLimit]) -> str:
    """Render the costs of runs as Markdown."""
    header = [
        "simulated runners", "runs at a time", "claims a second", "ends a second", "insert, ms of CPU", "claim",
        "end", "log, KB", "waits for the disk", "short claims",
    ]  # fmt: skip
    lines = [
        [
            str(item.runners),
            str(item.batch),
            f"{item.claims_per_second:,.0f}",
            f"{item.ends_per_second:,.0f}",
            *(f"{ms:.2f}" for ms in (item.insert_cpu_ms, item.claim_cpu_ms, item.end_cpu_ms)),
            f"{item.wal_bytes / 1e3:.1f}",
            f"{item.wal_syncs:.2f}",
            str(item.short_claims),
        ]
        for item in found
    ]
    return report.markdown(header, lines)


def event_table(found: Sequence[EventLimit]) -> str:
    """Render the costs of events as Markdown, with the cost of a delivered copy: what subscribers add, for each."""
    alone = {(item.logs, item.per_log): item.cpu_us for item in found if not item.subscribers}
    lines = []
    for item in found:
        base = alone.get((item.logs, item.per_log))
        copy = (
            "" if base is None or not item.subscribers else f"{(item.cpu_us - base) / item.subscribers:.1f}"
        )
        shape = [str(item.logs), str(item.per_log), str(item.subscribers)]
        lines.append([*shape, f"{item.cpu_us:.1f}", copy, f"{item.events_per_second:,.0f}"])
    header = [
        "logs in a call", "events for each", "subscribers", "an event, µs of CPU", "a copy", "events a second of a core",
    ]  # fmt: skip
    return report.markdown(header, lines)


def parser() -> argparse.ArgumentParser:
    usage = argparse.ArgumentParser(prog="python -m bench limits", description=__doc__)
    usage.add_argument("--runs", type=int, default=2_000, help="runs of each step")
    usage.add_argument("--runners", type=int, nargs="+", default=[1, 2, 4, 8], help="simulated runners")
    usage.add_argument("--events", type=int, default=20_000, help="events of each step")
    usage.add_argument("--subscribers", type=int, nargs="+", default=[0, 1, 10], help="of each channel")
    return usage


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    if (
        min(asked.runners) < 1
        or asked.runs < max(asked.runners)
        or asked.events < 1
        or min(asked.subscribers) < 0
    ):
        print("bench: each step has a runner, a run for each runner, and an event", file=sys.stderr)
        return 1
    try:
        print(run_table(list(measure_runs(runs=asked.runs, runners=asked.runners))), flush=True)
        print()
        print(event_table(list(measure_events(count=asked.events, subscribers=asked.subscribers))))
    except (TargetError, OSError) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    return 0
