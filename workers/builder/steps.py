"""Execution of one command of a build: writes its output line by line, enforces limits, and ends all its processes."""

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
from workers.isolation import bubblewrap, disk, sandbox, usage

# For steps that run modules of the service.
SERVICE_PACKAGES = (Path(workers.__file__).parent, Path(shared.__file__).parent)
LAST_LINES = 30
LINE_BYTES = 8 * 1024
MAX_MEMORY_BYTES = 2 * 1024**3
MAX_PROCESSES = 256
MAX_DISK_BYTES = 5 * 1024**3
WATCH_SECONDS = 2.0
CAUSE = re.compile(r"(error|cause|caused by):\s*", re.IGNORECASE)

WriteLine = Callable[[str, str], None]  # takes a level and a message


def module_path() -> str:
    """Return the PYTHONPATH for steps that run modules of the service."""
    return os.pathsep.join(dict.fromkeys(str(folder.parent) for folder in SERVICE_PACKAGES))


class StepSandbox:
    """The sandbox of a build's steps, with a writable folder, a writable cache, and few environment variables."""

    def __init__(
        self, settings: Settings, *, folder: Path, cache: Path, runs_as_service: bool = False
    ) -> None:
        """Create the sandbox. `runs_as_service`: the steps run no code of a deployment and use the service's own user."""
        self._settings = settings
        self._folder = folder
        self._runs_as_service = runs_as_service
        self.cache = cache

    @property
    def passed_on(self) -> Mapping[str, str]:
        """The operator's environment variables that every step receives."""
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
        cwd: Path | None = None,
    ) -> None:
        """Run one command and write its output to the log. Raises BuildFailed.

        `writable` replaces the folder and the cache as writable folders, and must contain both. `cwd` is the sandbox's
        folder unless given.
        """
        reason = self._execute(argv, write_line, readonly, writable, variables or {}, cwd)
        if reason is not None:
            raise BuildFailed(step, reason)

    def attempt(self, argv: list[str], *, readonly: Sequence[Path] = (), cwd: Path | None = None) -> bool:
        """Run a command and ignore its output. Returns whether it succeeded."""
        return self._execute(argv, lambda level, message: None, readonly, (), {}, cwd) is None

    def _execute(
        self,
        argv: list[str],
        write_line: WriteLine,
        readonly: Sequence[Path],
        writable: Sequence[Path],
        variables: Mapping[str, str],
        cwd: Path | None = None,
    ) -> str | None:
        self.cache.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
        self.cache.mkdir(exist_ok=True, mode=0o700)
        if not self._runs_as_service:
            sandbox.give(self.cache)
        confined = sandbox.wrap(
            argv,
            self._settings,
            readonly=[Path(sys.prefix), *SERVICE_PACKAGES, *readonly],
            writable=list(writable) or [self._folder, self.cache],
            cwd=cwd or self._folder,
            memory_bytes=MAX_MEMORY_BYTES,
            runs_as_service=self._runs_as_service,
        )
        env = {**self.passed_on, "HOME": str(self._folder / "home"), **variables}
        return execute(
            confined,
            self._folder,
            env,
            write_line,
            cwd=cwd,
            cache=self.cache,
            runs_as_service=self._runs_as_service,
        )


def execute(
    argv: list[str],
    folder: Path,
    env: Mapping[str, str],
    write_line: WriteLine,
    *,
    cwd: Path | None = None,
    cache: Path | None = None,
    runs_as_service: bool = False,
) -> str | None:
    """Run a command in the folder that it may fill, or in one below it. Returns the reason of its failure, or None if it succeeds."""
    mark = None if sandbox.ends_descendants(None) else usage.new_mark()
    process = gevent.subprocess.Popen(
        argv,
        cwd=cwd or folder,
        env=env if mark is None else {**env, usage.MARK: mark},
        stdin=gevent.subprocess.DEVNULL,
        stdout=gevent.subprocess.PIPE,
        stderr=gevent.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=partial(sandbox.confine, file_bytes=MAX_DISK_BYTES, runs_as_service=runs_as_service),
    )
    stream = process.stdout
    assert stream is not None
    last: deque[str] = deque(maxlen=LAST_LINES)
    program = usage.Program(process.pid)
    watcher = gevent.spawn(
        _watch, program, partial(_folders, folder, cache, time.time(), is_shared=runs_as_service)
    )
    try:
        for raw in iter(lambda: stream.readline(LINE_BYTES), b""):
            line = raw.decode("utf-8", "replace").rstrip()
            last.append(line)
            write_line("INFO", line)
        code = process.wait()
    finally:
        watcher.kill()
        program.end()  # no process of the command may outlive it
        _end_group(process.pid)
        if mark is not None:
            usage.end_marked(mark)
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
    """Return the folders whose size counts for a step. Of a shared cache, only entries added since the step began."""
    if cache is None:
        return [folder]
    return [folder, *(disk.changed_since(cache, began_at) if is_shared else [cache])]


def _watch(program: usage.Program, folders: Callable[[], Sequence[Path]]) -> str:
    """Watch a step, and end it when it exceeds a limit. Returns the reason."""
    while True:
        gevent.sleep(WATCH_SECONDS)
        program.measure(bubblewrap.TEMPORARY, MAX_PROCESSES)
        if program.memory_bytes > MAX_MEMORY_BYTES:
            reason = f"the step took more than {MAX_MEMORY_BYTES // 2**20} MiB of memory"
        elif len(program.processes) > MAX_PROCESSES:
            reason = f"the step had more than {MAX_PROCESSES} processes"
        else:
            excess = gevent.get_hub().threadpool.apply(_excess, (program, folders))  # may read many files
            if excess is None:
                continue
            reason = f"the build took {excess}"
        program.end()
        return reason


def _excess(program: usage.Program, folders: Callable[[], Sequence[Path]]) -> str | None:
    return disk.excess(folders(), [process.pid for process in program.processes], MAX_DISK_BYTES)


def cause(last: Iterable[str]) -> str:
    """Return the reason of a failed command in one line: its last error and the causes below it."""
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
    """Return the last line of another command's errors that the failed command quotes; empty if it quotes none."""
    if next(lines, None) != "[stderr]":
        return []
    return list(itertools.takewhile(bool, lines))[-1:]
