"""A supervisor of shell commands in its own process, for tests/unit/cli.

python -m tests.support.supervised GRACE_SECONDS COMMAND [COMMAND]

With TEST_FORKS the supervisor uses a fork server. TEST_FORKS=killed kills that server before the programs start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from cli.machine.fork_server.client import ForkServer
from cli.machine.procfile import PROJECT
from cli.machine.supervisor import Lines, SupervisedProgram, Supervisor


class Supervised:
    """A supervisor in its own process, and its output."""

    def __init__(self, folder: Path, *commands: str, grace_seconds: float = 5) -> None:
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.supervised", str(grace_seconds), *commands],
                cwd=PROJECT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def lines(self) -> list[str]:
        return self._output.read_text().splitlines()

    def said(self, text: str) -> list[str]:
        return [line for line in self.lines() if text in line]

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self, number: signal.Signals) -> list[psutil.Process]:
        """Send this signal to the supervisor and wait for its end. Returns the processes that outlive it."""
        family = self.family()
        self.process.send_signal(number)
        self.process.wait(20)
        _, left = psutil.wait_procs(family, timeout=10)
        return left


Start = Callable[..., Supervised]


@contextmanager
def supervising(folder: Path) -> Iterator[Start]:
    """Yield a function that starts supervisors with their output in this folder. Kills them at the end."""
    started: list[Supervised] = []

    def start(*commands: str, grace_seconds: float = 5) -> Supervised:
        started.append(Supervised(folder, *commands, grace_seconds=grace_seconds))
        return started[-1]

    yield start
    for supervised in started:
        if supervised.process.poll() is None:
            supervised.process.kill()
            supervised.process.wait()


def fork_server(supervisor: Supervisor) -> ForkServer | None:
    if "TEST_FORKS" not in os.environ:
        return None
    forks = ForkServer(supervisor, {"PATH": os.environ["PATH"]})
    assert supervisor.wait_until(forks.has_settled, seconds=60)
    if os.environ["TEST_FORKS"] == "killed":
        for child in psutil.Process().children():
            child.kill()
    supervisor.fork = forks.fork
    return forks


def main(grace_seconds: float, commands: list[str]) -> None:
    lines = Lines()
    supervisor = Supervisor(lines.show)
    with supervisor.handling_signals():
        forks = fork_server(supervisor)
        for number, command in enumerate(commands):
            supervisor.start(
                SupervisedProgram(
                    f"p{number}", ["/bin/sh", "-c", command], os.environ, Path.cwd(), command=command
                )
            )
        if forks is not None:
            forks.close()
            lines.say("forked all")
        while not supervisor.is_stop_requested:
            supervisor.serve()
        supervisor.stop(grace_seconds=grace_seconds)
    lines.say("left cleanly")


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
