"""Additional runners of a platform, started as an operator starts them on other machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from cli.machine import procfile
from tests.support.stack import Stack
from tests.support.waiting import wait_until

Runner = subprocess.Popen[bytes]
START_SECONDS = 180  # several start at once while other tests keep the machine busy


def workers(stack: Stack) -> list[dict[str, Any]]:
    return stack.client.get("/v2/workers").raise_for_status().json()["workers"]


def is_there(stack: Stack, runner: Runner) -> bool:
    """Return whether the runner reports itself as a worker."""
    return runner.pid in [row["pid"] for row in workers(stack)]


def lead(stack: Stack, pid: int) -> None:
    """Make this process the leader of upkeep."""
    with psycopg.connect(stack.database_url) as conn:
        conn.execute(
            "UPDATE leader SET lease_until = now() + interval '3 seconds',"
            " owner = (SELECT id FROM worker WHERE pid = %s)",
            (pid,),
        )


def start(
    stack: Stack, pool: str = "default", name: str = "another", code: Path = procfile.PROJECT
) -> Runner:
    """Start another of the Procfile's runners from the tree `code`. It logs to NAME.log in the data directory."""
    (line,) = (line for line in procfile.read() if line.name == "runner")
    env = stack.environment | {
        "DATABASE_URL": stack.database_url,
        "REDIS_URL": stack.redis_url,
        "RUNYARD_ENCRYPTION_KEYS": (stack.data_dir / "secret.key").read_text().strip(),
        "RUNYARD_POOL": pool,
        "RUNYARD_RUNTIME_DIR": str(stack.data_dir / "others"),  # `stack` must not miss a killed runner
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": str(code),
    }
    command = line.command.replace("runner@", f"{name}@")
    with (stack.data_dir / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"], cwd=code, env=env, stdout=log, stderr=log
        )


def end(runner: Runner) -> None:
    if runner.poll() is None:
        runner.kill()
    runner.wait()


@contextmanager
def another_runner(stack: Stack, pool: str = "default") -> Iterator[Runner]:
    """Run one more runner while the block runs, once it has registered."""
    runner = start(stack, pool)
    try:
        wait_until(lambda: is_there(stack, runner), START_SECONDS, what="another runner to work")
        yield runner
    finally:
        end(runner)


@contextmanager
def runners(stack: Stack, pool: str, count: int) -> Iterator[list[Runner]]:
    """Run this many runners, started together, while the block runs."""
    started = [start(stack, pool, f"another-{n}") for n in range(count)]
    try:
        wait_until(
            lambda: all(is_there(stack, runner) for runner in started), START_SECONDS, what="all to work"
        )
        yield started
    finally:
        for runner in started:
            end(runner)


@contextmanager
def frozen(pids: Iterable[int]) -> Iterator[None]:
    """Suspend these processes while the block runs. Their graph hosts keep running."""
    stopped = list(pids)
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
