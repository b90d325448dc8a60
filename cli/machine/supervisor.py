"""A process supervisor: starts programs, restarts those that die, and leaves no process behind; and their output.

A single-threaded loop waits on the children's output and on signals. Each child runs in a session of its own, so a
terminal's Ctrl-C reaches only the supervisor. Children die with the supervisor, however it ends. Orphans of a child are
reparented to the supervisor (`PR_SET_CHILD_SUBREAPER`), which kills them when it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Protocol, TextIO

from cli.machine.embedded import die_with_parent
from shared.infra import system
from shared.infra.outlet import Outlet

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0
STEADY_SECONDS = 30.0  # a program that ran this long has recovered; its next death counts as the first
TICK_SECONDS = 0.2
GRACE_SECONDS = 5.0
LINE_LIMIT = 64 * 1024
COLOURS = ("36", "33", "32", "35", "34", "31", "96", "93")  # of the names before the lines
NAME_WIDTH = 8
FLUSH_SECONDS = 1.0
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Show = Callable[[str, str], None]


class Died(Exception):
    """A process ended while the supervisor waited for it to become ready."""


@dataclass(frozen=True)
class SupervisedProgram:
    """A program to supervise: command, environment, and the signals that end it."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    folder: Path
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL  # sent to the program when the supervisor dies
    before_exec: Callable[[], None] | None = None
    pass_fds: Sequence[int] = ()
    command: str | None = None  # the shell command within `argv`, for a `fork` that starts it without a shell


class RunningProcess(Protocol):
    """The attributes of a running process that the supervisor uses; `subprocess.Popen` has them."""

    pid: int
    stdout: IO[bytes] | None
    returncode: int | None


@dataclass
class ForkedProcess:
    """A process that another process forked, with the supervisor as its parent."""

    pid: int
    stdout: IO[bytes] | None
    returncode: int | None = None


Fork = Callable[[SupervisedProgram], ForkedProcess | None]


@dataclass
class Child:
    """A supervised program and its current process, if it runs."""

    program: SupervisedProgram
    process: RunningProcess | None = None
    started_at: float = 0.0
    deaths: int = 0  # consecutive deaths
    starts_at: float | None = None  # monotonic time of the next restart
    last_exit: int | None = None
    unfinished: bytes = b""
    restarts: bool = True

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None


class Supervisor:
    """Keeps its programs running until a signal or `ask_to_stop` requests a stop."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self.fork: Fork = lambda program: None  # None: the supervisor starts the program itself
        self._stop_requests = 0

    @contextlib.contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Handle signals and adopt orphans within the block. Kills every remaining process at its end."""
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
        wakeup_read, wakeup_write = system.open_pipe()
        self._selector.register(wakeup_read, selectors.EVENT_READ, None)
        old_wakeup = signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        old = {number: signal.signal(number, self._on_stop) for number in STOPPING}
        old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            yield
        finally:
            self.stop(grace_seconds=0)
            _kill_leftovers()
            for number, handler in old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_wakeup)
            self._selector.close()
            os.close(wakeup_read)
            os.close(wakeup_write)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop_requests += 1

    @property
    def is_stop_requested(self) -> bool:
        return self._stop_requests > 0

    def ask_to_stop(self) -> None:
        """Request a stop by sending SIGTERM to this process. May be called from another thread."""
        os.kill(os.getpid(), signal.SIGTERM)

    def start(self, program: SupervisedProgram, *, restarts: bool = True) -> Child:
        """Start a program and restart it whenever it ends, unless `restarts` is False."""
        child = Child(program, restarts=restarts)
        self._children.append(child)
        self._spawn(child)
        return child

    def run(self, program: SupervisedProgram) -> int | None:
        """Run a program to its end and return its exit code.

        A stop request ends the program early; the exit code is then that of the stopped process.
        """
        child = self.start(program, restarts=False)
        try:
            while child.process is not None and not self.is_stop_requested:
                self.serve(0.05)
        finally:
            self.stop([child], grace_seconds=GRACE_SECONDS)
            self._children.remove(child)
        return child.last_exit

    def wait_until(
        self, condition: Callable[[], bool], *, seconds: float, needs: Child | None = None
    ) -> bool:
        """Serve the loop until the condition holds. Returns False on timeout or a stop request.

        Raises Died if the child `needs`, on which the condition depends, has ended three times in a row.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if self.is_stop_requested or time.monotonic() > deadline:
                return False
            if needs is not None and needs.deaths >= 3:
                raise Died(
                    f"{needs.program.name} ends as soon as it starts ({describe_exit(needs.last_exit)})"
                )
            self.serve(0.02)
        return True

    def _spawn(self, child: Child) -> None:
        program = child.program
        child.starts_at = None
        child.started_at = time.monotonic()
        child.process = self.fork(program) or subprocess.Popen(
            program.argv,
            cwd=program.folder,
            env=dict(program.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=program.pass_fds,
            preexec_fn=lambda: _prepare(program),
        )
        assert child.process.stdout is not None
        os.set_blocking(child.process.stdout.fileno(), False)
        self._selector.register(child.process.stdout, selectors.EVENT_READ, child)

    def serve(self, seconds: float = TICK_SECONDS) -> None:
        """Run one turn of the loop: relay output, reap ended processes, start those that are due."""
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 4096)
            else:
                self._relay(key.data)
        self._reap()
        now = time.monotonic()
        for child in self._children:
            if child.starts_at is not None and child.starts_at <= now:
                self._spawn(child)

    def _relay(self, child: Child) -> None:
        process = child.process
        if process is None or process.stdout is None:
            return
        try:
            data = os.read(process.stdout.fileno(), LINE_LIMIT)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(process.stdout)
            process.stdout.close()
        *lines, rest = (child.unfinished + data).split(b"\n")
        if rest and (not data or len(rest) > LINE_LIMIT):
            lines, rest = [*lines, rest], b""
        child.unfinished = rest
        for line in lines:
            self._show(child.program.name, line.decode(errors="replace").rstrip())

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children:
                if child.process is not None and child.process.pid == pid:
                    child.process.returncode = os.waitstatus_to_exitcode(status)
                    self._mark_dead(child)

    def _mark_dead(self, child: Child) -> None:
        assert child.process is not None
        process, child.process = child.process, None
        child.last_exit = process.returncode
        _signal_group(process.pid, signal.SIGKILL)  # processes that it left in its group
        if process.stdout is not None and not process.stdout.closed:
            self._drain(child, process)
        if not child.restarts:
            return
        now = time.monotonic()
        child.deaths = 1 if now - child.started_at > STEADY_SECONDS else child.deaths + 1
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (child.deaths - 1), LONGEST_PAUSE_SECONDS)
        child.starts_at = now + pause
        self._show(child.program.name, f"{describe_exit(child.last_exit)}; it starts again in {pause:g} s")

    def _drain(self, child: Child, process: RunningProcess) -> None:
        """Show the last output of an ended process.

        A grandchild may still hold the pipe, so this does not wait for the end of the output.
        """
        assert process.stdout is not None
        child.process = process
        for _ in range(16):
            if process.stdout.closed:
                break
            self._relay(child)
        child.process = None
        if not process.stdout.closed:
            self._selector.unregister(process.stdout)
            process.stdout.close()

    def stop(self, children: Sequence[Child] | None = None, *, grace_seconds: float) -> None:
        """Send the children (default: all) their stop signal, wait up to `grace_seconds`, then kill them.

        A second stop request, such as a second Ctrl-C, ends the wait.
        """
        stopped = list(self._children if children is None else children)
        requests = max(self._stop_requests, 1)  # that do not end the wait: those so far, and the first of all
        for child in stopped:
            child.starts_at, child.restarts = None, False
            if child.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.process.pid, child.program.stop_signal)
        deadline = time.monotonic() + grace_seconds
        while (
            any(child.process for child in stopped)
            and time.monotonic() < deadline
            and self._stop_requests <= requests
        ):
            self.serve(0.05)
        for child in stopped:
            if child.process is not None:
                _signal_group(child.process.pid, signal.SIGKILL)
        while any(child.process for child in stopped):
            self.serve(0.05)


def describe_exit(code: int | None) -> str:
    """Describe an exit code: `ended with exit code 1`, `was killed by SIGKILL`."""
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _prepare(program: SupervisedProgram) -> None:
    """Reset signal handling and apply `before_exec`. Called in the child before exec."""
    signal.set_wakeup_fd(-1)
    for number in (*STOPPING, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    if program.before_exec is not None:
        program.before_exec()
    die_with_parent(program.death_signal)  # last, because a change of user id clears it


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _kill_leftovers() -> None:
    """Kill adopted orphans that have not ended."""
    for _ in range(50):
        children = system.child_pids()
        if not children:
            return
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


# Output of the processes


class Lines:
    """Prints whole lines from any thread, without blocking on a slow reader.

    The caller also supervises the processes whose lines it prints. It must not stop because stdout is blocked.
    """

    def __init__(self, out: TextIO | None = None, rewrite: Callable[[str], str] = str) -> None:
        """`rewrite` is applied to each text before it is printed."""
        self._out = out or sys.stdout
        self._rewrite = rewrite
        self._outlet = _outlet(self._out)
        self._coloured = self._out.isatty() and "NO_COLOR" not in os.environ
        self._names: list[str] = []
        self._lock = threading.Lock()

    def show(self, name: str, line: str) -> None:
        """Print one or more lines of a process, each prefixed with the process's name."""
        prefix = f"{name:<{NAME_WIDTH}} │ "
        if self._coloured:
            if name not in self._names:
                self._names.append(name)
            colour = COLOURS[self._names.index(name) % len(COLOURS)]
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        self._write("\n".join(prefix + part for part in line.split("\n")))

    def say(self, text: str = "") -> None:
        """Print a message of the command line itself.

        Waits up to FLUSH_SECONDS until it is written, so that later output does not appear before it.
        """
        self._write(text)
        if self._outlet is not None:
            self._outlet.flush(FLUSH_SECONDS)

    def _write(self, text: str) -> None:
        text = self._rewrite(text)
        if self._outlet is not None:
            self._outlet.put((text + "\n").encode(errors="backslashreplace"))
            return
        with self._lock:
            try:
                self._out.write(text + "\n")
                self._out.flush()
            except (BrokenPipeError, OSError):
                return  # the reader has exited, but the service must continue


def _outlet(out: TextIO) -> Outlet | None:
    """Return a non-blocking writer for the stream's file descriptor; None if it has none, such as a StringIO."""
    try:
        descriptor = os.dup(out.fileno())
    except (OSError, ValueError):
        return None
    outlet = Outlet(descriptor, lambda dropped: b"%d lines were dropped: nobody read them\n" % dropped)
    atexit.register(outlet.flush, FLUSH_SECONDS)
    return outlet
