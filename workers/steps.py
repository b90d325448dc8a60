"""Runs one command of a build to its end: output line by line, within limits, and nothing left behind."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import gevent
import gevent.subprocess
import psutil

from workers import sandbox

LAST_LINES = 30
LINE_BYTES = 8 * 1024
MAX_CAUSE = 1000
MAX_MEMORY_BYTES = 2 * 1024**3
MAX_DISK_BYTES = 5 * 1024**3
WATCH_SECONDS = 2.0
CAUSE = re.compile(r"(error|cause|caused by):\s*", re.IGNORECASE)

Say = Callable[[str, str], None]  # level, message


def execute(argv: list[str], folder: Path, env: Mapping[str, str], say: Say) -> str | None:
    """Run a command in the folder it may fill; None when it worked, else why it did not."""
    process = gevent.subprocess.Popen(
        argv,
        cwd=folder,
        env=dict(env),
        stdin=gevent.subprocess.DEVNULL,
        stdout=gevent.subprocess.PIPE,
        stderr=gevent.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_confine,
    )
    stream = process.stdout
    assert stream is not None
    last: deque[str] = deque(maxlen=LAST_LINES)
    watcher = gevent.spawn(_watch, process.pid, folder)
    try:
        for raw in iter(lambda: stream.readline(LINE_BYTES), b""):
            line = raw.decode("utf-8", "replace").rstrip()
            last.append(line)
            say("INFO", line)
        code = process.wait()
    finally:
        watcher.kill()
        _end(process.pid)  # what it started must not outlive it
        process.wait()
        stream.close()
    if isinstance(watcher.value, str):
        return watcher.value
    return None if code == 0 else cause(last) or _ended(code)


def _ended(code: int) -> str:
    return (
        f"the step was killed by {signal.Signals(-code).name}" if code < 0 else f"the step ended with {code}"
    )


def _confine() -> None:
    sandbox.confine()
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_DISK_BYTES, MAX_DISK_BYTES))


def _end(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _watch(pid: int, folder: Path) -> str:
    """End a step that takes too much; why."""
    while True:
        gevent.sleep(WATCH_SECONDS)
        if _memory(pid) > MAX_MEMORY_BYTES:
            reason = f"the step took more than {MAX_MEMORY_BYTES // 2**20} MiB of memory"
        elif _disk(folder) > MAX_DISK_BYTES:
            reason = f"the build took more than {MAX_DISK_BYTES // 2**20} MiB of disk"
        else:
            continue
        _end(pid)
        return reason


def _memory(pid: int) -> int:
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for member in family:
        with suppress(psutil.Error):
            total += member.memory_info().rss
    return total


def _disk(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def cause(last: Iterable[str]) -> str:
    """What a failed command gives as its reason: its last error and the causes below, in one line."""
    told = [line.strip() for line in last]
    starts = [n for n, line in enumerate(told) if line.startswith("error:")]
    if not starts:
        return next((line for line in reversed(told) if line), "")
    reasons: list[str] = []
    for line in told[starts[-1] :]:
        if not line:
            break
        reasons.append(CAUSE.sub("", line, count=1))
    return ": ".join(reasons)[:MAX_CAUSE]
