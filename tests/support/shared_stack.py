"""One platform for all workers of a test run, or a platform that already runs.

The first worker that needs the platform starts it. The other workers attach to it, and the controller stops it after
the last test. Tests that share the platform keep their objects apart by names, keys and metadata.

With `RUNYARD_TEST_URL` and `RUNYARD_TEST_KEY` the tests use that platform instead and neither start nor stop it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.stack import STOP_SECONDS, Stack

FOLDER = "RUNYARD_TEST_FOLDER"  # set by the controller, inherited by its workers
URL, KEY = "RUNYARD_TEST_URL", "RUNYARD_TEST_KEY"
# Every module has its own deployments, each with one warm host. A busy deployment would by default start a second
# host, which costs one second of CPU time. Platforms of the fault ring have two.
HOSTS = {"RUNYARD_MAX_HOSTS": "40", "RUNYARD_HOSTS_PER_REVISION": "1"}


class SharedStack(Stack):
    """The platform of the test run, as each worker sees it."""

    prepares_database = True

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        super().__init__(folder, {**HOSTS, **env})
        self._state = folder / "platform.json"
        self._up: psutil.Process | None = None
        self._live = os.environ.get(URL)

    def attach(self) -> None:
        """Start the platform unless another worker has started it."""
        if self._live:
            self.url = self._live.rstrip("/")
            return
        with locked(self.data_dir / "platform.lock"):
            if not self._state.exists():
                self.start()
                self._state.write_text(json.dumps({"port": self.port, "pid": self.up_pid}))
        state = json.loads(self._state.read_text())
        self.port, self._up = state["port"], psutil.Process(state["pid"])
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def up(self) -> psutil.Process | None:
        return self._up or super().up

    @property
    def api_key(self) -> str:
        return os.environ[KEY] if self._live else super().api_key

    def deploy_once(self, directory: Path, name: str) -> str:
        """Deploy a project that several modules use without changing it. Returns its name."""
        with locked(self.data_dir / f"deploy-{name}.lock") as first:
            if first:
                self.deploy(directory, name)
        return name


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a file's lock while the block runs. Yields True until a holder has left its block without an error."""
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield not path.stat().st_size
        file.write("done\n")


def prepare() -> None:
    """Choose the folder that the workers share. Runs in the controller before the workers start."""
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="runyard-")


def shared(env: Mapping[str, str]) -> SharedStack:
    """Return the platform of the test run. Starts it with these settings if it does not run yet."""
    stack = SharedStack(Path(os.environ[FOLDER]), env)
    stack.attach()
    return stack


def stop() -> list[str]:
    """Stop the platform as Ctrl-C does. Runs in the controller after the last test. Returns leftover processes."""
    folder = Path(os.environ.pop(FOLDER))
    try:
        state = folder / "platform.json"
        return _stopped(json.loads(state.read_text())["pid"]) if state.exists() else []
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stopped(pid: int) -> list[str]:
    try:
        up = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return ["`runyard up` ended before the last test"]
    family = [up, *up.children(recursive=True)]
    up.send_signal(signal.SIGINT)
    _, left = psutil.wait_procs(family, STOP_SECONDS)
    left = [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
    for process in left:
        process.kill()
    return [str(process) for process in left]
