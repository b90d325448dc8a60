"""The isolation levels, and the best one that works on this machine.

    2  Bubblewrap: own user, process, IPC and host-name namespaces, a read-only system, a private /tmp, and only those
       parts of the data directory that the command needs.
    1  Another user, for a service that runs as root. It can enter only the folders that belong to it.
    0  The user of the service. User code can read the service's files.

Levels 0 and 1 also set resource limits and drop all capabilities permanently. User code therefore cannot read the
environments of other processes (`shared/infra/system.py` is the other half of that protection). The network is
shared at all levels, because agents call models; replays that call none have no network at levels 1 and 2.

If user code runs in its own user namespace and not as the machine's root, the kernel also bounds its processes and
threads (`workers/isolation/confinement.py`). `workers/isolation/usage.py` counts its processes in all cases.
"""

from __future__ import annotations

import os
import pwd
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.infra import system
from shared.setting_values import BadSetting
from shared.settings import Settings
from workers.isolation import bubblewrap, confinement, limited
from workers.isolation.cgroups import ControlGroups
from workers.isolation.confinement import Identity

TASKS_PER_PROCESS = 4  # the kernel counts threads, too; a host with too many processes is killed before
HERE = Path(__file__).parents[1]
MEANINGS = {
    0: "user code runs as this user, without capabilities, and can read its files",
    1: "user code runs as another user, without capabilities",
    2: "user code runs in a sandbox of its own (bubblewrap)",
}


@dataclass(frozen=True)
class Isolation:
    """The isolation that this process applies to user code."""

    level: int
    most_tasks: int
    identity: Identity | None = None
    has_namespace: bool = False  # the service creates a user namespace for each program
    groups: ControlGroups | None = None  # control groups for graph hosts

    @property
    def bounds_tasks(self) -> bool:
        """Whether the kernel bounds the processes and threads of each program."""
        return self.has_namespace or self.bounds_memory or (self.level == 2 and os.geteuid() != 0)

    @property
    def bounds_memory(self) -> bool:
        """Whether the kernel bounds the memory of each graph host."""
        return self.groups is not None


def most_tasks(settings: Settings) -> int:
    """Return how many processes and threads each program may have."""
    return settings.host_processes * TASKS_PER_PROCESS


def find(settings: Settings) -> tuple[Isolation, list[str]]:
    """Return the best isolation that works on this machine, and the reasons why no better one does."""
    reasons = []
    if settings.isolation != "none" and (missing := bubblewrap.find(settings.bwrap).missing):
        reasons.append(missing)
    if _lacks_user(settings):
        reasons.append(f"user code runs as root, there is no user {settings.sandbox_user!r}")
    for candidate in candidates(settings):
        reason = why_impossible(candidate, settings)
        if reason is None:
            return candidate, list(dict.fromkeys(reasons))
        if candidate.has_namespace:
            reasons.append("programs of user code get no user namespaces of their own")
        else:
            reasons.append(f"user {settings.sandbox_user} cannot run user code here: {reason}")
    raise AssertionError("unreachable: the last candidate always works")


def candidates(settings: Settings) -> Iterator[Isolation]:
    """Yield the isolations to try, the best first. The last one always works."""
    level, most = level_of(settings), most_tasks(settings)
    user = _sandbox_user(settings) if _may_change_user(settings) else None
    if user is not None:
        yield Isolation(level or 1, most, user, has_namespace=True)
        if level < 2:
            yield Isolation(1, most, user)
    yield Isolation(level, most)


def _may_change_user(settings: Settings) -> bool:
    return system.is_linux() and os.geteuid() == 0 and settings.isolation != "none"


def _sandbox_user(settings: Settings) -> Identity | None:
    try:
        user = pwd.getpwnam(settings.sandbox_user)
    except KeyError:
        return None
    return Identity(user.pw_uid, user.pw_gid)


def _lacks_user(settings: Settings) -> bool:
    return _may_change_user(settings) and _sandbox_user(settings) is None


def why_impossible(isolation: Isolation, settings: Settings) -> str | None:
    """Return why another user cannot reach the interpreter and the data directory with this isolation.

    Returns None if it can, or if user code runs as the service's user.
    """
    if isolation.identity is None:
        return None
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    look = "import os, sys; os.listdir(sys.argv[1]); os.stat(sys.argv[2])"
    argv = [sys.executable, "-I", "-c", look, str(HERE), str(settings.data_dir)]
    readonly = [Path(sys.prefix), HERE, settings.data_dir]
    if isolation.level == 2:
        argv = bubblewrap.wrapped(argv, settings, has_namespace=isolation.has_namespace, readonly=readonly)
    reason = bubblewrap.failure_of(argv, before=lambda: enter(isolation))
    return None if reason is None else reason.rpartition("\n")[2]


def level_of(settings: Settings) -> int:
    """Return the isolation level under these settings. Raises BadSetting if `require` cannot be met."""
    if settings.isolation == "none":
        return 0
    if bubblewrap.find(settings.bwrap).program is not None:
        return 2
    if settings.isolation == "require":
        raise BadSetting("RUNYARD_ISOLATION=require: bubblewrap (bwrap) is not here or does not work")
    return 0


def advice(settings: Settings) -> str:
    """Return a sentence that states how to raise the isolation level on this machine."""
    if settings.isolation == "none":
        return "Set RUNYARD_ISOLATION=auto, unless all that is deployed here is yours."
    if not system.is_linux():
        return "A sandbox needs Linux: run here only what you trust."
    if system.is_in_container():
        return (
            "In a container level 1 needs root with the capabilities that docker-compose.yml lists, and level 2 the"
            " security options of deploy/sandbox.yml or deploy/kubernetes/components/sandbox: see Isolation in"
            " docs/operating/security.md."
        )
    return "Level 2 needs a working bubblewrap: install bwrap, or allow user namespaces (sysctl)."


def enter(isolation: Isolation) -> None:
    """Confine the calling process to this isolation. Called between fork and exec."""
    if isolation.level < 2:
        confinement.adopt_orphans()
        if isolation.has_namespace and isolation.identity is not None:
            confinement.isolate(isolation.identity)
        confinement.become(isolation.identity)
    elif isolation.identity is not None:
        confinement.exchange_with_root(isolation.identity)
    if system.is_linux() and (isolation.level < 2 or os.geteuid() == 0):  # otherwise `limited` does
        limited.forbid_preallocation()
    if isolation.has_namespace:
        confinement.limit(resource.RLIMIT_NPROC, isolation.most_tasks)
