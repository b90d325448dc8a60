"""A graph host: the child process that has one revision's graphs loaded, and the socket to it.

It is spoken to over a socketpair (`workers/graph_host`) and holds no credential. What it sends is treated as
hostile: an unknown kind, a run it was not given or a frame too large ends it.
"""

from __future__ import annotations

import logging
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
from workers.isolation import disk, sandbox, usage
from workers.runner.quarantine import OPEN, Group

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
STALLED_SECONDS = 5.0  # no answer for this long: no new runs
QUIET_SECONDS = 5.0  # nothing received of a run since it was sent: does the host have it?
LONG_QUIET_SECONDS = 30.0  # the same of one of which something was
PONGS = 5  # pings that are answered while a check is not: the host is unfit
TERM_SECONDS = 5.0
OUTPUT_SECONDS = 2.0
READING_SECONDS = 0.01  # of reading what a host sends without a break: then other greenlets run
PAUSE_SECONDS = 0.0001  # not 0: gevent would come back to us many times before it looks at sockets and timers
OUTPUT_BYTES, LINE_BYTES = 16 * 1024, 8 * 1024  # of what it prints: read at a time, and a line at most
# What reading a frame can raise when its sender is not our graph host any more.
NONSENSE = (frames.BadFrame, ValueError, ArithmeticError, LookupError, TypeError, AttributeError)


class Occupant(Protocol):
    """A run or a question in a host: who gets its frames."""

    def received(self, kind: int, body: bytes) -> None:
        """A frame of this run has come."""

    def host_died(self, error: HostError) -> None:
        """The process that executed this run is gone, or does not execute it."""

    def wait_until_drained(self) -> None:
        """Return when the run's resend buffer takes events again."""


@dataclass(frozen=True, slots=True)
class HostCommand:
    """How to start a revision's host: made by `workers/builder/host_commands.py`."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    hold: IO[str] | None = None  # keeps its files here until the host is gone
    home: Path | None = None  # the folder that it may fill


class Output(Protocol):
    """Where what user code prints goes."""

    def __call__(self, level: str, message: str, run_id: UUID | None, /) -> None: ...


class Host:
    """One child process and the runs in it."""

    def __init__(
        self,
        revision_id: UUID,
        command: HostCommand,
        settings: Settings,
        output: Output,
        *,
        group: Group = OPEN,
        changed: Callable[[Host], None] = lambda host: None,
        opened: Callable[[Host, bytes, Mapping[str, Any]], None] = lambda host, id, head: None,
    ) -> None:
        """`changed` is called when the last run has left, and when the process has ended.

        `opened`: with the id and the head of a request of user code to its own deployment.
        """
        self.revision_id = revision_id
        self.group = group  # of the runs that may be here
        self.occupants: dict[bytes, Occupant] = {}
        self.entered_at: dict[bytes, float] = {}  # … its occupants, the longest ago first
        self.is_retiring = False  # no new runs: its slot is wanted
        self.is_unfit = False  # … because it does not begin runs, or user code damaged it
        self.started_at = self.last_used = time.monotonic()
        self.memory_mb = settings.host_memory_mb  # what it may take
        self.delay = 0.0  # of its last answer to a ping
        self.queued = 0  # calls of nodes that waited for a thread then
        self._starved: set[bytes] = set()  # … runs for which all that is to be called has waited long
        self.died: str | None = None
        self._counting: gevent.Greenlet | None = None  # of what its home holds, while it is under way
        # Its processes have ended and its home is being emptied; its death is reported after that.
        self._is_emptying = False
        self._death = HostDied("has ended")
        self._settings = settings
        self._output = output
        self._hold = command.hold
        self._home = command.home
        self._changed = changed
        self._opened = opened
        self._active: set[bytes] = set()  # runs of which frames have come since the last ping
        self._ask_at: dict[bytes, float] = {}  # when to ask whether the host has a run
        self._asked: set[bytes] | None = None  # runs that a check asks for that is yet to be answered
        self._pongs = 0  # since it was sent
        self._asked_at: float | None = None
        self._warned = False
        self._ready: AsyncResult = AsyncResult()
        self._write_lock = RLock()
        self._group = sandbox.host_group(settings)
        ours, theirs = socket.socketpair()
        try:
            self._process = _start(
                command,
                theirs,
                partial(sandbox.confine, self._group, file_bytes=settings.host_home_mb * MIB),
            )
        except OSError as error:
            ours.close()
            self._let_go()
            raise HostUnusable(f"the graph host could not be started: {error}") from error
        finally:
            theirs.close()
        self.usage = usage.Program(self.pid)
        self._socket = ours
        self._greenlets = [gevent.spawn(self._read), gevent.spawn(self._watch_output)]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_healthy(self) -> bool:
        return self.died is None and not self.is_unfit and self.silence < STALLED_SECONDS

    @property
    def silence(self) -> float:
        """Seconds for which a ping has been unanswered."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    @property
    def starved(self) -> set[UUID]:
        """Runs in it that get no thread, and that another host may go on with."""
        return {UUID(bytes=id) for id in self._starved & self._ask_at.keys()}

    def wait_ready(self) -> dict[str, Any]:
        """What the host says of itself once its graphs are loaded; raises HostUnusable."""
        try:
            return cast("dict[str, Any]", self._ready.get(timeout=self._settings.host_start_seconds))
        except gevent.Timeout:
            self.kill("did not get ready in time")
            raise HostUnusable(
                f"the graph host was not ready within {self._settings.host_start_seconds:.0f} s"
            ) from None

    def send(self, kind: int, id: bytes, body: bytes) -> None:
        """Send one frame; raises HostDied."""
        try:
            with self._write_lock:
                self._socket.sendall(frames.encode(kind, id, body))
        except OSError as error:
            if self.died is None:
                self.kill(self._how_it_ended())
            raise self._death from error

    def enter(self, id: bytes, occupant: Occupant, body: bytes, *, kind: int = frames.RUN) -> None:
        """Start a run here, or ask something (`kind` QUERY); raises HostDied."""
        if self.died is not None:
            raise self._death
        self.admit(id, occupant)
        if kind == frames.RUN:
            self._ask_at[id] = self.last_used + QUIET_SECONDS
        self.send(kind, id, body)

    def admit(self, id: bytes, occupant: Occupant) -> None:
        """Pass frames with this id on to an occupant."""
        self.occupants[id] = occupant
        self.entered_at[id] = self.last_used = time.monotonic()

    def leave(self, id: bytes) -> None:
        """Frames of this run are not expected any more."""
        self.occupants.pop(id, None)
        self.entered_at.pop(id, None)
        self._ask_at.pop(id, None)
        self.last_used = time.monotonic()
        if not self.occupants:
            self._changed(self)

    def ping(self) -> None:
        """Ask whether the host's loop turns; act on silence."""
        if self.died is not None or not self._ready.ready():
            return
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            gevent.spawn(self._send_ping)  # a full socket may hold the sender: silence must be noticed then
        elif self.silence > self._settings.host_stall_seconds:
            self.kill(f"blocked for {self.silence:.0f} s: a node held the event loop")
        elif self.silence > STALLED_SECONDS and not self._warned:
            self._warned = True
            self._output("WARNING", f"the event loop has been blocked for {self.silence:.0f} s", None)
        self._check_on_quiet_runs()

    def _send_ping(self) -> None:
        self._send_quietly(frames.PING, b"")

    def _send_quietly(self, kind: int, body: bytes) -> None:
        try:
            self.send(kind, frames.NOBODY, body)
        except HostDied:
            return

    def _check_on_quiet_runs(self) -> None:
        """Ask for runs of which nothing was received, in a way that needs what a run needs.

        A pong needs the loop only: user code may have broken all else.
        """
        self._note_active()
        if self._asked is not None:
            if self._pongs >= PONGS:
                if not self.is_unfit:
                    log.warning(
                        "host %s of revision %s answers nothing but pings", self.pid, self.revision_id
                    )
                    self.is_unfit = True
                self._displace(set(self._ask_at))  # those too that were sent after the check
            return
        now = time.monotonic()
        quiet = {id for id, at in self._ask_at.items() if at <= now}
        if quiet:
            self._asked, self._pongs = quiet, 0
            gevent.spawn(self._send_quietly, frames.CHECK, orjson.dumps([id.hex() for id in quiet]))

    def _note_active(self) -> None:
        for id in self._active & self._ask_at.keys():
            self._ask_at[id] = time.monotonic() + LONG_QUIET_SECONDS
        self._active.clear()

    def _checked(self, begun: set[bytes]) -> None:
        """The host executes these of the runs it was asked for."""
        asked, self._asked = self._asked or set(), None
        self._active |= begun
        self._displace(asked - begun)

    def _displace(self, ids: set[bytes]) -> None:
        """These go elsewhere, but those of which something was received since."""
        self._note_active()
        now = time.monotonic()
        for id in ids:
            if self._ask_at.get(id, now) <= now and (occupant := self.occupants.get(id)):
                self._ask_at.pop(id, None)
                occupant.host_died(NotBegun("does not execute the run"))

    @property
    def used_bytes(self) -> int:
        return self.usage.memory_bytes

    def measure(self) -> None:
        """Look at what it takes of the machine; a host over its limits is killed."""
        most = self._settings.host_processes
        self.usage.measure(sandbox.TEMPORARY, most)
        if len(self.usage.processes) > most:
            self.kill(f"had more than {most} processes")
        elif self.used_bytes > self.memory_mb * MIB:
            self.kill(f"used {self.used_bytes // MIB} MiB, more than {self.memory_mb} MiB")
        elif self._home is not None and not self._counting:
            self._counting = gevent.spawn(self._measure_home, self._home)  # others are looked at meanwhile

    def _measure_home(self, home: Path) -> None:
        """In a thread, since it may hold many files.

        The folder is emptied, or the next host would be killed too. That is done before anybody learns of the death,
        or files of the next host might go with it.
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
        """End an idle host in good order."""
        if self.died is None:
            try:
                self.send(frames.STOP, frames.NOBODY, b"")
            except HostDied:
                return
            gevent.spawn(self._end_after, TERM_SECONDS)

    def _end_after(self, seconds: float) -> None:
        gevent.sleep(seconds)
        self.kill("did not stop")

    def kill(self, reason: str) -> None:
        """End the process and everything it started; its occupants learn of it by `host_died`."""
        if self.died is None and not self._is_emptying:
            self._bury(reason)

    def wait_output(self) -> None:
        """Wait a little until what it printed before its end has been read."""
        gevent.joinall(self._greenlets, timeout=OUTPUT_SECONDS)

    def _bury(self, reason: str) -> None:
        self.died = reason
        if not self._ready.ready():
            self._ready.set_exception(HostUnusable(reason))
        self.usage.end()
        self._socket.close()
        gevent.spawn(self._process.wait)
        self._let_go()
        occupants, self.occupants = list(self.occupants.values()), {}
        self._death = HostDied(reason, together=len(occupants))
        for occupant in occupants:
            occupant.host_died(self._death)
        self._changed(self)

    def _let_go(self) -> None:
        """Nothing works in the host's files any more, nor in its group."""
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
                    gevent.sleep(PAUSE_SECONDS)  # recv does not give way as long as there is more
                    resumed_at = time.monotonic()
        except OSError:
            pass  # the process is gone: said below
        except NONSENSE as error:
            log.warning("host %s of revision %s sent nonsense: %r", self.pid, self.revision_id, error)
            self.kill(f"sent a frame that cannot be read: {error}")
        if self.died is None:
            self.kill(self._how_it_ended())

    def _dispatch(self, kind: int, id: bytes, body: bytes) -> None:
        if kind == frames.PONG:
            if self._asked_at is not None:
                self.delay, self._asked_at, self._warned = time.monotonic() - self._asked_at, None, False
                self._pongs += 1
            if body:
                self._learn_condition(orjson.loads(body))
            else:
                self.queued, self._starved = 0, set()
        elif kind == frames.LOG:
            self._log_line(id, body)
        elif kind == frames.READY:
            self._become_ready(orjson.loads(body))
        elif kind == frames.CHECKED:
            self._checked({bytes.fromhex(id) for id in orjson.loads(body)})
        elif kind == frames.OPEN:
            self._opened(self, id, orjson.loads(body))
        elif occupant := self.occupants.get(id):
            self._active.add(id)
            occupant.received(kind, body)

    def _learn_condition(self, condition: dict[str, Any]) -> None:
        self.queued = int(condition["queued"])
        self._starved = {bytes.fromhex(id) for id in condition["starved"]}
        if condition["damage"] is not None and not self.is_unfit:
            self.is_unfit = True
            self._output("WARNING", f"{condition['damage']}: its process gets no new runs", None)

    def _log_line(self, id: bytes, body: bytes) -> None:
        line = orjson.loads(body)
        run_id = UUID(bytes=id) if id in self.occupants else None
        self._output(str(line["level"]), str(line["message"]), run_id)

    def _become_ready(self, answer: dict[str, object]) -> None:
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
        if self._group is not None and self._group.ran_out_of_memory():
            return f"used more than {self.memory_mb} MiB"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        if code > 128 and code - 128 in set(signal.Signals):  # a sandbox tells of its child this way
            return f"was killed by {signal.Signals(code - 128).name}"
        return f"exited with code {code}"

    def _watch_output(self) -> None:
        """Pass on what it prints, in a tenth of our time at most: whoever floods the pipe waits at it."""
        stream = self._process.stdout
        assert stream is not None
        rest = b""
        while data := stream.read(OUTPUT_BYTES):
            began = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._print(line)
            if len(rest) >= LINE_BYTES:
                self._print(rest)
                rest = b""
            gevent.sleep(9 * (time.monotonic() - began))
        if rest:
            self._print(rest)
        stream.close()

    def _print(self, line: bytes) -> None:
        for at in range(0, max(len(line), 1), LINE_BYTES):
            self._output("INFO", line[at : at + LINE_BYTES].decode("utf-8", "replace"), None)


def _start(
    command: HostCommand, theirs: socket.socket, confine: Callable[[], None]
) -> gevent.subprocess.Popen:
    argv = [part if part != "{socket}" else str(theirs.fileno()) for part in command.argv]
    return gevent.subprocess.Popen(
        argv,
        bufsize=0,
        cwd=command.cwd,
        env=command.env,
        stdin=gevent.subprocess.DEVNULL,
        stdout=gevent.subprocess.PIPE,
        stderr=gevent.subprocess.STDOUT,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
        preexec_fn=confine,
    )
