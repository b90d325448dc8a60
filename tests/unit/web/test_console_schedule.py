"""What the console says of the schedules of crons. On Node, without a browser."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache

import pytest

from tests.support.javascript import JS, NODE, environment

FILE = JS / "console" / "schedule.mjs"
ROWS = re.findall(r'^  test\("([^"]+)"', FILE.read_text(), re.MULTILINE)


@cache
def failures() -> dict[str, str | None]:
    done = subprocess.run(
        [NODE / "node", "--test-force-exit", f"--test-reporter={JS / 'reporter.mjs'}", FILE],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout + done.stderr
    return {told["row"]: told["failure"] for told in lines}


@pytest.mark.parametrize("row", ROWS)
def test_schedules_in_words(row: str) -> None:
    assert row in failures(), "it was not run"
    assert failures()[row] is None, failures()[row]
