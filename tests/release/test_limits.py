"""`python -m bench limits` with few runs and events: every run is claimed once, and every subscriber gets every event."""

from __future__ import annotations

import pytest

from bench.__main__ import main
from bench.fan_out import LOGS, SHAPES, measure_events
from bench.simulated_runners import BATCHES, measure_runs
from tests.support.bench_rows import cells


def test_each_inserted_run_is_claimed_once_and_ended_by_one_runner_or_two() -> None:
    found = list(measure_runs(runs=121, runners=[1, 2]))  # raises an error unless it is so

    assert [(item.runners, item.batch) for item in found] == [
        (count, size) for count in (1, 2) for size in BATCHES
    ]
    assert [item.runs for item in found] == [121, 121, 120, 120]
    assert all(item.short_claims == 0 for item in found)
    assert all(item.wal_bytes > 1_000 for item in found)
    alone, together = found[:2]
    assert together.wal_syncs < 0.5 < alone.wal_syncs, "runs that end together share a wait for the disk"


def test_each_subscriber_receives_each_event() -> None:
    found = list(measure_events(count=1, subscribers=[0, 2]))  # at least one round over all logs

    assert [(item.logs, item.per_log, item.subscribers) for item in found] == [
        (*shape, number) for shape in SHAPES for number in (0, 2)
    ]
    assert all(
        item.events == LOGS * item.per_log and item.copies == item.events * item.subscribers for item in found
    )
    assert all(item.cpu_us > 0 for item in found)


def test_the_command_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["limits", "--runs", "2", "--runners", "1", "--events", "1", "--subscribers", "0"]) == 0

    lines = cells(capsys.readouterr().out)
    assert [line[:2] for line in lines if line[0] == "1"][:2] == [["1", str(size)] for size in BATCHES]
    assert main(["limits", "--runs", "1", "--runners", "2"]) == 1
