"""Keeps user code away from the rest of the machine, as well as this machine can.

Level 2 is bubblewrap: own user, process, IPC and host-name namespaces, a read-only system, a private /tmp,
and of the data directory only what the command is given. Level 0 is the same user with resource limits.
The network is shared at both: agents call models.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from shared.settings import BadSetting

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
OPEN_FILES = 4096
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


def level(isolation: str) -> int:
    """The level in force under this setting; raises BadSetting when `require` cannot be met."""
    if isolation == "none":
        return 0
    if _bubblewrap() is not None:
        return 2
    if isolation == "require":
        raise BadSetting(
            "RUNYARD_ISOLATION=require: bubblewrap (bwrap) is not installed or does not work here"
        )
    return 0


@functools.cache
def _bubblewrap() -> str | None:
    """The bwrap program if it works on this machine: found out once."""
    program = shutil.which("bwrap")
    if program is None:
        log.warning("user code runs without a sandbox: bubblewrap (bwrap) is not installed")
        return None
    probe = [program, *NAMESPACES, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=10, check=False)
    if done.returncode != 0:
        log.warning("user code runs without a sandbox: bwrap does not work here: %s", done.stderr.strip())
        return None
    return program


def wrap(
    argv: Sequence[str],
    *,
    isolation: str,
    readonly: Sequence[Path],
    writable: Sequence[Path],
    cwd: Path,
) -> list[str]:
    """The command inside the best sandbox there is; without one, the command itself."""
    if level(isolation) < 2:
        return list(argv)
    binds: list[str] = []
    for path in (*SYSTEM, *ETC):
        binds += ["--ro-bind-try", path, path]
    binds += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for given in (Path(sys.base_prefix), *readonly):
        binds += ["--ro-bind", str(given), str(given)]
    for given in writable:
        binds += ["--bind", str(given), str(given)]
    return [str(_bubblewrap()), *NAMESPACES, *binds, "--chdir", str(cwd), "--", *argv]


def confine() -> None:
    """Called in a child before its program starts: it dies with us, and has limits."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
