"""Both lines of the JavaScript client that people have installed, a browser, and tests written for them.

Node comes from a wheel, the clients from lock files by `npm ci`, once for each lock file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.support.stack import FOREIGN

JS = Path(__file__).parents[1] / "js"
CACHE = JS.parent.parent / ".cache" / "js"
NODE = Path(sys.executable).parent
LINES = {"v1": "1.15.0", "v2": "2.0.0"}  # the older one has the higher number
INSTALL_SECONDS, RUN_SECONDS = 240, 180


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
def outcomes(line: str, rows: str, url: str, key: str, **more: str) -> Mapping[str, str | None]:
    """What failed in each row of a file, None where nothing did; empty where none could be run.

    `more` is environment of the file's own.
    """
    place = installed(line)
    for file in (JS / rows, JS / "reporter.mjs", *(JS / line).glob("*.jsx")):
        shutil.copy(file, place)
    done = subprocess.run(
        [NODE / "node", "--test-force-exit", "--test-reporter=./reporter.mjs", rows],
        cwd=place,
        env=environment(DEPLOYMENT_URL=url, DEPLOYMENT_KEY=key, **more),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        print(done.stdout, done.stderr)
    return {told["row"]: told["failure"] for told in lines}
