"""The whole platform as `runyard up` starts it, on a free port and in a folder of its own, for tests over HTTP."""

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
from typer.testing import CliRunner

from cli.api.client import Client
from cli.deployments.deploy import deploy
from cli.deployments.project import Project
from cli.machine import embedded
from cli.machine.procfile import PROJECT
from tests.support.servers import free_port, valkey_url
from tests.support.waiting import wait_until

START_SECONDS = 240
STOP_SECONDS = 45
TAIL_LINES = 80

# What of each process' command line tells it apart.
MARKS = {
    "web": "web/gunicorn.py",
    "runner": "runner@",
    "builder": "builder@",
    "beat": "workers.beat",
    "postgres": "bin/postgres -D",
    "valkey": "valkey-server",
    "host": "workers/graph_host",
}
# Settings of whoever runs the tests do not belong to the platform under test.
FOREIGN = ("RUNYARD_", "DATABASE_", "REDIS_", "LANGGRAPH_", "LANGSMITH_", "LANGCHAIN_")


class Stack:
    """A running platform; `with Stack() as stack`, or start() and stop()."""

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
        self._code = code  # the release that is started
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
        """What starts it."""
        return [sys.executable, "-m", "cli", "up"]

    @property
    def folder(self) -> Path:
        """Where it is started."""
        return self._code

    @property
    def environment(self) -> dict[str, str]:
        """What `runyard` commands about this platform are started with."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return {
            **outside,
            "RUNYARD_PORT": str(self.port),
            "RUNYARD_PROCESSES": "web=1,runner=1",  # on every machine
            "RUNYARD_DATA_DIR": str(self.data_dir),
            "RUNYARD_RUNTIME_DIR": str(self.data_dir / "run"),
            "RUNYARD_CACHE_DIR": str(PROJECT / ".cache"),
            "RUNYARD_LOG_LEVEL": "INFO",
            "RUNYARD_MIN_CRON_SECONDS": "1",
            **self._env,
        }

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
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
        return self.is_up() and bool(self.pids("runner")) and b"API docs" in self.log.read_bytes()

    def is_up(self) -> bool:
        """Whether web answers."""
        try:
            return httpx.get(f"{self.url}/ok", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> int:
        """Stop it as Ctrl-C does; fails when it leaves a process behind. Its exit code."""
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
        """`kill -9` of `runyard up` itself; waits until its children are gone too."""
        assert self._process is not None
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        self._process = None
        _, left = psutil.wait_procs(family, timeout=20)
        assert not left, f"outlived `runyard up`: {left}"

    def kill_all(self) -> None:
        """`kill -9` of everything at once, as when the power goes."""
        assert self._process is not None
        up = psutil.Process(self._process.pid)
        up.suspend()  # or it might start a successor
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
        """`runyard up` itself, while it runs."""
        if self._process is None or self._process.poll() is not None:
            return None
        return psutil.Process(self._process.pid)

    @property
    def up_pid(self) -> int:
        assert self.up is not None
        return self.up.pid

    def pids(self, name: str) -> list[int]:
        """The processes of that name, those of their children that bear it too, oldest first."""
        up = self.up
        if up is None:
            return []
        found = []
        for process in up.children(recursive=True):
            try:
                if MARKS[name] in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return [process.pid for process in sorted(found, key=lambda process: process.create_time())]

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> list[int]:
        """Send every process of that name a signal (a kill); their ids."""
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

        `empty` takes away what Valkey had on disk, `forgets` the last so many bytes of it.
        """
        os.kill(self.up_pid, signal.SIGSTOP)  # or the successor might find the old files
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
        """The last lines of its log."""
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
        """Plain HTTP with the admin key."""
        return httpx.Client(base_url=self.url, headers={"X-Api-Key": self.api_key}, timeout=30)

    def record(self, name: str) -> dict[str, Any]:
        """The record of the deployment of that name."""
        (found,) = self.client.get("/v2/deployments", params={"name": name}).json()["resources"]
        return found

    def revisions(self, name: str) -> list[dict[str, Any]]:
        """The records of a deployment's revisions, newest first."""
        return self.client.get(f"/v2/deployments/{self.record(name)['id']}/revisions").json()["resources"]

    def deploy(self, directory: Path | str, name: str | None = None) -> str:
        """Deploy a project and wait until it serves; its name."""
        folder = Path(directory)
        name = name or folder.name
        with Client(self.url, self.api_key) as client:
            deploy(client, Project.read(folder), name, print)
        return name

    def sdk(self, name: str, api_key: str | None = None) -> SyncLangGraphClient:
        """The public SDK's client of a deployment."""
        return get_sync_client(url=f"{self.url}/d/{name}", api_key=api_key or self.api_key)

    def cli(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """A `runyard` command about this platform."""
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
        """The same in this process, for commands that only call the API: a process takes a second to load them."""
        from cli.main import app  # of all that tests load, the commands take longest

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "environ", self.environment | {"RUNYARD_URL": self.url})
            ran = CliRunner().invoke(app, arguments)
        return subprocess.CompletedProcess(arguments, ran.exit_code, ran.stdout, ran.stderr)


def heed_signals() -> None:
    """In a child: these are ignored in what a shell has started in the background, and in its children."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
