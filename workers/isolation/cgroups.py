"""Control groups (cgroup v2): the kernel enforces the limits of graph hosts, if the service may create groups.

The service may create groups if its own group was delegated to it with the controllers: by systemd with `Delegate=yes`,
or in a container with a writable cgroup file system. The kernel allows processes only in the leaves of the tree, so the
processes of the service's group first move into a child group. A group that was not delegated is left unchanged,
because the group of a login session, for example, also contains the user's shell.
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
HOST_WEIGHT = 50  # CPU weight; the service's own processes have 100
MOVING_ROUNDS = 10  # processes may start others while they are moved
REMOVAL_ROUNDS, REMOVAL_PAUSE_SECONDS = 50, 0.1
DELEGATED = "user.delegate"  # the attribute with which systemd marks delegated groups


class ControlGroup:
    """The control group of one graph host."""

    def __init__(self, folder: Path, *, tasks: int, memory_bytes: int) -> None:
        """Create the group with its limits. Raises OSError."""
        folder.mkdir()
        self._folder = folder
        limits = {
            "pids.max": tasks,
            "memory.max": memory_bytes,
            "memory.oom.group": 1,  # kill all processes of the host: it cannot work without some of them
            "cpu.weight": HOST_WEIGHT,
        }
        try:
            for name, value in limits.items():
                (folder / name).write_text(str(value))
        except OSError:
            folder.rmdir()
            raise

    def enter(self) -> None:
        """Move the calling process into the group. Called in a child between fork and exec.

        If that fails, the host is measured and limited by the runner, as without control groups.
        """
        with suppress(OSError):
            (self._folder / "cgroup.procs").write_text("0")

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed the host for exceeding its memory limit."""
        with suppress(OSError):
            events = dict(line.split() for line in (self._folder / "memory.events").read_text().splitlines())
            return int(events.get("oom_kill", 0)) > 0
        return False

    def end(self) -> None:
        """Kill the remaining processes of the group, and remove it as soon as they have ended."""
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
    """The parent group below which this process creates a group for each of its hosts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._created = 0

    def make(self, *, tasks: int, memory_bytes: int) -> ControlGroup | None:
        """Create a group with these limits. Returns None if the kernel refuses it."""
        self._created += 1
        folder = self._folder / f"{HOST}{os.getpid()}-{self._created}"
        try:
            return ControlGroup(folder, tasks=tasks, memory_bytes=memory_bytes)
        except OSError as error:
            log.warning("a host starts without a control group: %s", error)
            return None

    def sweep(self) -> None:
        """Remove the groups that killed runners have left behind. Groups in use remain."""
        for folder in self._folder.glob(f"{HOST}*"):
            with suppress(OSError):
                folder.rmdir()


def find() -> ControlGroups | None:
    """Return the parent group for hosts. Logs the reason and returns None if this process may not create groups."""
    try:
        groups = take(
            service_folder(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
        )
    except OSError as error:
        log.info("hosts have no control groups of their own: %s", error)
        return None
    log.info("each host has a control group of its own")
    return groups


def service_folder(membership: str, mounts: str) -> Path:
    """Return the path of this process's group, from the texts of /proc/self/cgroup and mountinfo.

    Raises FileNotFoundError.
    """
    group = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), None)
    for line in mounts.splitlines():
        mount, _, kind = line.partition(" - ")
        if group is not None and kind.startswith("cgroup2 "):
            root, point = mount.split()[3:5]
            if Path(group).is_relative_to(root):
                return Path(point) / Path(group).relative_to(root)
    raise FileNotFoundError("there is no cgroup v2 here")


def take(service: Path) -> ControlGroups:
    """Prepare the group that was delegated to the service. Raises OSError if none was."""
    folder = service.parent if service.name == SERVICE else service
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
    """Move all processes of a group into its child SERVICE.

    Raises PermissionError for a group that was not delegated to the service.
    """
    if not (folder / "cgroup.type").exists():
        return  # the root group may contain processes
    if not _is_delegated(folder):
        raise PermissionError(f"{folder} was not handed over to the service")
    leaf = folder / SERVICE
    leaf.mkdir(exist_ok=True)
    for _ in range(MOVING_ROUNDS):
        pids = (folder / "cgroup.procs").read_text().split()
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):  # the process has ended
                (leaf / "cgroup.procs").write_text(pid)


def _is_delegated(folder: Path) -> bool:
    """Whether systemd has marked the group as delegated, or it is the root of this process's cgroup namespace."""
    if not (folder.parent / "cgroup.procs").exists():
        return True
    with suppress(OSError):
        return os.getxattr(folder, DELEGATED) == b"1"
    return False
