"""The units of `deploy/systemd` agree with the Procfile and the settings. The suite runs no systemd."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from cli.machine.procfile import PROJECT, RELEASE, WITHHELD, read
from shared.settings import VARIABLES, Settings

FOLDER = PROJECT / "deploy" / "systemd"
PROGRAM = "/opt/runyard/bin/runyard"
UNITS = {
    "release": "runyard-migrate.service",
    "web": "runyard-web.service",
    "runner": "runyard-runner@.service",
    "builder": "runyard-builder.service",
    "beat": "runyard-beat.service",
}
SANDBOXED = ("runner", "builder")
GRACEFUL_SECONDS = 30  # `graceful_timeout` in web/gunicorn.py
STEPS_DOWN_SECONDS = 10  # after the drain, for handing over the remaining runs
# Options that keep bubblewrap from creating its namespaces and mounts, and so prevent isolation level 2.
AGAINST_THE_SANDBOX = {
    "RestrictNamespaces", "ProtectKernelTunables", "ProtectKernelLogs", "ProtectProc", "PrivateUsers",
    "SystemCallFilter", "MemoryDenyWriteExecute", "ProcSubset",
}  # fmt: skip

each_process = pytest.mark.parametrize("process", UNITS)
each_lasting = pytest.mark.parametrize("process", [name for name in UNITS if name != RELEASE])


def unit(process: str) -> dict[str, list[str]]:
    """Return the values of each key of a unit, in order."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for line in (FOLDER / UNITS[process]).read_text().splitlines():
        name, is_pair, value = line.partition("=")
        if is_pair and not line.startswith("#"):
            found[name].append(value)
    return found


def test_there_is_a_unit_for_each_line_of_the_procfile_and_a_target() -> None:
    assert set(UNITS) == {line.name for line in read()}
    assert {path.name for path in FOLDER.iterdir()} == {*UNITS.values(), "runyard.target"}


@each_process
def test_it_starts_its_line_of_the_procfile_with_no_right_setting_or_key_that_it_does_not_need(
    process: str,
) -> None:
    found = unit(process)

    assert found["ExecStart"][0].endswith(f"{PROGRAM} process {process}")
    assert found["User"] == ["runyard"]
    assert found["NoNewPrivileges"] == ["yes"]
    assert found["ProtectSystem"] == ["strict"]
    assert found["CapabilityBoundingSet"] == [""]
    assert found["EnvironmentFile"] == ["/etc/runyard/env"]
    assert found["PartOf"] == ["runyard.target"]

    assert found["StateDirectory"] == ["runyard"]
    assert found["StateDirectoryMode"] == ["0700"]
    assert "RUNYARD_DATA_DIR=/var/lib/runyard" in found["Environment"]

    named = {value.partition("=")[0] for value in found["Environment"]}
    named |= {name.removesuffix("_FILE") for value in found["UnsetEnvironment"] for name in value.split()}

    assert named <= set(VARIABLES.values())

    assert found["Delegate"] == (["cpu memory pids"] if process in SANDBOXED else [])
    assert bool(AGAINST_THE_SANDBOX & set(found)) is (process not in SANDBOXED)

    withheld = {f"{name}{end}" for name in WITHHELD.get(process, ()) for end in ("", "_FILE")}

    assert {name for value in found["UnsetEnvironment"] for name in value.split()} == withheld


@each_lasting
def test_it_starts_after_the_migrations_and_again_when_it_dies_and_has_the_time_to_drain(
    process: str,
) -> None:
    found = unit(process)

    assert found["Requires"] == [UNITS[RELEASE]]
    assert UNITS[RELEASE] in found["After"][0].split()
    assert found["Restart"] == ["always"]
    assert found["WantedBy"] == ["runyard.target"]

    assert found["KillMode"] == ["mixed"]
    assert int(found["TimeoutStopSec"][0]) >= max(
        Settings().drain_seconds + STEPS_DOWN_SECONDS, GRACEFUL_SECONDS + 5
    )


def test_the_migrations_run_once_and_have_their_time() -> None:
    found = unit(RELEASE)

    assert (found["Type"], found["RemainAfterExit"]) == (["oneshot"], ["yes"])
    assert found["TimeoutStartSec"] == ["infinity"]
    assert "Restart" not in found


def test_the_pool_of_a_runner_is_its_instance_whatever_the_environment_file_says() -> None:
    found = unit("runner")

    assert found["ExecStart"] == [f"/usr/bin/env RUNYARD_POOL=%i {PROGRAM} process runner"]
    assert found["DefaultInstance"] == [Settings().pool]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_takes_them(tmp_path: Path) -> None:
    for path in FOLDER.iterdir():
        # systemd-analyze requires the program to exist.
        (tmp_path / path.name).write_text(path.read_text().replace(PROGRAM, "/bin/true"))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
    )

    ours = [line for line in done.stderr.splitlines() if "runyard" in line]
    assert (done.returncode, ours) == (0, []), done.stderr
