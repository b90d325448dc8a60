"""Runs one command of a build to its end: output line by line, within limits, and leaves no process behind."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import gevent
import gevent.subprocess

import shared
import workers
from shared.errors import BuildFailed
from shared.settings import Settings
from workers.isolation import disk, sandbox, usage

OWN = (Path(workers.__file__).parent, Path(shared.__file__).parent)  # for the steps that are ours
LAST_LINES = 30
LINE_BYTES = 8 * 1024
MAX_MEMORY_BYTES = 2 * 1024**3
MAX_PROCESSES = 256
MAX_DISK_BYTES = 5 * 1024**3
WATCH_SECONDS = 2.0
FRAME = '  File "'  # how a line of a traceback begins that says where
CAUSE = re.compile(r"(error|cause|caused by):\s*", re.IGNORECASE)

WriteLine = Callable[[str, str], None]  # takes a level and a message


def own_path() -> str:
    """Where a step that is ours finds our modules."""
    return os.pathsep.join(dict.fromkeys(str(folder.parent) for folder in OWN))


class StepSandbox:
    """Where steps of a build run: a folder and a cache they may fill, in the sandbox, with few variables."""

    def __init__(self, settings: Settings, *, folder: Path, cache: Path, is_ours: bool = False) -> None:
        """`is_ours`: the steps run nothing of a deployment, so the service's own user may do them."""
        self._settings = settings
        self._folder = folder
        self._is_ours = is_ours
        self.cache = cache

    @property
    def passed_on(self) -> Mapping[str, str]:
        """The operator's variables that every step gets."""
        return self._settings.passed_on

    def run(
        self,
        step: str,
        argv: list[str],
        write_line: WriteLine,
        *,
        readonly: Sequence[Path] = (),
        writable: Sequence[Path] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Run one command, its output to the log; raises BuildFailed.

        `writable` stands in the place of the folder and the cache, which then lie in it.
        """
        reason = self._execute(argv, write_line, readonly, writable, variables or {})
        if reason is not None:
            raise BuildFailed(step, reason)

    def attempt(self, argv: list[str], *, readonly: Sequence[Path] = ()) -> None:
        """Run a command whose failure does no harm."""
        self._execute(argv, lambda level, message: None, readonly, (), {})

    def _execute(
        self,
        argv: list[str],
        write_line: WriteLine,
        readonly: Sequence[Path],
        writable: Sequence[Path],
        variables: Mapping[str, str],
    ) -> str | None:
        self.cache.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
        self.cache.mkdir(exist_ok=True, mode=0o700)
        if not self._is_ours:
            sandbox.give(self.cache)
        confined = sandbox.wrap(
            argv,
            self._settings,
            readonly=[Path(sys.prefix), *OWN, *readonly],
            writable=list(writable) or [self._folder, self.cache],
            cwd=self._folder,
            memory_bytes=MAX_MEMORY_BYTES,
            is_ours=self._is_ours,
        )
        env = {**self.passed_on, "HOME": str(self._folder / "home"), **variables}
        return execute(confined, self._folder, env, write_line, cache=self.cache, is_ours=self._is_ours)


def execute(
    argv: list[str],
    folder: Path,
    env: Mapping[str, str],
    write_line: WriteLine,
    *,
    cache: Path | None = None,
    is_ours: bool = False,
) -> str | None:
    """Run a command in the folder it may fill; None when it worked, else why it did not."""
    process = gevent.subprocess.Popen(
        argv,
        cwd=folder,
        env=dict(env),
        stdin=gevent.subprocess.DEVNULL,
        stdout=gevent.subprocess.PIPE,
        stderr=gevent.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=partial(sandbox.bound if is_ours else sandbox.confine, file_bytes=MAX_DISK_BYTES),
    )
    stream = process.stdout
    assert stream is not None
    last: deque[str] = deque(maxlen=LAST_LINES)
    program = usage.Program(process.pid)
    watcher = gevent.spawn(_watch, program, partial(_folders, folder, cache, time.time(), is_shared=is_ours))
    try:
        for raw in iter(lambda: stream.readline(LINE_BYTES), b""):
            line = raw.decode("utf-8", "replace").rstrip()
            last.append(line)
            write_line("INFO", line)
        code = process.wait()
    finally:
        watcher.kill()
        program.end()  # what it started must not outlive it
        _end_group(process.pid)
        process.wait()
        stream.close()
    if isinstance(watcher.value, str):
        return watcher.value
    return None if code == 0 else cause(last) or _ended(code)


def _ended(code: int) -> str:
    return (
        f"the step was killed by {signal.Signals(-code).name}" if code < 0 else f"the step ended with {code}"
    )


def _end_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _folders(folder: Path, cache: Path | None, began_at: float, *, is_shared: bool) -> list[Path]:
    """What a step fills. Of a cache that other builds share, only what came since it began."""
    if cache is None:
        return [folder]
    return [folder, *(disk.changed_since(cache, began_at) if is_shared else [cache])]


def _watch(program: usage.Program, folders: Callable[[], Sequence[Path]]) -> str:
    """End a step that takes too much; why."""
    while True:
        gevent.sleep(WATCH_SECONDS)
        program.measure(sandbox.TEMPORARY, MAX_PROCESSES)
        if program.memory_bytes > MAX_MEMORY_BYTES:
            reason = f"the step took more than {MAX_MEMORY_BYTES // 2**20} MiB of memory"
        elif len(program.processes) > MAX_PROCESSES:
            reason = f"the step had more than {MAX_PROCESSES} processes"
        else:
            held = gevent.get_hub().threadpool.apply(_excess, (program, folders))  # it may be many files
            if held is None:
                continue
            reason = f"the build took {held}"
        program.end()
        return reason


def _excess(program: usage.Program, folders: Callable[[], Sequence[Path]]) -> str | None:
    return disk.excess(folders(), [process.pid for process in program.processes], MAX_DISK_BYTES)


def cause(last: Iterable[str]) -> str:
    """What a failed command gives as its reason: its last error and the causes below, in one line."""
    lines = [line.strip() for line in last]
    starts = [n for n, line in enumerate(lines) if line.startswith("error:")]
    if not starts:
        return next((line for line in reversed(lines) if line), "")
    reasons: list[str] = []
    after = iter(lines[starts[-1] :])
    for line in after:
        if not line:
            break
        reasons.append(CAUSE.sub("", line, count=1))
    return ": ".join((*reasons, *_quoted(after)))


def _quoted(lines: Iterator[str]) -> list[str]:
    """The last line of what the failed command quotes of another one's errors."""
    if next(lines, None) != "[stderr]":
        return []
    return list(itertools.takewhile(bool, lines))[-1:]


def summary(message: str) -> str:
    """What failed and, of a traceback below it, what was raised: the whole is in the log."""
    lines = [line for line in message.splitlines() if line.strip()]
    if len(lines) < 2:
        return lines[0].strip() if lines else "failed"
    return f"{lines[0].strip()}: {_raised(lines).strip()}"


def _raised(lines: list[str]) -> str:
    """A message may have several lines, the last of which may be anything: the first one names the exception."""
    frame = max((at for at, line in enumerate(lines) if line.startswith(FRAME)), default=len(lines))
    return next((line for line in lines[frame:] if not line[0].isspace()), lines[-1])
