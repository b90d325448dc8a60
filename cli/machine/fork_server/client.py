"""The supervisor's side: what it asks of the fork server, and what it does when that does not answer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping

from cli.machine import procfile
from cli.machine.fork_server import ANSWER_SECONDS, FORK, GO, LONGEST, OWN_PID
from cli.machine.supervisor import ForkedProcess, SupervisedProgram, Supervisor

# A module of Python and its arguments; what else a shell could be told is left to a shell.
FORKED = re.compile(r"python -m [^;|&<>()`\n]+")


class ForkServer:
    """The process that forks, a child of the supervisor: for as long as the service starts."""

    def __init__(self, supervisor: Supervisor, environment: Mapping[str, str]) -> None:
        """Start it, with this environment: what it has, each of its forks could find in its memory."""
        self._supervisor = supervisor
        self._is_ready = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            room = " " * LONGEST
            argv = [sys.executable, "-m", "cli.machine.fork_server", str(theirs.fileno()), room]
            self._child = supervisor.start(
                SupervisedProgram("forks", argv, environment, procfile.PROJECT, pass_fds=(theirs.fileno(),)),
                restarts=False,
            )

    def has_settled(self) -> bool:
        """Whether it has loaded everything, or never will."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self._is_ready = self._is_ready or bool(self._control.recv(1, socket.MSG_DONTWAIT))
        return self._is_ready or self._child.pid is None

    def close(self) -> None:
        """End it: what it holds in memory is needed once. What dies later is started without it."""
        self._is_ready = False
        self._control.close()
        self._supervisor.stop([self._child], grace_seconds=0)

    def fork(self, program: SupervisedProgram) -> ForkedProcess | None:
        """Start a line of the Procfile; None when that is to be done without a fork server."""
        if not self._is_ready or program.command is None or not FORKED.fullmatch(program.command):
            return None
        words = words_of(program.command, program.environment)
        if words is None:
            return None
        printed, output = os.pipe()
        own, theirs = socket.socketpair()
        own.settimeout(ANSWER_SECONDS)
        order = {
            "supervisor": os.getpid(),
            "words": words,
            "environment": dict(program.environment),
            "folder": str(program.folder),
            "death_signal": int(program.death_signal),
        }
        try:
            with own, theirs, own.makefile("rb") as answers:
                socket.send_fds(self._control, [FORK], [output, theirs.fileno()])
                theirs.close()
                own.sendall(json.dumps(order).encode() + b"\n")
                pid = int(answers.readline())
                own.sendall(GO)
        except (OSError, ValueError):  # it has died, or is too slow: without our GO nothing starts
            os.close(printed)
            return None
        finally:
            os.close(output)
        return ForkedProcess(pid, os.fdopen(printed, "rb", buffering=0))


def words_of(command: str, environment: Mapping[str, str]) -> list[str] | None:
    """What a shell makes of the command: its words, with variables filled in; None where it cannot read it."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"printf '%s\\0' {command.replace('$$', OWN_PID)}"],
        env=dict(environment),
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )
    return done.stdout.split("\0")[:-1] if done.returncode == 0 else None
