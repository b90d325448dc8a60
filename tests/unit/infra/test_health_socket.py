"""Health checks answered by the process itself, including checks of a frozen or killed process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.machine import health
from cli.machine.health import Unhealthy
from shared.infra import health_socket
from shared.infra.health_socket import READY, HealthSocket
from shared.settings import Settings
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
PROCESS = """
import sys, threading
from pathlib import Path
from shared.infra.health_socket import HealthSocket
HealthSocket(Path(sys.argv[1]), sys.argv[2], lambda: sys.argv[3] or None).open()
threading.Event().wait()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, because the path of a socket is limited in length."""
    with tempfile.TemporaryDirectory(prefix="health-") as made:
        yield Path(made) / "runtime"


@contextmanager
def process(folder: Path, kind: str = "runner", why_not: str = "") -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", PROCESS, str(folder), kind, why_not]
    started = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_until(lambda: (folder / f"{kind}-{started.pid}.socket").exists(), 30)
        yield started
    finally:
        started.kill()
        started.wait()


def check(folder: Path, kind: str = "runner", *, is_ready: bool = False, pid: int | None = None) -> str:
    return health.check(Settings(runtime_dir=folder), kind, is_ready=is_ready, pid=pid)


def test_a_process_whose_loop_turns_is_live_and_ready_unless_it_drains(folder: Path) -> None:
    with process(folder) as runner:
        assert check(folder) == f"runner is live: {runner.pid}"
        assert check(folder, is_ready=True) == f"runner is ready: {runner.pid}"
        assert folder.stat().st_mode & 0o777 == 0o700

    with process(folder, why_not="it drains") as runner:
        assert check(folder, pid=runner.pid)
        with pytest.raises(Unhealthy, match=f"runner {runner.pid} is not ready: it drains"):
            check(folder, is_ready=True, pid=runner.pid)


def test_each_data_directory_has_its_own_processes_however_long_its_path(tmp_path: Path) -> None:
    mine, other = (
        Settings.from_env({"RUNYARD_DATA_DIR": str(tmp_path / ("deep" * 30) / name)}).runtime_dir
        for name in ("mine", "other")
    )
    runner = HealthSocket(mine, "runner", lambda: None)
    runner.open()
    try:
        assert check(mine) == f"runner is live: {os.getpid()}"
        with pytest.raises(Unhealthy, match=r"No runner answers in .*/other/run"):
            check(other)
    finally:
        runner.close()
        health_socket.place(mine).rmdir()


def test_one_that_is_frozen_is_unhealthy_until_it_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ANSWER_SECONDS", 0.2)
    with process(folder) as runner:
        os.kill(runner.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(runner.pid))

        with pytest.raises(Unhealthy, match="frozen, or its loop hangs"):
            check(folder)

        os.kill(runner.pid, signal.SIGCONT)
        monkeypatch.setattr(health, "ANSWER_SECONDS", 30.0)
        check(folder)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_one_that_was_killed_is_unhealthy_until_another_takes_its_place(folder: Path) -> None:
    with process(folder) as runner:
        runner.kill()
        runner.wait()
        with pytest.raises(Unhealthy, match="is gone"):
            check(folder)

        with process(folder) as another:
            assert check(folder) == f"runner is live: {another.pid}"


def test_of_several_the_one_that_is_not_well_counts_or_the_one_that_is_meant(folder: Path) -> None:
    with process(folder) as first, process(folder, why_not="it drains") as second:
        with pytest.raises(Unhealthy, match=f"runner {second.pid}"):
            check(folder, is_ready=True)
        assert check(folder, is_ready=True, pid=first.pid) == f"runner is ready: {first.pid}"
        with pytest.raises(Unhealthy, match="No runner with the process id 1 answers"):
            check(folder, pid=1)
        with pytest.raises(Unhealthy, match="No builder answers"):
            check(folder, "builder")


def test_a_folder_that_others_can_write_to_is_not_used(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    folder.chmod(0o777)

    HealthSocket(folder, "runner", lambda: None).open()

    assert "`runyard health runner` cannot reach this process" in caplog.text
    assert not list(folder.iterdir())


def test_nobody_is_left_behind_by_one_that_ends_in_good_order(folder: Path) -> None:
    own = HealthSocket(folder, "beat", lambda: None)
    own.open()
    (address,) = health_socket.addresses(folder, "beat")
    assert (address.pid, health_socket.ask(address, 30)) == (os.getpid(), READY)

    own.close()

    assert not list(folder.iterdir())
