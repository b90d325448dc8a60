"""The capacity model: sums of measured costs, whole processes, and the limit of a single server."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench import capacity
from bench.__main__ import main
from bench.capacity import BUSY, Costs, Load

COSTS = Costs(
    run_cpu_ms={"web": 4.0, "runner": 3.0, "hosts": 2.0, "postgres": 2.0, "redis": 0.5},
    event_cpu_us={"web": 40.0, "runner": 40.0, "hosts": 50.0, "postgres": 0.0, "redis": 20.0},
    stream_cpu_us={"web": 50.0, "postgres": 0.0, "redis": 0.0},
    stream_bytes=20_000,
    process_bytes={"web": 100e6, "runner": 100e6, "hosts": 60e6},
    connection_bytes=4e6,
    run_transactions=5.0,
    run_wal_syncs=2.0,
    run_wal_bytes=10_000,
    run_disk_bytes=8_000,
    run_redis_bytes=4_000,
    event_redis_bytes=70,
    run_publishes=3.0,
    event_publishes=1.0,
    commits_per_second=1_000,
)
LOAD = Load(
    runs_per_day=864_000, streams=10_000, threads=1_000_000, tokens_per_run=100, run_seconds=10, peak=2
)


def test_cores_are_what_runs_events_and_streams_take_together() -> None:
    needs = capacity.needs(COSTS, LOAD)

    assert LOAD.peak_runs == 20
    assert needs["web"].cores == pytest.approx(20 * (0.004 + 100 * 40e-6) + 10_000 * 50e-6)
    assert needs["redis"].cores == pytest.approx(20 * (0.0005 + 100 * 20e-6))


def test_processes_are_whole_and_bounded_by_what_each_may_have() -> None:
    needs = capacity.needs(COSTS, LOAD)
    crowded = capacity.needs(COSTS, dataclasses.replace(LOAD, streams=100_000))
    quiet = capacity.needs(COSTS, Load(runs_per_day=0, streams=0, threads=0, tokens_per_run=0))

    assert needs["web"].processes == 2  # 0.66 cores at 60 % utilization; 10,000 streams
    assert crowded["web"].processes == 20  # because of the streams: 5.16 cores need only 9
    assert {need.processes for need in quiet.values()} == {1}
    assert needs["web"].memory_bytes == pytest.approx(2 * 100e6 + 10_000 * 20_000)
    assert needs["redis"].memory_bytes == pytest.approx(20 * 900 * (4_000 + 100 * 70))


def test_one_server_ends_where_its_core_is_busy_or_its_disk() -> None:
    needs = capacity.needs(COSTS, LOAD)

    assert needs["redis"].ends_at == pytest.approx(BUSY / 0.0025)
    assert needs["postgres"].ends_at == pytest.approx(500)


def test_what_is_stored_follows_runs_and_threads() -> None:
    found = {name: number for name, number, _ in capacity.stored(COSTS, LOAD)}

    assert found["PostgreSQL's log"] == pytest.approx(8.64)
    assert found["stored threads"] == pytest.approx(8.0)
    assert found["threads to the GB"] == pytest.approx(125_000)
    assert found["Redis' publishes at the peak"] == pytest.approx(20 * 103)
    assert found["PostgreSQL's connections without a pooler"] == 2 * 16 + 8


def test_costs_are_kept_in_a_file_and_make_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "costs.json"
    COSTS.write(path)

    assert Costs.read(path) == COSTS
    assert main(["capacity", "--costs", str(path), "--runs-per-day", "864000", "--peak", "2"]) == 0
    written = capsys.readouterr().out
    assert "| runs at the peak | 20 a second |" in written
    assert "| a run, ms of CPU | 4.00 | 3.00 | 2.00 | 2.00 | 0.50 | 11.50 |" in written


def test_what_cannot_be_used_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "costs.json"
    path.write_text('{"run_cpu_ms": {}}')

    assert main(["capacity", "--costs", str(path)]) == 1
    assert main(["capacity", "--costs", str(tmp_path / "none")]) == 1
    assert main(["capacity", "--streams", "-1"]) == 1
    assert main(["capacity", "--watched", "1"]) == 1
    assert "does not have the costs" in capsys.readouterr().err
