"""Evaluation of a soak: whether a service stays stable once as many runs are removed as are created."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main


def row(*, rows: int = 100, disk: int = 10**7, p50: float = 20.0, dead: int = 5) -> dict[str, Any]:
    run = {"rows": rows, "dead": dead, "bytes": disk, "index_bytes": disk}
    cpu = {"web": 5.0, "postgres": 2.0}
    return {
        "runs": 1_000,
        "p50_ms": p50,
        "p95_ms": 2 * p50,
        "cpu_ms": cpu,
        "memory": {"web": 1e8},
        "tables": {"run": run},
    }


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    (folder / "steps.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return folder


FILLING = [row(rows=10), row(rows=60)]


def test_what_fills_at_first_and_then_stays_is_flat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path, *FILLING, *[row() for _ in range(3)], row(rows=105))

    assert main(["last", "--folder", str(folder), "--steps", "0"]) == 0

    shown = capsys.readouterr().out
    assert "| 6,000 | 105.0 | 20.0 | 100.0 | 7.0 | 2.0 | 20.0 | 40.0 | 5 |" in shown
    assert "| drift | +2% | +0% |" in shown


@pytest.mark.parametrize(
    "grown", [{"rows": 130}, {"disk": 2 * 10**7}, {"p50": 30.0}], ids=lambda one: next(iter(one))
)
def test_what_goes_on_growing_fails(tmp_path: Path, grown: dict[str, Any]) -> None:
    folder = write(tmp_path, *FILLING, row(), row(), row(**grown), row(**grown))

    assert main(["last", "--folder", str(folder), "--steps", "0"]) == 1


def test_what_becomes_less_is_no_failure(tmp_path: Path) -> None:
    folder = write(tmp_path, *FILLING, row(), row(), row(p50=10.0), row(p50=10.0))

    assert main(["last", "--folder", str(folder), "--steps", "0"]) == 0


def test_two_steps_say_nothing_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, row(rows=10), row(rows=60))

    assert main(["last", "--folder", str(folder), "--steps", "0"]) == 0
    assert "drift" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "asked", [["--steps", "-1"], ["--runs", "5"], ["--seconds", "nan"], ["--seconds", "0"]], ids=" ".join
)
def test_a_step_of_nothing_is_refused(
    tmp_path: Path, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["last", "--folder", str(tmp_path), *asked]) == 1
    assert "10 runs" in capsys.readouterr().err


def test_a_folder_without_steps_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["last", "--folder", str(tmp_path / "none"), "--steps", "0"]) == 1
    assert "has no steps" in capsys.readouterr().err
