"""Control groups (cgroup v2): the kernel holds a graph host to its limits, where the service may make groups.

That is so where its own group was handed to it with the controllers: by systemd with `Delegate=yes`, or in a container
whose cgroup file system can be written. The kernel wants processes in the leaves of the tree alone, so what runs in
the service's group moves into one below it first. A group that nobody handed over is left alone: a login session's
holds its user's shell too.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

import gevent

log = logging.getLogger(__name__)

CONTROLLERS = ("cpu", "memory", "pids")
SERVICE = "service"  # the leaf for the service's own processes
HOST = "host-"
HOST_WEIGHT = 50  # of the processor, beside the 100 of the service's own processes
MOVING_ROUNDS = 10  # processes may start others while they are moved
REMOVAL_ROUNDS, REMOVAL_PAUSE_SECONDS = 50, 0.1
DELEGATED = "user.delegate"  # how systemd marks what it has handed over


class ControlGroup:
    """The group of one host."""

    def __init__(self, folder: Path, *, tasks: int, memory_bytes: int) -> None:
        """Raises OSError."""
        folder.mkdir()
        self._folder = folder
        limits = {
            "pids.max": tasks,
            "memory.max": memory_bytes,
            "memory.oom.group": 1,  # a host that lost some of its processes is of no use
            "cpu.weight": HOST_WEIGHT,
        }
        try:
            for name, value in limits.items():
                (folder / name).write_text(str(value))
        except OSError:
            folder.rmdir()
            raise

    def enter(self) -> None:
        """Called in a child before its program starts. One that stays outside is counted as without groups."""
        with suppress(OSError):
            (self._folder / "cgroup.procs").write_text("0")

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has ended the host for its memory."""
        with suppress(OSError):
            events = dict(line.split() for line in (self._folder / "memory.events").read_text().splitlines())
            return int(events.get("oom_kill", 0)) > 0
        return False

    def end(self) -> None:
        """Kill what is left in it, and remove it as soon as that has ended."""
        with suppress(OSError):
            (self._folder / "cgroup.kill").write_text("1")
        gevent.spawn(self._remove)

    def _remove(self) -> None:
        for _ in range(REMOVAL_ROUNDS):
            with suppress(OSError):
                self._folder.rmdir()
                return
            gevent.sleep(REMOVAL_PAUSE_SECONDS)


class ControlGroups:
    """The group below which this process makes one for each of its hosts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    def make(self, *, tasks: int, memory_bytes: int) -> ControlGroup | None:
        """A group with these limits; None where the kernel refuses it."""
        self._made += 1
        folder = self._folder / f"{HOST}{os.getpid()}-{self._made}"
        try:
            return ControlGroup(folder, tasks=tasks, memory_bytes=memory_bytes)
        except OSError as error:
            log.warning("a host starts without a control group: %s", error)
            return None

    def sweep(self) -> None:
        """Remove what processes that were killed have left behind; groups in use stay."""
        for folder in self._folder.glob(f"{HOST}*"):
            with suppress(OSError):
                folder.rmdir()


def find() -> ControlGroups | None:
    """Where this process may make groups; None, with the reason in the log, where it may not."""
    try:
        groups = take(
            own_folder(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
        )
    except OSError as error:
        log.info("hosts have no control groups of their own: %s", error)
        return None
    log.info("each host has a control group of its own")
    return groups


def own_folder(membership: str, mounts: str) -> Path:
    """This process's group in the file system, from /proc/self/cgroup and mountinfo; raises FileNotFoundError."""
    own = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), None)
    for line in mounts.splitlines():
        mount, _, kind = line.partition(" - ")
        if own is not None and kind.startswith("cgroup2 "):
            root, point = mount.split()[3:5]
            if Path(own).is_relative_to(root):
                return Path(point) / Path(own).relative_to(root)
    raise FileNotFoundError("there is no cgroup v2 here")


def take(own: Path) -> ControlGroups:
    """Make ready the group that was handed to the service; raises OSError where none was."""
    folder = own.parent if own.name == SERVICE else own
    missing = set(CONTROLLERS) - set((folder / "cgroup.controllers").read_text().split())
    if missing:
        raise PermissionError(f"{folder} has no controllers for {', '.join(sorted(missing))}")
    if not set(CONTROLLERS) <= set((folder / "cgroup.subtree_control").read_text().split()):
        _move_processes(folder)
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
    ControlGroup(folder / f"{HOST}{os.getpid()}-0", tasks=1, memory_bytes=1 << 20).end()
    groups = ControlGroups(folder)
    groups.sweep()
    return groups


def _move_processes(folder: Path) -> None:
    """Raises PermissionError for a group that is not the service's alone."""
    if not (folder / "cgroup.type").exists():
        return  # the root of all groups may hold processes too
    if not _is_delegated(folder):
        raise PermissionError(f"{folder} was not handed over to the service")
    leaf = folder / SERVICE
    leaf.mkdir(exist_ok=True)
    for _ in range(MOVING_ROUNDS):
        pids = (folder / "cgroup.procs").read_text().split()
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):  # it has ended
                (leaf / "cgroup.procs").write_text(pid)


def _is_delegated(folder: Path) -> bool:
    """By systemd's mark, or since it is all that this process's namespace has."""
    if not (folder.parent / "cgroup.procs").exists():
        return True
    with suppress(OSError):
        return os.getxattr(folder, DELEGATED) == b"1"
    return False
