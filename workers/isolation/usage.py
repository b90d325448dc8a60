"""Measuring and ending of a program with all its descendants, based on /proc.

A descendant that leaves the program's session just before the program ends has another parent when it is looked for.
Programs of user code therefore start with a mark: a variable that their descendants inherit, and that names the program and
the process of the service that started it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

PAGE = os.sysconf("SC_PAGE_SIZE")
STATE, STARTED_AT, RESIDENT_PAGES = 0, 19, 21  # positions of fields in /proc/*/stat, after the name
MARK = "RUNYARD_STARTED_BY"
MARKED = re.compile(rb"(?:^|\0)RUNYARD_STARTED_BY=((\d+)-(\d+)-[0-9a-f]+)(?:\0|$)")
END_ROUNDS = 1000
END_PAUSE_SECONDS = 0.001


@dataclass(frozen=True)
class Process:
    """One process of the machine. Pid and start time identify it, since pids are reused."""

    pid: int
    started_at: int
    state: str = field(compare=False)
    memory_bytes: int = field(compare=False)


class Program:
    """A started program with all its descendants."""

    def __init__(self, pid: int) -> None:
        self._root = _look(pid)
        self._leads_group = self._root is not None and _group_of(pid) == pid
        self.processes: frozenset[Process] = frozenset()
        self.memory_bytes = 0

    def measure(self, temporary: Iterable[str] = (), most: int | None = None) -> None:
        """Measure the running processes and their memory.

        Stops at one process more than `most`. `temporary` are the program's own folders in memory, which count, too.
        """
        if self._root is None:
            return
        self.processes = frozenset(_family([self._root.pid], most))
        resident = sum(process.memory_bytes for process in self.processes)
        self.memory_bytes = resident + _held(self._root.pid, temporary)

    def end(self) -> None:
        """Kill the program, its descendants, and processes of the last measurement that are not descendants any more.

        The root process is frozen until all others are dead. It adopts the children of processes that die, and a scan
        may have missed them while their parent was alive. A process that is being killed can start no others. A process
        that is being frozen still can, so the loop waits until its state is stopped.
        """
        sent: set[Process] = set()
        for _ in range(END_ROUNDS):
            processes = [process for process in _family(self._alive()) if process.state != "Z"]
            new = set(processes) - sent
            for process in new:
                _send(process.pid, signal.SIGSTOP if process == self._root else signal.SIGKILL)
            sent |= new
            if not new and all(process == self._root and process.state == "T" for process in processes):
                break
            if not new:
                time.sleep(END_PAUSE_SECONDS)
        if self._root in sent:
            _send(self._root.pid, signal.SIGKILL)
        self._end_group()

    def _end_group(self) -> None:
        """Kill what the program started just before its own end: no measurement has seen it, and it has another parent.

        The kernel does not reuse an id while a process is in the group with this number. If another process has the id of
        the program, the group is therefore empty.
        """
        if self._root is not None and self._leads_group and _look(self._root.pid) in (None, self._root):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._root.pid, signal.SIGKILL)

    def _alive(self) -> list[int]:
        """Return the pids of known processes that still run. Skips pids that other processes have reused."""
        known = self.processes if self._root is None else {*self.processes, self._root}
        return [process.pid for process in known if _look(process.pid) == process]


def new_mark() -> str:
    """Return a value of MARK for a program that this process starts."""
    this = _look(os.getpid())
    return f"{os.getpid()}-{0 if this is None else this.started_at}-{uuid4().hex}"


def end_marked(mark: str) -> None:
    """Kill the processes with this mark, which must be that of a program that has ended."""
    _kill_all(lambda match: match[1] == mark.encode())


def end_abandoned() -> None:
    """Kill the processes whose mark names a process of the service that has ended."""
    _kill_all(lambda match: not _is_alive(int(match[2]), int(match[3])))


def _is_alive(pid: int, started_at: int) -> bool:
    process = _look(pid)
    return process is not None and process.started_at == started_at and process.state != "Z"


def _kill_all(chosen: Callable[[re.Match[bytes]], bool]) -> None:
    """Kill the processes whose mark is chosen, until a scan finds no new one: they may start others meanwhile."""
    sent: set[Process] = set()
    for _ in range(END_ROUNDS):
        marks = [(pid, mark) for pid in _pids() if (mark := _mark_of(pid))]
        found = {process for pid, mark in marks if chosen(mark) and (process := _look(pid))} - sent
        if not found:
            return
        for process in found:
            _send(process.pid, signal.SIGKILL)
        sent |= found


def _pids() -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return []


def _mark_of(pid: int) -> re.Match[bytes] | None:
    """Return the mark with which a process has been started; None without one, or if this user may not read it."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return MARKED.search(file.read())
    return None


def _family(pids: list[int], most: int | None = None) -> Iterator[Process]:
    """Yield these processes and all their descendants, up to one more than `most`."""
    seen: set[int] = set()
    while pids and (most is None or len(seen) <= most):
        process = _look(pids.pop())
        if process is not None and process.pid not in seen:
            seen.add(process.pid)
            pids += _children(process.pid)
            yield process


def _look(pid: int) -> Process | None:
    fields = _fields(f"/proc/{pid}/stat")
    if fields is None:
        return None
    alive = fields if fields[STATE] != "Z" else _living_thread(pid) or fields
    return Process(pid, int(fields[STARTED_AT]), alive[STATE], int(alive[RESIDENT_PAGES]) * PAGE)


def _fields(path: str) -> list[str] | None:
    try:
        with open(path) as file:
            return file.read().rpartition(")")[2].split()  # the name may contain any characters
    except OSError:
        return None


def _living_thread(pid: int) -> list[str] | None:
    """Return the stat fields of a running thread of a process; None if there is none.

    A process whose first thread has ended looks like a zombie without memory while its other threads run.
    """
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            fields = _fields(f"/proc/{pid}/task/{thread}/stat")
            if fields is not None and fields[STATE] not in "ZX":
                return fields
    return None


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process: a child belongs to the thread that started it."""
    children: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                children += map(int, file.read().split())
    return children


def _held(pid: int, folders: Iterable[str]) -> int:
    """Return the bytes in folders in memory, as the program's first child sees them, which is inside the sandbox.

    Without a sandbox, or before the child has entered it, the folders are the machine's and do not count.
    """
    inside = next(iter(_children(pid)), None)
    if inside is None:
        return 0
    return sum(_held_in(f"/proc/{inside}/root{folder}", folder) for folder in folders)


def _held_in(path: str, folder: str) -> int:
    """Return the bytes in one such folder. Resolves the path once, since it may change while the sandbox starts."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return 0
    try:
        if os.fstat(descriptor).st_dev in (os.stat(folder).st_dev, os.stat("/").st_dev):
            return 0
        held = os.statvfs(descriptor)
        return (held.f_blocks - held.f_bfree) * held.f_frsize
    except OSError:
        return 0
    finally:
        os.close(descriptor)


def _group_of(pid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
