"""A process that has loaded the libraries of graph hosts, and forks a host when a test needs one.

Loading the libraries takes one second of CPU time, which most host tests need not spend. In all other respects a fork
starts like a new interpreter: working directory, environment, `sys.path`, arguments. A test of the start itself passes
`from_scratch`, see `hosts.graph_host`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

LIBRARIES = (
    "httpx", "langchain_core.callbacks", "langchain_core.messages", "langchain_core.runnables.graph",
    "langchain_core.tracers.context", "langgraph.checkpoint.serde.jsonplus", "langgraph.func", "langgraph.graph",
    "langgraph.pregel", "langgraph.store.base", "langgraph.stream._mux", "langgraph_sdk.runtime",
    "langsmith.run_helpers", "orjson", "pydantic", "starlette.applications",
)  # fmt: skip


class ForkedHost:
    """A forked host, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self._ended = ended
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            self._ended.settimeout(timeout)
            self._code = int(self._ended.recv(100))
            self._ended.close()
        return self._code

    def send_signal(self, number: int) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):  # the host has ended meanwhile
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _forks() -> socket.socket:
    """Start the forking process, which ends with this process. Returns the socket to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            env={"PATH": os.environ["PATH"], "LANGGRAPH_STRICT_MSGPACK": "true"},
            pass_fds=(theirs.fileno(),),
        )
    return ours


def fork(
    package: Path,
    connection: socket.socket,
    arguments: Sequence[str],
    directory: Path,
    env: Mapping[str, str],
) -> ForkedHost:
    """Start `package` in `directory` with this environment. `connection` becomes its `--socket`."""
    ours, theirs = socket.socketpair()
    order = {"package": str(package), "arguments": arguments, "directory": str(directory), "env": dict(env)}
    with theirs, connection.dup() as connected:
        socket.send_fds(_forks(), [b"fork"], [theirs.fileno(), connected.fileno()])
    ours.sendall(json.dumps(order).encode() + b"\n")
    return ForkedHost(int(ours.recv(100)), ours)


def main(control: socket.socket) -> None:
    """Fork a host for each message. Returns when the test process closes the socket."""
    gc.disable()
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    children: set[int] = set()
    while (received := socket.recv_fds(control, 100, 2))[1]:
        children = {child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)}
        child = os.fork()
        if child == 0:
            control.close()
            _attend(*received[1])
        children.add(child)
        for descriptor in received[1]:
            os.close(descriptor)


def _attend(own: int, connection: int) -> NoReturn:
    """Fork the host and report its exit code, which only its parent process can read."""
    with socket.socket(fileno=own) as tests:
        order = json.loads(tests.makefile().readline())
        host = os.fork()
        if host == 0:
            tests.close()
            _become_host(connection, **order)
        os.close(connection)
        tests.sendall(b"%d" % host)
        _, status = os.waitpid(host, 0)
        tests.sendall(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become_host(
    connection: int, package: str, arguments: list[str], directory: str, env: dict[str, str]
) -> NoReturn:
    os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [package, "--socket", str(connection), *arguments]
    runpy.run_path(package, run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
