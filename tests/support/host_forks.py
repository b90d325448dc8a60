"""A process that has loaded the libraries of graph hosts, and forks a host when a test needs one.

Loading the libraries takes one second of CPU time, which most host tests need not spend. In all other respects a fork
starts like a new interpreter: working directory, environment, `sys.path`, arguments. A test of the start itself passes
`from_scratch`, see `hosts.graph_host`.

A runner starts its hosts by a command. The command `stand_in` has a host forked, and ends as the host ends. A host is
killed when the process that wanted it ends.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

LIBRARIES = (
    "httpx", "langchain_core.callbacks", "langchain_core.language_models.fake_chat_models", "langchain_core.messages",
    "langchain_core.runnables.graph", "langchain_core.tools",
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
def _forks() -> str:
    """Start the forking process, which ends with this process. Returns the address at which it listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0runyard-host-forks-{os.getpid()}")
        listener.listen(100)
        lives, _ = os.pipe()  # the other end is closed when this process ends
        subprocess.Popen(
            [sys.executable, "-P", __file__, "serve", str(listener.fileno()), str(lives)],
            env={"PATH": os.environ["PATH"], "LANGGRAPH_STRICT_MSGPACK": "true"},
            pass_fds=(listener.fileno(), lives),
        )
        os.close(lives)
        return f"runyard-host-forks-{os.getpid()}"


def fork(
    package: Path,
    connection: socket.socket,
    arguments: Sequence[str],
    directory: Path,
    env: Mapping[str, str],
    address: str | None = None,
) -> ForkedHost:
    """Start `package` in `directory` with this environment. `connection` becomes its `--socket`."""
    order = {"package": str(package), "arguments": arguments, "directory": str(directory), "env": dict(env)}
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.connect("\0" + (address or _forks()))
    socket.send_fds(ours, [json.dumps(order).encode()], [connection.fileno(), 1, 2])
    return ForkedHost(int(ours.recv(100)), ours)


def stand_in(package: Path, *arguments: str) -> list[str]:
    """Return a command that starts `package` with `--socket {socket}` in its own directory and environment."""
    python = [sys.executable, "-I", "-S"]  # starts without site packages, which the command does not need
    return [*python, __file__, "stand-in", _forks(), "{socket}", str(package), *arguments]


def _stand_in(address: str, connection: str, package: str, *arguments: str) -> NoReturn:
    with socket.socket(fileno=int(connection)) as connected:
        host = fork(Path(package), connected, arguments, Path.cwd(), os.environ, address)
    code = host.wait()
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _serve(listener: socket.socket, lives: int) -> None:
    """Fork a host for each connection. Returns when the test process has ended."""
    gc.disable()
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    children: set[int] = set()
    while lives not in select.select([listener, lives], [], [])[0]:
        children = {child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)}
        test, _ = listener.accept()
        child = os.fork()
        if child == 0:
            listener.close()
            os.close(lives)
            _attend(test)
        children.add(child)
        test.close()


def _attend(test: socket.socket) -> NoReturn:
    """Fork the host and report its exit code, which only its parent process can read. Kill a host nobody waits for."""
    message, descriptors, _, _ = socket.recv_fds(test, 1 << 20, 3)
    host = os.fork()
    if host == 0:
        test.close()
        for number, descriptor in enumerate(descriptors[1:], 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        _become_host(descriptors[0], **json.loads(message))
    for descriptor in descriptors:
        os.close(descriptor)
    test.sendall(b"%d" % host)
    if test in select.select([os.pidfd_open(host), test], [], [])[0]:
        os.kill(host, signal.SIGKILL)
    _, status = os.waitpid(host, 0)
    with contextlib.suppress(OSError):  # nobody waits
        test.sendall(b"%d" % os.waitstatus_to_exitcode(status))
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
    if sys.argv[1] == "serve":
        _serve(socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]))
    else:
        _stand_in(*sys.argv[2:])
