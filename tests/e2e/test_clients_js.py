"""Every method of the JavaScript client, in both lines that people have installed, against the whole platform.

Node comes from a wheel, the clients from lock files by `npm ci`, once for each lock file. The rows are in
`tests/js/rows.mjs`; all of a line run in one process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.stack import FOREIGN, Stack

HERE = Path(__file__).parent.parent
KITCHEN, JS = HERE / "projects" / "kitchen", HERE / "js"
CACHE = HERE.parent / ".cache" / "js"
NODE = Path(sys.executable).parent
LINES = {"v1": "1.15.0", "v2": "2.0.0"}
NEWER = ("threads.prune", "runs.cancelMany")  # than 2.0.0, which is the older one
INSTALL_SECONDS, RUN_SECONDS = 240, 180

ROWS = re.findall(r'^(?:row|newer)\("([^"]+)"', (JS / "rows.mjs").read_text(), re.MULTILINE)
TABLE = [(line, row) for line in LINES for row in ROWS if line == "v1" or row not in NEWER]


@pytest.fixture(scope="module")
def deployment(stack: Stack) -> tuple[str, str]:
    """The address of a deployment with one graph for each behaviour, and a key."""
    return f"{stack.url}/d/{stack.deploy(KITCHEN, name='kitchen')}", stack.api_key


def installed(line: str) -> Path:
    """A directory with that line of the client in it."""
    lock = (JS / line / "package-lock.json").read_bytes()
    place = CACHE / f"{line}-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not place.exists():
        fresh = CACHE / f"{place.name}.{os.getpid()}"
        shutil.copytree(JS / line, fresh)
        command = [NODE / "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
        subprocess.run(command, cwd=fresh, env=environment(), check=True, timeout=INSTALL_SECONDS)
        try:
            fresh.rename(place)
        except OSError:
            shutil.rmtree(fresh)  # another process was first
    return place


def environment(**more: str) -> dict[str, str]:
    """Ours without what would tell a client where to go, and with Node first on the path."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return {**ours, "PATH": f"{NODE}{os.pathsep}{os.environ['PATH']}", **more}


@cache
def outcomes(line: str, url: str, key: str) -> Mapping[str, str | None]:
    """What failed in each row, None where nothing did; empty where none could be run."""
    place = installed(line)
    for name in ("rows.mjs", "reporter.mjs"):
        shutil.copy(JS / name, place)
    done = subprocess.run(
        [NODE / "node", "--test-force-exit", "--test-reporter=./reporter.mjs", "rows.mjs"],
        cwd=place,
        env=environment(DEPLOYMENT_URL=url, DEPLOYMENT_KEY=key),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        print(done.stdout, done.stderr)
    return {told["row"]: told["failure"] for told in lines}


@pytest.mark.parametrize(("line", "row"), TABLE)
def test_each_method_does_what_it_says(deployment: tuple[str, str], line: str, row: str) -> None:
    failures = outcomes(line, *deployment)
    assert row in failures, "it was not run"
    assert failures[row] is None, failures[row]


@pytest.mark.parametrize("line", LINES)
def test_it_is_the_line_that_the_table_names(line: str) -> None:
    package = json.loads((JS / line / "package.json").read_text())
    assert package["dependencies"] == {"@langchain/langgraph-sdk": LINES[line]}
