"""Clients that cannot be installed beside the newest ones: a separate environment, and programs that run in it.

The environment is created once for each lock file. A program's functions `check_…` are called one after the other.
"""

from __future__ import annotations

import ast
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

PROGRAMS = Path(__file__).parents[1] / "clients"
LOCK = PROGRAMS / "requirements.lock"
CACHE = PROGRAMS.parent.parent / ".cache" / "clients"
UV = Path(sys.executable).parent / "uv"
INSTALL_SECONDS, RUN_SECONDS = 240, 170


def checks(program: str) -> list[str]:
    """Return the names of a program's checks."""
    tree = ast.parse((PROGRAMS / program).read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.AsyncFunctionDef)]
    return [name for name in names if name.startswith("check_")]


def installed(lock: Path = LOCK) -> Path:
    """Create an environment with the packages of a lock file if it is missing. Returns its interpreter."""
    place = CACHE / hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    if not place.exists():
        fresh = CACHE / f"{place.name}.{os.getpid()}"
        _uv("venv", "--quiet", "--relocatable", "--python", sys.executable, fresh)
        _uv("pip", "sync", "--quiet", "--python", fresh / "bin" / "python", "--require-hashes", lock)
        try:
            fresh.rename(place)
        except OSError:
            shutil.rmtree(fresh)  # another process was first
    return place / "bin" / "python"


def _uv(*arguments: str | Path) -> None:
    subprocess.run([UV, *arguments], check=True, timeout=INSTALL_SECONDS)


@cache
def outcomes(program: str, url: str, key: str) -> Mapping[str, str | None]:
    """Run a program's checks. Returns the failure of each check, or None for success."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    done = subprocess.run(
        [installed(), PROGRAMS / "checking.py", program],
        env={**ours, "DEPLOYMENT_URL": url, "DEPLOYMENT_KEY": key},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found
