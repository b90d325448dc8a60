"""The whole platform as `runyard up` starts it, on a free port and in its own folder, for tests over HTTP."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

from cli.client.client import Client
from cli.deployments.deploy import deploy_project
from cli.deployments.project import Project
from cli.machine import embedded
from cli.machine.procfile import PROJECT
from tests.support.servers import copy_prepared_cluster, free_port, valkey_url
from tests.support.waiting import wait_until

START_SECONDS = 240
STOP_SECONDS = 45
TAIL_LINES = 80

# Text in a process's command line that identifies its kind.
MARKS = {
    "web": "web/gunicorn.py",
    "runner": "runner@",
    "builder": "builder@",
    "postgres": "bin/postgres -D",
    "valkey": "valkey-server",
    "host": "workers/graph_host",
    "javascript host": "workers/node_host",
}
FORKING = ("runner", "builder")
# Settings in the developer's environment must not reach the platform under test.
FOREIGN = ("RUNYARD_", "DATABASE_", "REDIS_", "LANGGRAPH_", "LANGSMITH_", "LANGCHAIN_")


class Stack:
    """A running platform. Use `with Stack() as stack`, or start() and stop()."""

    prepares_database = False  # whether its first start creates the database

    def __init__(
        self,
        data_dir: Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        code: Path = PROJECT,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="runyard-") if data_dir is None else None
        self.data_dir = data_dir or Path(self._temporary.name if self._temporary else "")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = self.data_dir / "up.log"
        self._env = dict(env or {})
        self._code = code  # source tree of the release to start
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                print(self.tail())
            self.stop()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()

    @property
    def command(self) -> Sequence[str]:
        """Command that starts the platform."""
        return [sys.executable, "-m", "cli", "up"]

    @property
    def folder(self) -> Path:
        """Working directory of the command."""
        return self._code

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the platform and for `runyard` commands that address it."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return {
            **outside,
            "RUNYARD_PORT": str(self.port),
            "RUNYARD_PROCESSES": "web=1,runner=1",  # independent of the machine's size
            "RUNYARD_DATA_DIR": str(self.data_dir),
            "RUNYARD_RUNTIME_DIR": str(self.data_dir / "run"),
            "RUNYARD_CACHE_DIR": str(PROJECT / ".cache"),
            "RUNYARD_LOG_LEVEL": "INFO",
            "RUNYARD_MIN_CRON_SECONDS": "1",
            **self._env,
        }

    def start(self) -> None:
        """Start the platform and wait until it is ready."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        is_given = self.prepares_database or "DATABASE_URL" in self._env or self._code != PROJECT
        if not is_given and not (self.data_dir / "postgres").exists():
            copy_prepared_cluster(self.data_dir)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=heed_signals,
            )
        try:
            wait_until(self._is_ready, START_SECONDS, what="the platform to answer")
        except AssertionError:
            print(self.tail())
            self.stop()
            raise

    def _is_ready(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"`runyard up` ended with exit code {code}"
        return b"API docs" in self.log.read_bytes() and bool(self.pids("runner")) and self.is_up()

    def is_up(self) -> bool:
        """Return whether the web process answers."""
        try:
            return self.client.get("/ok", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> int:
        """Stop the platform as Ctrl-C does and return the exit code. Fails if a process is left behind."""
        process, self._process = self._process, None
        if process is None:
            return 0
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"`runyard up` did not stop within {STOP_SECONDS} s\n{self.tail()}"
            ) from None
        _, left = psutil.wait_procs(family, timeout=5)
        for orphan in left:
            orphan.kill()
        assert not left, f"left behind: {left}\n{self.tail()}"
        return code

    def kill_up(self) -> None:
        """Send `kill -9` to `runyard up` alone. Fails unless its child processes end too."""
        assert self._process is not None
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        self._process = None
        _, left = psutil.wait_procs(family, timeout=20)
        assert not left, f"outlived `runyard up`: {left}"

    def kill_all(self) -> None:
        """Send `kill -9` to all processes at once, like a power failure."""
        assert self._process is not None
        up = psutil.Process(self._process.pid)
        up.suspend()  # otherwise it could start a successor
        family = up.children(recursive=True)
        for process in [up, *family]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._process = None
        _, left = psutil.wait_procs(family, timeout=20)
        assert not left, f"outlived `kill -9`: {left}"

    @property
    def up(self) -> psutil.Process | None:
        """Process of `runyard up` while it runs."""
        if self._process is None or self._process.poll() is not None:
            return None
        return psutil.Process(self._process.pid)

    @property
    def up_pid(self) -> int:
        assert self.up is not None
        return self.up.pid

    def pids(self, name: str) -> list[int]:
        """Return the ids of the processes of this kind, oldest first. Includes children with the same command line.

        A process that a runner or builder has just forked has its command line until it executes its own program. It is
        not included.
        """
        up = self.up
        if up is None:
            return []
        found = []
        for process in up.children(recursive=True):
            try:
                is_fork = name in FORKING and process.ppid() in [parent.pid for parent in found]
                is_of_kind = MARKS[name] in " ".join(process.cmdline()) and not is_fork
                if is_of_kind and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return [process.pid for process in sorted(found, key=lambda process: process.create_time())]

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> list[int]:
        """Send a signal to every process of this kind. Returns their ids."""
        pids = self.pids(name)
        assert pids, f"no {name} runs"
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        return pids

    def restart(self, name: str, *, empty: bool = False, forgets: int = 0) -> None:
        """Kill a process and wait for its successor.

        For Valkey: `empty` deletes its append-only files; `forgets` truncates this many bytes from their end.
        """
        os.kill(self.up_pid, signal.SIGSTOP)  # otherwise the successor could read the old files
        try:
            old = self.kill(name)
            if empty:
                shutil.rmtree(self.data_dir / "valkey" / "appendonlydir")
            elif forgets:
                [written] = (self.data_dir / "valkey" / "appendonlydir").glob("*.incr.aof")
                os.truncate(written, max(written.stat().st_size - forgets, 0))
        finally:
            os.kill(self.up_pid, signal.SIGCONT)
        wait_until(lambda: (new := self.pids(name)) and not set(new) & set(old), 30, what=f"another {name}")

    def tail(self, lines: int = TAIL_LINES) -> str:
        """Return the last lines of the platform's log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([f"--- {self.log}", *text.splitlines()[-lines:]])

    @property
    def api_key(self) -> str:
        return self._env.get("RUNYARD_API_KEY") or (self.data_dir / "admin.key").read_text().strip()

    @property
    def database_url(self) -> str:
        return self._env.get("DATABASE_URL") or embedded.postgres_url(self.data_dir)

    @property
    def redis_url(self) -> str:
        return self._env.get("REDIS_URL") or valkey_url(self.data_dir)

    @cached_property
    def client(self) -> httpx.Client:
        """HTTP client with the admin key."""
        return httpx.Client(base_url=self.url, headers={"X-Api-Key": self.api_key}, timeout=30)

    def record(self, name: str) -> dict[str, Any]:
        """Return the record of a deployment."""
        (found,) = self.client.get("/v2/deployments", params={"name": name}).json()["resources"]
        return found

    def revisions(self, name: str) -> list[dict[str, Any]]:
        """Return the records of a deployment's revisions, newest first."""
        return self.client.get(f"/v2/deployments/{self.record(name)['id']}/revisions").json()["resources"]

    def deploy(self, directory: Path | str, name: str | None = None) -> str:
        """Deploy a project and wait until it serves. Returns its name."""
        folder = Path(directory)
        name = name or folder.name
        with Client(self.url, self.api_key) as client:
            deploy_project(client, Project.read(folder), name, print)
        return name

    def sdk(self, name: str, api_key: str | None = None) -> SyncLangGraphClient:
        """Return a client of the public SDK for a deployment."""
        return get_sync_client(url=f"{self.url}/d/{name}", api_key=api_key or self.api_key)

    def cli(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a `runyard` command against this platform in a new process."""
        return subprocess.run(
            [sys.executable, "-m", "cli", *arguments],
            cwd=PROJECT,
            env=self.environment | {"RUNYARD_URL": self.url},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def runyard(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `runyard` command that only calls the API, in this process, which saves a second of imports."""
        from tests.support.commands import invoke  # the slowest import of all tests, therefore deferred

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "environ", self.environment | {"RUNYARD_URL": self.url})
            ran = invoke(*arguments)
        return subprocess.CompletedProcess(arguments, ran.exit_code, ran.stdout, ran.stderr)


def heed_signals() -> None:
    """Reset signals in a child process. A shell ignores them in background jobs, and their children inherit that."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
