"""A process and its operating system: signals, limits, memory, sockets and files.

Some functions need Linux and do less or nothing on macOS, which serves for development: there a child does not end when
its parent is killed, orphans go to the system, and there is no sandbox. `workers/isolation` has its own Linux code,
behind `is_linux()`.

Imports only the standard library: the fork server and the processes that unpack archives load this module.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
MACOS_OPEN_FILES = 10_240  # OPEN_MAX: macOS refuses more, though it reports no limit
TASKS = Path("/proc/self/task")
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
MAX_SOCKET_PATH = 100  # characters; Linux allows 107, macOS 103
YIELD_SECONDS = 0.0001
COLLECT_AFTER_OBJECTS = 5_000  # 7 times the default


def is_linux() -> bool:
    return sys.platform == "linux"


def is_in_container() -> bool:
    """Whether Docker, Podman or Kubernetes has started this process."""
    return "KUBERNETES_SERVICE_HOST" in os.environ or any(mark.exists() for mark in CONTAINER_MARKS)


def prctl(option: int, value: int) -> None:
    """Call prctl(2) for this process, on Linux. Ignores errors of the kernel."""
    if is_linux():
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def show_command(words: Sequence[str]) -> None:
    """Let `ps` show this process as another command, truncated to the original length. Linux only.

    Does not use setproctitle, because gunicorn and Celery would then set their own titles.
    """
    if not is_linux():
        return
    start, end = _command_line()
    shown = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _command_line() -> tuple[int, int]:
    """Return the start and end address of this process's command line: fields 48 and 49, see `man 5 proc_pid_stat`."""
    from_field_3 = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    return int(from_field_3[48 - 3]), int(from_field_3[49 - 3])


def open_pipe() -> tuple[int, int]:
    """Return a non-blocking pipe that children do not inherit."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def child_pids() -> list[int]:
    """Return the process ids of this process's children, including adopted orphans. Empty except on Linux."""
    pids: list[int] = []
    if is_linux():
        for task in TASKS.glob("*/children"):
            with suppress(OSError):
                pids += [int(pid) for pid in task.read_text().split()]
    return pids


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if is_linux() else os.cpu_count() or 1


def raise_open_files() -> None:
    """Raise the limit of open descriptors to its maximum, because each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if is_linux():
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return
    most = MACOS_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MACOS_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def limit_memory(most: int) -> None:
    """Limit this process's address space in bytes, on Linux. On macOS processes already exceed any acceptable limit."""
    if is_linux():
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def locale_options() -> list[str]:
    """Return the options of `initdb` for PostgreSQL's builtin C.UTF-8. Not every macOS has this system locale."""
    if is_linux():
        return ["--locale-provider=builtin", "--locale=C.UTF-8"]
    return ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]


def fork_environment() -> dict[str, str]:
    """Return variables for processes that fork. macOS kills a forked child that reads the proxy settings."""
    return {} if is_linux() else {"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}


def close_memory() -> None:
    """Prevent other processes of this user from reading this process's memory and environment through /proc."""
    prctl(PR_SET_DUMPABLE, 0)


def freeze_loaded_objects() -> None:
    """Enable the garbage collector and exclude all existing objects from its scans: they stay in memory anyway.

    It also runs less often than by default. A request or a run leaves few objects in cycles, and each scan visits the
    objects of all that are in progress.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, 10, 10)
    gc.enable()


def let_others_run() -> None:
    """Yield to other greenlets under gevent, else to other threads, between two long steps.

    The sleep must have a duration: gevent's `sleep(0)` does not poll sockets.
    """
    time.sleep(YIELD_SECONDS)


def open_private(path: str, flags: int) -> int:
    """Opener for `open` that makes the file accessible to its owner only, even if it already exists."""
    number = os.open(path, flags, 0o600)
    os.fchmod(number, 0o600)
    return number


def socket_folder(folder: Path, name: str) -> Path:
    """Return the folder of a unix socket: `folder`, or a folder of temporary files if the socket's path is too long."""
    if len(str(folder / name)) <= MAX_SOCKET_PATH:
        return folder
    import hashlib  # imported here: a process that unpacks archives would load OpenSSL for nothing
    import tempfile

    mark = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"runyard-{mark}"
