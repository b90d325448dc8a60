"""What Linux has and macOS lacks, the one place that tells them apart: elsewhere than on Linux each of these does less.

On macOS nothing ends a child when its parent is killed, orphans are the system's, and there is no sandbox: it is for
developing. What only `workers/isolation` needs of Linux is there, behind `is_linux()`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
MACOS_OPEN_FILES = 10_240  # OPEN_MAX: it refuses more, though it says that there is no limit
TASKS = Path("/proc/self/task")


def is_linux() -> bool:
    return sys.platform == "linux"


def prctl(option: int, value: int) -> None:
    """Change something about this process, on Linux; what a kernel refuses stays as it is."""
    if is_linux():
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def show_command(words: Sequence[str]) -> None:
    """Have `ps` show this process as another command; of one longer than its own the beginning. On Linux alone.

    Not by setproctitle, with which gunicorn and Celery would show theirs.
    """
    if not is_linux():
        return
    start, end = _command_line()
    shown = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _command_line() -> tuple[int, int]:
    """Where this process' command line is in its memory, by `man 5 proc_pid_stat`."""
    after_name = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    return int(after_name[48 - 3]), int(after_name[49 - 3])


def open_pipe() -> tuple[int, int]:
    """A pipe that no child inherits and on which nobody waits."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def own_children() -> list[int]:
    """The processes whose parent we are, also those that came to us as orphans; on Linux alone."""
    pids: list[int] = []
    if is_linux():
        for task in TASKS.glob("*/children"):
            with suppress(OSError):
                pids += [int(pid) for pid in task.read_text().split()]
    return pids


def processors() -> int:
    """How many we may use at once."""
    return len(os.sched_getaffinity(0)) if is_linux() else os.cpu_count() or 1


def raise_open_files() -> None:
    """As many descriptors as we may have: each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if is_linux():
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return
    most = MACOS_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MACOS_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def limit_memory(most: int) -> None:
    """This process's address space; macOS gives each process more than it would accept as a limit."""
    if is_linux():
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def locale_options() -> list[str]:
    """For `initdb`: PostgreSQL's own C.UTF-8, which as a locale of the system not every macOS has."""
    if is_linux():
        return ["--locale-provider=builtin", "--locale=C.UTF-8"]
    return ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]


def environment() -> dict[str, str]:
    """What processes that fork are to have: macOS ends a forked one that asks it for its proxies."""
    return {} if is_linux() else {"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
