"""What each level of isolation keeps from user code, tried by code that looks for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli import embedded
from shared.settings import BadSetting, Settings
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
if sys.argv[1] == "other user":  # as on a machine whose interpreter everybody can reach
    sandbox._settled = sandbox.Isolation(1, sandbox.Identity(65534, 65534), drops_rights=True)
    settings.data_dir.chmod(0o711)
else:
    sandbox.settle(settings)
home = settings.data_dir / "given"
home.mkdir(exist_ok=True, mode=0o700)
sandbox.give(home)
program = ["/bin/sh", "-c", sys.argv[2]]
argv = sandbox.wrap(program, isolation=settings.isolation, readonly=[], writable=[home], cwd=home)
env = {"PATH": os.defpath, "PLATFORM": sys.argv[3], "SECRET": str(settings.data_dir / "admin.key")}
done = subprocess.run(argv, env=env, preexec_fn=sandbox.confine, cwd=home, capture_output=True, text=True)
print(json.dumps({"level": sandbox.level(settings.isolation), "said": done.stdout, "error": done.stderr}))
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


def without(program: str, folder: Path) -> str:
    """A PATH on which this program cannot be found."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for found in Path(place).glob("*") if Path(place).is_dir() else ():
            if found.name != program and not (folder / found.name).is_symlink():
                (folder / found.name).symlink_to(found)
    return str(folder)


CASES: dict[str, dict[str, str]] = {
    "best": {},
    "without bubblewrap": {"PATH": "hidden"},
    "none": {"RUNYARD_ISOLATION": "none"},
    "other user": {"RUNYARD_ISOLATION": "none"},
}


@pytest.mark.parametrize("case", CASES)
def test_user_code_has_no_rights_and_sees_no_secrets(case: str, platform: str) -> None:
    variables = CASES[case]
    if case == "other user" and os.geteuid() != 0:
        case = "none"  # only root can be somebody else
    with tempfile.TemporaryDirectory(prefix="runyard-") as made:  # pytest's own folders are closed to others
        folder = Path(made)
        folder.chmod(0o755)
        if variables.get("PATH") == "hidden":
            variables = {"PATH": without("bwrap", folder / "bin")}
        said = snoop(case, folder / "data", variables, platform)

    level, lines = said["level"], said["said"].splitlines()
    assert not [line for line in lines if line.startswith(("read the environment", "Cap"))], said
    assert "NoNewPrivs:\t1" in lines
    assert "wrote" in lines, said
    assert ("secret" in lines) is (level == 0), "only at level 0 are the service's files open"
    assert (lines[-1] == "65534") is (level == 1)
    if case in ("none", "without bubblewrap"):
        assert level < 2


def snoop(case: str, data_dir: Path, variables: dict[str, str], platform: str) -> dict[str, Any]:
    data_dir.mkdir(mode=0o700)
    embedded.secret_file(data_dir / "admin.key", lambda: "secret")
    env = os.environ | {"RUNYARD_DATA_DIR": str(data_dir), "DATABASE_URL": "postgresql://x"} | variables
    done = subprocess.run(
        [sys.executable, "-c", WORKER, case, SNOOP, platform],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_sandbox_can_be_demanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", without("bwrap", tmp_path / "bin"))
    sandbox._bubblewrap.cache_clear()
    settings = Settings.from_env({"RUNYARD_ISOLATION": "require", "RUNYARD_DATA_DIR": str(tmp_path)})
    try:
        with pytest.raises(BadSetting, match="RUNYARD_ISOLATION=require"):
            sandbox.settle(settings)
    finally:
        sandbox._bubblewrap.cache_clear()
