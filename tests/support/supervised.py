"""A supervisor of two programs given as shell commands, in a process of its own: for tests/unit/cli/test_supervisor.py.

python -m tests.support.supervised GRACE_SECONDS COMMAND [COMMAND]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cli.machine.supervisor import SupervisedProgram, Supervisor
from cli.output import Lines


def main(grace_seconds: float, commands: list[str]) -> None:
    lines = Lines()
    supervisor = Supervisor(lines.show)
    with supervisor.attentive():
        for number, command in enumerate(commands):
            supervisor.start(
                SupervisedProgram(f"p{number}", ["/bin/sh", "-c", command], os.environ, Path.cwd())
            )
        while not supervisor.is_asked_to_stop:
            supervisor.serve()
        supervisor.stop(grace_seconds=grace_seconds)
    lines.say("left cleanly")


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
