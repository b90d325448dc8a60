"""A supervisor of programs given as shell commands, in a process of its own: for tests/unit/cli.

python -m tests.support.supervised GRACE_SECONDS COMMAND [COMMAND]

With TEST_FORKS it has a fork server; with "killed" that is killed before the programs start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

from cli.machine.fork_server.client import ForkServer
from cli.machine.supervisor import SupervisedProgram, Supervisor
from cli.output import Lines


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
    with supervisor.attentive():
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
        while not supervisor.is_asked_to_stop:
            supervisor.serve()
        supervisor.stop(grace_seconds=grace_seconds)
    lines.say("left cleanly")


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
