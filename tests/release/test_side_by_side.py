"""The comparison table: medians, ratios, failures, and the lower bound of a run's CPU time."""

from __future__ import annotations

import pytest

from bench import report, side_by_side
from bench.scenarios import BY_DEFAULT
from bench.side_by_side import LINES
from tests.support.bench_rows import cells, row

FAST = next(line for line in LINES if line.figure == "runs_per_second")
SOON = next(line for line in LINES if line.figure == "whole_ms_p50")
CPU = side_by_side.FLOORS[0]


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.case}.{line.figure}")
def test_a_line_is_a_figure_that_a_default_run_reports(line: side_by_side.Line) -> None:
    assert line.scenario in BY_DEFAULT
    assert line.figure in report.COLUMNS[line.scenario]


def test_the_table_says_how_many_times_as_good_the_first_is() -> None:
    rows = [
        *(row(FAST, "ours", figure) for figure in (90, 110, 100)),
        row(FAST, "theirs", 20),
        row(SOON, "ours", 50, errors=1),
        row(SOON, "theirs", 25, lost=3, disordered=4),
        row(CPU, "in-process", 4),
    ]

    head, _, *lines = cells(side_by_side.table(rows))

    assert head == ["", "", "ours", "theirs", "× theirs"]
    assert [SOON.asks, SOON.unit, "50", "25", "0.5"] in lines
    assert [FAST.asks, FAST.unit, "100", "20", "5"] in lines
    failed, undelivered = side_by_side.FAILURES
    assert [failed, "", "1", "0", ""] in lines
    assert [undelivered, "", "0", "7", ""] in lines


def test_what_was_not_measured_has_no_ratio() -> None:
    rows = [row(FAST, "ours", 100), row(SOON, "ours", None, errors=9), row(FAST, "theirs", 0)]

    lines = cells(side_by_side.table(rows))

    assert [FAST.asks, FAST.unit, "100", "0", ""] in lines
    assert [SOON.asks, SOON.unit, "", "", ""] in lines
    assert side_by_side.table([]) == "" == side_by_side.floor(rows)


def test_the_floor_is_a_multiple_of_what_the_bare_graphs_cost() -> None:
    rows = [row(CPU, "in-process durable", 4), row(CPU, "ours", 9), row(CPU, "theirs", 50)]

    assert cells(side_by_side.floor(rows))[2:] == [[CPU.asks, CPU.unit, "9", "4", "2.25"]]
