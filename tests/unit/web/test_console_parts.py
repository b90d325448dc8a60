"""What the console's parts make of values: differences, schemas, messages, events, schedules. On Node, without a browser."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache

import pytest

from tests.support.javascript import JS, NODE, environment

FILES = [*sorted((JS / "console").glob("*parts.mjs")), JS / "console" / "schedule.mjs"]
ROWS = [
    (file.name, row)
    for file in FILES
    for row in re.findall(r'^  test\("([^"]+)"', file.read_text(), re.MULTILINE)
]


@cache
def failures(file: str) -> dict[str, str | None]:
    done = subprocess.run(
        [NODE / "node", "--test-force-exit", f"--test-reporter={JS / 'reporter.mjs'}", JS / "console" / file],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout + done.stderr
    return {told["row"]: told["failure"] for told in lines}


@pytest.mark.parametrize(("file", "row"), ROWS)
def test_the_console_s_parts(file: str, row: str) -> None:
    assert row in failures(file), "it was not run"
    assert failures(file)[row] is None, failures(file)[row]
