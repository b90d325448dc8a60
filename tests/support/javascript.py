"""Both lines of the JavaScript client that people have installed, a browser, and tests written for them.

Node comes from a wheel, the clients from lock files by `npm ci`, once for each lock file. As a program it runs a script
of a folder with the packages of its lock file, and this with arguments: `make vendor` and `make check` do.
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

from tests.support.stack import FOREIGN

JS = Path(__file__).parents[1] / "js"
CACHE = JS.parent.parent / ".cache" / "js"
NODE = Path(sys.executable).parent
LINES = {"v1": "1.15.0", "v2": "2.0.0"}  # `v2` is the older one, although its number is higher
NEWEST = "v1"
INSTALL_SECONDS, RUN_SECONDS = 240, 180


def installed(line: str | Path) -> Path:
    """A directory with the packages of a lock file in it: of that line of the client, or of another folder."""
    folder = JS / line
    lock = (folder / "package-lock.json").read_bytes()
    place = CACHE / f"{folder.name}-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not place.exists():
        fresh = CACHE / f"{place.name}.{os.getpid()}"
        shutil.copytree(folder, fresh)
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
def outcomes(
    line: str, rows: str, url: str, key: str, *, seconds: float = RUN_SECONDS, **more: str
) -> Mapping[str, str | None]:
    """What failed in each row of a file, None where nothing did; empty where none could be run.

    `more` is environment of the file's own. One in a folder has the folder's other files beside it.
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
    """Fail unless this row of a file succeeded; the arguments after it are those of `outcomes`."""
    failures = outcomes(line, rows, url, key, seconds=seconds, **more)
    assert row in failures, "it was not run"
    assert failures[row] is None, failures[row]


def _copy(file: Path, folder: Path) -> None:
    """Put a file there, whole at once: another process may be reading the one before."""
    folder.mkdir(exist_ok=True)
    fresh = folder / f".{file.name}.{os.getpid()}"
    shutil.copy(file, fresh)
    fresh.replace(folder / file.name)


UNPACK = 'import packed from "@sparticuz/chromium"; await packed.executablePath();'


@cache
def chromium() -> Path:
    """The folder that the browser is unpacked in, by the first process that asks for it."""
    place = CACHE / "chromium"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [NODE / "node", "--input-type=module", "--eval", UNPACK]
        unpacking = environment(TMPDIR=str(place))
        subprocess.run(command, cwd=installed("browser"), env=unpacking, check=True, timeout=INSTALL_SECONDS)
    return place


def run_script(folder: Path, script: str, *arguments: str) -> int:
    """Run a script of a folder, or of its packages, where these are installed; its exit code."""
    place = installed(folder)
    shutil.copytree(folder, place, dirs_exist_ok=True)
    return subprocess.run(
        [NODE / "node", script, *arguments], cwd=place, env=environment(), check=False
    ).returncode


if __name__ == "__main__":
    _, folder, script, *arguments = sys.argv
    sys.exit(run_script(Path(folder).absolute(), script, *arguments))
