"""Markdown reports: tables of medians, and two targets side by side as ratios."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.measuring import Row

COLUMNS: dict[str, Sequence[str]] = {
    "memory": ("memory_before_mb", "memory_mb", "errors"),
    "latency": (
        "metadata_ms_p50", "first_data_ms_p50", "whole_ms_p50", "whole_ms_p95", "whole_ms_p99",
        "cpu_ms_per_run", "errors",
    ),
    "throughput": ("runs_per_second", "whole_ms_p50", "whole_ms_p99", "cpu_ms_per_run", "errors"),
    "tokens": (
        "events_per_second", "delay_ms_p50", "delay_ms_p99", "lost", "doubled", "disordered",
        "cpu_ms_per_run", "errors",
    ),
    "paced": (
        "all_done_seconds", "delay_ms_p50", "delay_ms_p99", "behind_schedule_ms_p99", "lost", "doubled", "disordered",
        "target_cores", "errors",
    ),
    "idle": (
        "all_done_seconds", "whole_ms_p50", "whole_ms_p99", "memory_before_mb", "memory_mb", "target_cores",
        "errors",
    ),
    "block": ("runs_per_second", "whole_ms_p50", "whole_ms_p99", "errors"),
    "noisy": ("whole_ms_p50", "whole_ms_p95", "whole_ms_p99", "burner_runs", "errors"),
    "aging": (
        "runs_per_second", "whole_ms_p50", "whole_ms_p99", "times_the_first", "cpu_ms_per_run", "memory_mb",
        "errors",
    ),
    "long_thread": (
        "whole_ms_p50", "whole_ms_p99", "times_the_first", "answer_ms_p50", "answer_ms_p99", "cpu_ms_per_run",
        "errors",
    ),
    "search": ("answer_ms_p50", "answer_ms_p99", "cpu_ms_per_run", "errors"),
    "watching": (
        "whole_ms_p50", "whole_ms_p99", "times_alone", "memory_mb", "streams_memory_mb", "streams",
        "streams_lost", "errors",
    ),
    "polling": (
        "poll_ms_p50", "poll_ms_p99", "whole_ms_p50", "whole_ms_p99", "polls", "poll_errors", "errors",
    ),
    "deploying": ("command_ms_p50", "command_ms_max"),
    "coldstart": ("listening_seconds", "first_run_seconds", "cpu_seconds", "memory_mb"),
}  # fmt: skip
CONDITIONS = ("client_cores", "other_cores")
MORE_IS_BETTER = ("runs_per_second", "events_per_second", "burner_runs")

Key = tuple[str, str]  # scenario and case


class RowsError(Exception):
    """A file does not hold rows of this benchmark."""


def read(paths: Iterable[Path]) -> list[Row]:
    """Return the rows of JSON-lines files. Raises RowsError."""
    rows = []
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            try:
                row = json.loads(line)
                _ = row["scenario"], row["case"], row["label"]
            except (ValueError, KeyError, TypeError) as broken:
                raise RowsError(f"{path}:{number}: not a row of this benchmark") from broken
            rows.append(row)
    return rows


def table(rows: Sequence[Row]) -> str:
    """Render one table per scenario, with a line per case and label. Each figure is the median of its repeats."""
    return "\n\n".join(_scenario(name, rows) for name in dict.fromkeys(row["scenario"] for row in rows))


def _scenario(name: str, rows: Sequence[Row]) -> str:
    of_case: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["scenario"] == name:
            of_case[row["case"], row["label"]].append(row)
    shown = [row for group in of_case.values() for row in group]
    columns = [
        column for column in (*COLUMNS.get(name, ()), *CONDITIONS) if any(column in row for row in shown)
    ]
    lines = [
        [case, label, str(len(group)), *(rounded(median(group, column)) for column in columns)]
        for (case, label), group in of_case.items()
    ]
    return f"### {name}\n\n" + markdown(["case", "target", "repeats", *columns], lines)


def targets(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group the rows by target, in order of appearance."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["label"]].append(row)
    return dict(found)


def comparison(ours: Sequence[Row], theirs: Sequence[Row]) -> str:
    """Render a line per figure that both have and at least one has non-zero, with the ratio of first to second."""
    lines = [
        [scenario, case, metric, "more" if metric in MORE_IS_BETTER else "less", *figures]
        for (scenario, case), metric, *figures in _ratios(_by_case(ours), _by_case(theirs))
    ]
    names = [" + ".join(dict.fromkeys(row["label"] for row in rows)) for rows in (ours, theirs)]
    return markdown(["scenario", "case", "figure", "better", *names, "ratio"], lines)


def _ratios(
    ours: dict[Key, list[Row]], theirs: dict[Key, list[Row]]
) -> Iterator[tuple[Key, str, str, str, str]]:
    for key in ours:
        for metric in COLUMNS.get(key[0], ()):
            first, second = median(ours[key], metric), median(theirs.get(key, []), metric)
            if first is not None and second is not None and (first or second):
                ratio = first / second if second else None
                yield key, metric, rounded(first), rounded(second), rounded(ratio)


def _by_case(rows: Sequence[Row]) -> dict[Key, list[Row]]:
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["scenario"], row["case"]].append(row)
    return dict(groups)


def median(rows: Sequence[Row], metric: str) -> float | None:
    """Return the median of a figure over its repeats, or None if no row has it."""
    values = [row[metric] for row in rows if row.get(metric) is not None]
    return statistics.median(values) if values else None


def rounded(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *lines))
