"""Starting the measured server, waiting for its first run, and stopping it."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil

from bench.measuring import Processes, Row
from bench.server import Server
from bench.session import ECHO, Session
from bench.targets import TargetError

ASK_AGAIN_SECONDS = 0.02
STOP_SECONDS = 15.0


def server_of(session: Session) -> Server:
    """Return the target if it is a server with a start command. Raises TargetError otherwise."""
    if not isinstance(session.target, Server) or not session.options.start_command:
        raise TargetError("coldstart needs --base-url and --start-command")
    return session.target


@asynccontextmanager
async def started(command: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Start a server in the foreground, and stop it with all its descendants on exit."""
    process = subprocess.Popen(
        shlex.split(command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        await asyncio.to_thread(_stop, process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for orphan in psutil.wait_procs(family, timeout=1)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            orphan.kill()


async def first_run(
    session: Session, server: Server, process: subprocess.Popen[bytes], started_at: float
) -> tuple[float, float]:
    """Return the seconds until the server listens and until a run has succeeded. Raises TargetError."""
    listening_seconds = 0.0
    while (elapsed := time.perf_counter() - started_at) < session.options.start_seconds:
        if process.poll() is not None:
            raise TargetError(f"the start command ended with {process.returncode}")
        if not listening_seconds and await server.is_listening():
            listening_seconds = elapsed
        if listening_seconds and not (await session.run(ECHO)).error:
            return listening_seconds, time.perf_counter() - started_at
        await asyncio.sleep(ASK_AGAIN_SECONDS)
    raise TargetError(f"no run ended well within {session.options.start_seconds:.0f} seconds of the start")


def cost(process: subprocess.Popen[bytes]) -> Row:
    """Return the CPU time and memory of all processes that the command started."""
    processes = Processes({"server": process.pid})
    return {
        "cpu_seconds": round(sum(processes.cpu_seconds().values()), 2),
        "memory_mb": round(sum(processes.memory_mb().values()), 1),
    }
