"""The supervisor's client of the fork server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping

from cli import PROJECT
from cli.machine.fork_server import ANSWER_SECONDS, FORK, GO, LONGEST, OWN_PID
from cli.machine.supervisor import ForkedProcess, SupervisedProgram, Supervisor

# A Python module with arguments and no shell operators. Any other command is started by a shell.
FORKED = re.compile(r"python -m [^;|&<>()`\n]+")


class ForkServer:
    """The fork server process, a child of the supervisor that runs only while the service starts."""

    def __init__(self, supervisor: Supervisor, environment: Mapping[str, str]) -> None:
        """Start the fork server. `environment` must hold no secrets: every fork inherits it in its memory."""
        self._supervisor = supervisor
        self._is_ready = False
        self._control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end:
            room = " " * LONGEST
            argv = [sys.executable, "-m", "cli.machine.fork_server", str(server_end.fileno()), room]
            self._child = supervisor.start(
                SupervisedProgram("forks", argv, environment, PROJECT, pass_fds=(server_end.fileno(),)),
                restarts=False,
            )

    def has_settled(self) -> bool:
        """Whether the fork server has loaded its modules or has ended."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self._is_ready = self._is_ready or bool(self._control.recv(1, socket.MSG_DONTWAIT))
        return self._is_ready or self._child.pid is None

    def close(self) -> None:
        """End the fork server to free its memory. Processes that are restarted later start without it."""
        self._is_ready = False
        self._control.close()
        self._supervisor.stop([self._child], grace_seconds=0)

    def fork(self, program: SupervisedProgram) -> ForkedProcess | None:
        """Start a line of the Procfile as a fork. Returns None if the supervisor must start it itself."""
        if not self._is_ready or program.command is None or not FORKED.fullmatch(program.command):
            return None
        words = words_of(program.command, program.environment)
        if words is None:
            return None
        printed, output = os.pipe()
        supervisor_end, fork_end = socket.socketpair()
        supervisor_end.settimeout(ANSWER_SECONDS)
        order = {
            "supervisor": os.getpid(),
            "words": words,
            "environment": dict(program.environment),
            "folder": str(program.folder),
            "death_signal": int(program.death_signal),
        }
        try:
            with supervisor_end, fork_end, supervisor_end.makefile("rb") as answers:
                socket.send_fds(self._control, [FORK], [output, fork_end.fileno()])
                fork_end.close()
                supervisor_end.sendall(json.dumps(order).encode() + b"\n")
                pid = int(answers.readline())
                supervisor_end.sendall(GO)
        except (OSError, ValueError):  # it died or is too slow; without GO the fork does not start
            os.close(printed)
            return None
        finally:
            os.close(output)
        return ForkedProcess(pid, os.fdopen(printed, "rb", buffering=0))


def words_of(command: str, environment: Mapping[str, str]) -> list[str] | None:
    """Let a shell split the command into words and expand its variables. Returns None on a shell error."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"printf '%s\\0' {command.replace('$$', OWN_PID)}"],
        env=dict(environment),
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )
    return done.stdout.split("\0")[:-1] if done.returncode == 0 else None
