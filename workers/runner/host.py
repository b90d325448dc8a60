"""A graph host, as its runner sees it: the child process that has one revision's graphs loaded, and the socket to it.

The runner exchanges frames with the host over a socketpair (`workers/graph_host`). The host holds no credential.
The runner treats everything that the host sends as hostile: a frame that cannot be read kills the host, and a frame of
a run that is not in this host is ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, cast
from uuid import UUID

import gevent
import gevent.subprocess
import orjson
from gevent.event import AsyncResult
from gevent.lock import RLock

from shared.deployments.logs import clean
from shared.errors import HostDied, HostError, HostUnusable, NotBegun
from shared.settings import MIB, Settings
from workers.graph_host import frames
from workers.isolation import bubblewrap, disk, sandbox, usage
from workers.isolation.cgroups import ControlGroup
from workers.runner.host_health import HostHealth
from workers.runner.printed_output import PrintedOutput
from workers.runner.quarantine import DEFAULT_GROUP, Group

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
TERM_SECONDS = 5.0
OUTPUT_SECONDS = 2.0
INHERITED_BY_NODE_ALONE = range(3, 16)  # descriptors; Node hands higher ones on to programs that it starts
READING_SECONDS = 0.01  # longest time of reading a host's socket before other greenlets run
PAUSE_SECONDS = 0.0001  # not 0: gevent would resume this greenlet many times before checking sockets
# Exit codes of a host that aborts. The second one is how the sandbox reports the signal.
ABORTED = (-signal.SIGABRT, 128 + signal.SIGABRT)
# Errors that reading a frame can raise when user code has taken over the sending process.
MALFORMED_FRAME_ERRORS = (
    frames.BadFrame,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
)


class Occupant(Protocol):
    """A run, query or request in a host: the receiver of its frames."""

    def received(self, kind: int, body: bytes) -> None:
        """Handle one frame with this occupant's id."""

    def host_died(self, error: HostError) -> None:
        """Handle the end of the host's process, or a host that does not execute this run."""

    def wait_until_drained(self) -> None:
        """Block until the occupant's event buffer accepts events again."""


@dataclass(frozen=True, slots=True)
class HostCommand:
    """The command line that starts a revision's host. Created by `workers/builder/host_command.py`."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    hold: IO[str] | None = None  # a lock that keeps the revision's files on this machine until the host ends
    home: Path | None = None  # the home folder of the host, whose size is limited
    heap_mb: int | None = None  # limit of a JavaScript host's heap


class Output(Protocol):
    """The receiver of lines that user code prints or logs."""

    def __call__(self, level: str, message: str, run_id: UUID | None, /) -> None: ...


class HostOwner(Protocol):
    """The owner of a host that serves runs: the host pool."""

    def host_changed(self, host: Host) -> None:
        """Handle a host whose last occupant has left, or whose process has ended."""

    def request_opened(self, host: Host, id: bytes, head: Mapping[str, Any]) -> None:
        """Handle a request of user code to its own deployment. Called while its frame is read. Raises BadFrame."""


class Host:
    """One child process and the runs in it."""

    def __init__(
        self,
        revision_id: UUID,
        command: HostCommand,
        settings: Settings,
        output: Output,
        *,
        group: Group = DEFAULT_GROUP,
        owner: HostOwner | None = None,
    ) -> None:
        """Start the process. Raises HostUnusable. Without an owner, requests to the deployment are ignored."""
        self.revision_id = revision_id
        self.group = group  # of the runs that may enter
        self.occupants: dict[bytes, Occupant] = {}
        self.entered_at: dict[bytes, float] = {}  # monotonic times by occupant, the oldest first
        self.is_retiring = False  # takes no new runs because its slot is needed
        self.is_unfit = False  # takes no new runs because it does not begin them, or user code damaged it
        self.started_at = self.last_used = time.monotonic()
        self.memory_mb = settings.host_memory_mb  # limit
        self.health = HostHealth()
        self.died: str | None = None
        self._home_measurement: gevent.Greenlet | None = None
        # The processes have ended and the home folder is being emptied. The death is reported after that.
        self._is_emptying = False
        self._death = HostDied("has ended")
        self._settings = settings
        self._output = output
        self._hold = command.hold
        self._home = command.home
        self._heap_mb = command.heap_mb
        self._owner = owner
        self._has_warned = False  # that a ping stays unanswered; reset by the next pong
        self._ready: AsyncResult = AsyncResult()
        self._write_lock = RLock()
        self._group = sandbox.host_group(settings)
        has_network = group.has_network or not sandbox.can_cut_network(settings)
        if not has_network:
            command = dataclasses.replace(command, argv=sandbox.without_network(command.argv, settings))
        self._mark = None if sandbox.ends_descendants(None) else usage.new_mark()
        mark = {} if self._mark is None else {usage.MARK: self._mark}
        runner_socket, host_socket = socket.socketpair()
        try:
            self._process = _start(
                dataclasses.replace(command, env={**command.env, **mark}),
                host_socket,
                partial(
                    sandbox.confine,
                    self._group,
                    file_bytes=settings.host_home_mb * MIB,
                    has_network=has_network,
                ),
            )
        except OSError as error:
            runner_socket.close()
            self._release_resources()
            raise HostUnusable(f"the graph host could not be started: {error}") from error
        finally:
            host_socket.close()
        self.usage = usage.Program(self.pid)
        self._socket = runner_socket
        assert self._process.stdout is not None
        self._printed = PrintedOutput(
            self._process.stdout,
            lambda line: self._output("INFO", line, None),
            has_heap=self._heap_mb is not None,
        )
        self._greenlets = [gevent.spawn(self._read), gevent.spawn(self._printed.read)]
        gevent.spawn(self._end_reading)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_healthy(self) -> bool:
        return self.died is None and not self.is_unfit and not self.health.is_stalled

    @property
    def takes_runs(self) -> bool:
        return self.is_healthy and not self.is_retiring

    def wait_ready(self) -> dict[str, Any]:
        """Wait until the graphs are loaded and return the body of the READY frame. Raises HostUnusable."""
        try:
            return cast("dict[str, Any]", self._ready.get(timeout=self._settings.host_start_seconds))
        except gevent.Timeout:
            self.kill("did not get ready in time")
            raise HostUnusable(
                f"the graph host was not ready within {self._settings.host_start_seconds:.0f} s"
            ) from None

    def send(self, kind: int, id: bytes, body: bytes) -> None:
        """Send one frame. Raises HostDied."""
        try:
            with self._write_lock:
                self._socket.sendall(frames.encode(kind, id, body))
        except OSError as error:
            if self.died is None:
                self.kill(self._how_it_ended())
            raise self._death from error

    def enter(self, id: bytes, occupant: Occupant, body: bytes, *, kind: int = frames.RUN) -> None:
        """Start a run in this host, or open a query or request (`kind`). Raises HostDied."""
        if self.died is not None:
            raise self._death
        self.admit(id, occupant)
        if kind == frames.RUN:
            self.health.run_entered(id)
        self.send(kind, id, body)

    def admit(self, id: bytes, occupant: Occupant) -> None:
        """Pass frames with this id to an occupant from now on."""
        self.occupants[id] = occupant
        self.entered_at[id] = self.last_used = time.monotonic()

    def leave(self, id: bytes) -> None:
        """Stop passing frames with this id to their occupant."""
        self.occupants.pop(id, None)
        self.entered_at.pop(id, None)
        self.health.run_left(id)
        self.last_used = time.monotonic()
        if not self.occupants:
            self._notify_owner()

    def ping(self) -> None:
        """Send a ping, to see that the host's event loop turns. Kills the host after a long silence."""
        if self.died is not None or not self._ready.ready():
            return
        silence = self.health.silence
        if self.health.ping():
            # In a greenlet: sending blocks while the socket is full.
            gevent.spawn(self._send_quietly, frames.PING, b"")
        elif silence > self._settings.host_stall_seconds:
            self.kill(f"blocked for {silence:.0f} s: a node held the event loop")
        elif self.health.is_stalled and not self._has_warned:
            self._has_warned = True
            self._output("WARNING", f"the event loop has been blocked for {silence:.0f} s", None)
        self._check_quiet_runs()

    def _send_quietly(self, kind: int, body: bytes) -> None:
        try:
            self.send(kind, frames.NOBODY, body)
        except HostDied:
            return

    def _check_quiet_runs(self) -> None:
        """Ask the host whether it executes the runs that have sent no frames for a while."""
        if quiet := self.health.next_check():
            gevent.spawn(self._send_quietly, frames.CHECK, orjson.dumps([id.hex() for id in quiet]))
        elif self.health.ignores_checks:
            if not self.is_unfit:
                log.warning("host %s of revision %s answers nothing but pings", self.pid, self.revision_id)
                self.is_unfit = True
            self._displace(self.health.displace_all())

    def _displace(self, ids: set[bytes]) -> None:
        """Send these runs to another host."""
        for id in ids:
            if occupant := self.occupants.get(id):
                occupant.host_died(NotBegun("does not execute the run"))

    @property
    def used_bytes(self) -> int:
        return self.usage.memory_bytes

    def measure(self) -> None:
        """Measure the host's processes, memory and home folder. Kills a host that exceeds a limit."""
        most = self._settings.host_processes
        self.usage.measure(bubblewrap.TEMPORARY, most)
        if len(self.usage.processes) > most:
            self.kill(f"had more than {most} processes")
        elif self.used_bytes > self.memory_mb * MIB:
            self.kill(f"used {self.used_bytes // MIB} MiB, more than {self.memory_mb} MiB")
        elif self._home is not None and not self._home_measurement:
            # In a greenlet, so that it does not delay the checks of other hosts.
            self._home_measurement = gevent.spawn(self._measure_home, self._home)

    def _measure_home(self, home: Path) -> None:
        """Measure the home folder in a thread, since it may hold many files. Kills the host if it is too large.

        Empties the folder, because the next host would otherwise be killed, too. The death is reported only after
        that, because files of the next host would otherwise be deleted with it.
        """
        pids = [process.pid for process in self.usage.processes]
        most_bytes = self._settings.host_home_mb * MIB
        reason = gevent.get_hub().threadpool.apply(disk.excess, ([home], pids, most_bytes))
        if reason is None or self.died is not None:
            return
        self.is_unfit = self._is_emptying = True
        try:
            self.usage.end()
            disk.empty(home)
        finally:
            self._is_emptying = False
            self.kill(f"its home folder held {reason}")

    def stop(self) -> None:
        """Ask an idle host to shut down, and kill it if it has not ended after TERM_SECONDS."""
        if self.died is None:
            try:
                self.send(frames.STOP, frames.NOBODY, b"")
            except HostDied:
                return
            gevent.spawn_later(TERM_SECONDS, self.kill, "did not stop")

    def kill(self, reason: str) -> None:
        """Kill the process and everything it started. Calls `host_died` of each occupant."""
        if self.died is not None or self._is_emptying:
            return
        self.died = reason
        if not self._ready.ready():
            self._ready.set_exception(HostUnusable(reason))
        self.usage.end()
        if self._mark is not None and not sandbox.ends_descendants(self._group):
            usage.end_marked(self._mark)
        self._socket.close()
        gevent.spawn(self._process.wait)
        self._release_resources()
        occupants, self.occupants = list(self.occupants.values()), {}
        self._death = HostDied(reason, together=len(occupants))
        for occupant in occupants:
            occupant.host_died(self._death)
        self._notify_owner()

    def wait_output(self) -> None:
        """Wait up to OUTPUT_SECONDS until the output that the host printed before its end has been read."""
        gevent.joinall(self._greenlets, timeout=OUTPUT_SECONDS)

    def _notify_owner(self) -> None:
        if self._owner is not None:
            self._owner.host_changed(self)

    def _release_resources(self) -> None:
        """End the control group, and release the lock on the revision's files."""
        if self._group is not None:
            self._group.end()
        if self._hold is not None:
            self._hold.close()

    def _read(self) -> None:
        decoder = frames.Decoder()
        resumed_at = time.monotonic()
        try:
            while self.died is None:
                data = self._socket.recv(READ_BYTES)
                if not data:
                    break
                writers: dict[bytes, None] = {}
                for kind, id, body in decoder.feed(data):
                    self._dispatch(kind, id, body)
                    if kind == frames.EVENT:
                        writers[id] = None
                for id in writers:
                    if occupant := self.occupants.get(id):
                        occupant.wait_until_drained()
                if time.monotonic() - resumed_at > READING_SECONDS:
                    gevent.sleep(PAUSE_SECONDS)  # recv does not yield while more data is available
                    resumed_at = time.monotonic()
        except OSError:
            pass  # the process has ended; `kill` below says how
        except MALFORMED_FRAME_ERRORS as error:
            log.warning("host %s of revision %s sent nonsense: %r", self.pid, self.revision_id, error)
            self.kill(f"sent a frame that cannot be read: {error}")
        if self.died is None:
            self.kill(self._how_it_ended())

    def _end_reading(self) -> None:
        """End `_read` once the process has ended and all that it sent is read.

        Programs that it started may have inherited its end of the socket.
        """
        self._process.wait()
        with contextlib.suppress(OSError):  # `kill` has closed the socket
            self._socket.shutdown(socket.SHUT_RD)

    def _dispatch(self, kind: int, id: bytes, body: bytes) -> None:
        if kind == frames.PONG:
            self._on_pong(orjson.loads(body) if body else None)
        elif kind == frames.LOG:
            self._log_line(id, body)
        elif kind == frames.READY:
            self._on_ready(orjson.loads(body))
        elif kind == frames.CHECKED:
            self._displace(self.health.checked({bytes.fromhex(id) for id in orjson.loads(body)}))
        elif kind == frames.OPEN:
            head = orjson.loads(body)
            if self._owner is not None:
                self._owner.request_opened(self, id, head)
        elif occupant := self.occupants.get(id):
            self.health.frame_received(id)
            occupant.received(kind, body)

    def _on_pong(self, condition: dict[str, Any] | None) -> None:
        self.health.pong(condition)
        self._has_warned = False
        if condition is not None and condition["damage"] is not None and not self.is_unfit:
            self.is_unfit = True
            self._output("WARNING", f"{condition['damage']}: its process gets no new runs", None)

    def _log_line(self, id: bytes, body: bytes) -> None:
        line = orjson.loads(body)
        run_id = UUID(bytes=id) if id in self.occupants else None
        self._output(str(line["level"]), str(line["message"]), run_id)

    def _on_ready(self, answer: dict[str, object]) -> None:
        error = answer.get("error")
        if error is None:
            self._ready.set(answer)
            return
        message = clean(str(error.get("message") if isinstance(error, dict) else error))
        self._output("ERROR", message, None)
        self._ready.set_exception(HostUnusable(message))
        self.kill("could not load the project")

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(timeout=TERM_SECONDS)
        except gevent.subprocess.TimeoutExpired:
            return "closed its socket"
        if code in ABORTED and self._printed.has_exhausted_heap():
            return f"used more than {self._heap_mb} MiB for JavaScript objects"
        return describe_exit(code, self._group, self.memory_mb)


def _start(
    command: HostCommand, host_socket: socket.socket, confine: Callable[[], None]
) -> gevent.subprocess.Popen:
    descriptor = _descriptor_in_host(host_socket.fileno())

    def prepare() -> None:
        os.dup2(host_socket.fileno(), descriptor)
        confine()

    argv = [part if part != "{socket}" else str(descriptor) for part in command.argv]
    return gevent.subprocess.Popen(
        argv,
        bufsize=0,
        cwd=command.cwd,
        env=command.env,
        stdin=gevent.subprocess.DEVNULL,
        stdout=gevent.subprocess.PIPE,
        stderr=gevent.subprocess.STDOUT,
        pass_fds=(descriptor,),
        start_new_session=True,
        preexec_fn=prepare,
    )


def _descriptor_in_host(descriptor: int) -> int:
    """Return the number that a host's socket gets in the host.

    Programs that Node starts inherit descriptors of higher numbers from Node's parent, and would receive the socket. A
    number that is in use in this process is none of the pipes with which the host is started.
    """
    return next((number for number in INHERITED_BY_NODE_ALONE if _is_open(number)), descriptor)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def describe_exit(code: int, group: ControlGroup | None, memory_mb: int) -> str:
    """Return how a host's process ended, to follow the words "the host"."""
    if group is not None and group.ran_out_of_memory():
        return f"used more than {memory_mb} MiB"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    if code > 128 and code - 128 in set(signal.Signals):  # how the sandbox reports its child's signal
        return f"was killed by {signal.Signals(code - 128).name}"
    return f"exited with code {code}"
