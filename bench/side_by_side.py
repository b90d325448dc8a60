"""The summary table: a line per question, a column per server, and how many times as good the first server is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench import report
from bench.in_process import LABEL
from bench.measuring import Row

# Counts over all scenarios, also those without a line in the table: label → figures that are added up.
FAILURES = {
    "Runs failed, or given up by the client after 60 s": ("errors",),
    "Events lost, doubled or out of order, in streams that ended": ("lost", "doubled", "disordered"),
}
COUNTED = tuple(figure for figures in FAILURES.values() for figure in figures)


@dataclass(frozen=True)
class Line:
    """A figure of one case of a scenario, with its label and unit."""

    asks: str
    unit: str
    scenario: str
    case: str
    figure: str

    def value(self, rows: Sequence[Row]) -> float | None:
        """Return the median over a server's repeats, or None if the figure is missing."""
        return report.median(self.rows(rows), self.figure)

    def rows(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if (row["scenario"], row["case"]) == (self.scenario, self.case)]

    def times_as_good(self, ours: float | None, theirs: float | None) -> float | None:
        """Return a ratio that is above 1 if the first is better, for figures where more is better and where less is."""
        if not ours or not theirs:
            return None
        return ours / theirs if self.figure in report.MORE_IS_BETTER else theirs / ours


LINES = (
    Line("A run on a thread over SSE, to its end", "ms, p50", "latency", "stream_threaded", "whole_ms_p50"),
    Line("… to its first data", "ms, p50", "latency", "stream_threaded", "first_data_ms_p50"),
    Line("… to its metadata", "ms, p50", "latency", "stream_threaded", "metadata_ms_p50"),
    Line("Runs on threads, 32 clients", "a second", "throughput", "wait_threaded_32_clients", "runs_per_second"),
    Line("Stateless runs, 32 clients", "a second", "throughput", "wait_stateless_32_clients", "runs_per_second"),
    Line("Streamed runs, 32 clients", "a second", "throughput", "stream_threaded_32_clients", "runs_per_second"),
    Line("Custom events, 32 streams", "a second", "tokens", "custom_32_streams", "events_per_second"),
    Line("Chunks of messages, 32 streams", "a second", "tokens", "messages_32_streams", "events_per_second"),
    Line("500 streams of 50 events a second, all done", "s", "paced", "custom_500_streams", "all_done_seconds"),
    Line("… delay of an event", "ms, p99", "paced", "custom_500_streams", "delay_ms_p99"),
    Line("1,000 runs of 5 s at once, all done", "s", "idle", "1000_runs", "all_done_seconds"),
    Line("Runs that block 0.2 s, 32 clients", "a second", "block", "32_clients", "runs_per_second"),
    Line("CPU of a run on a thread, 32 clients", "ms", "throughput", "wait_threaded_32_clients", "cpu_ms_per_run"),
    Line("CPU of a stateless run, 32 clients", "ms", "throughput", "wait_stateless_32_clients", "cpu_ms_per_run"),
    Line("Memory of the idle server", "MB", "memory", "200_runs", "memory_before_mb"),
    Line("A small run beside 4 that burn CPU", "ms, p50", "noisy", "4_burners", "whole_ms_p50"),
)  # fmt: skip

# The lower bound of a run's cost: the same graph without a server.
FLOORS = tuple(line for line in LINES if line.figure == "cpu_ms_per_run")


def table(rows: Sequence[Row]) -> str:
    """Render the lines that were measured on the first server, for all servers. Empty if there are none."""
    by_server = servers(rows)
    first, *others = by_server or ("",)
    shown = [line for line in LINES if line.rows(by_server.get(first, []))]
    if not shown:
        return ""
    header = ["", "", *by_server, *(f"× {other}" for other in others)]
    lines = [[line.asks, line.unit, *_figures(line, by_server)] for line in shown]
    for asks, figures in FAILURES.items():
        counts = [
            str(sum(row.get(name, 0) for row in found for name in figures)) for found in by_server.values()
        ]
        lines.append([asks, "", *counts, *[""] * len(others)])
    return report.markdown(header, lines)


def floor(rows: Sequence[Row]) -> str:
    """Render the CPU time of the first server's runs as a multiple of the bare graphs'. Empty unless both are known."""
    (first, *_), bare = servers(rows) or ("",), bare_graphs(rows)
    ours = report.targets(rows).get(first, [])
    lines = [
        [line.asks, line.unit, *map(report.rounded, (server, least, server / least))]
        for line in FLOORS
        if (server := line.value(ours)) and (least := line.value(bare))
    ]
    return report.markdown(["", "", first, "bare graphs", "times"], lines) if lines else ""


def servers(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group the rows by server, in order of appearance."""
    return {name: found for name, found in report.targets(rows).items() if not name.startswith(LABEL)}


def bare_graphs(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["label"].startswith(LABEL)]


def _figures(line: Line, by_server: dict[str, list[Row]]) -> list[str]:
    values = [line.value(rows) for rows in by_server.values()]
    ratios = [line.times_as_good(values[0], value) for value in values[1:]]
    return [*map(report.rounded, values), *map(report.rounded, ratios)]
