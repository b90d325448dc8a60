"""What user code prints and logs → LOG frames, with the id of the run that did it.

Bounded three ways: bytes a line, lines a run, lines a second. What is dropped is counted and said once.
"""

from __future__ import annotations

import contextvars
import io
import logging
import sys
import threading
from collections import OrderedDict
from typing import TextIO

from . import frames
from .connection import Connection
from .standard import json_dumps, monotonic

MAX_LINE_BYTES = 8 * 1024
MAX_LINES_PER_RUN = 10_000
LINES_PER_SECOND = 200
BURST_LINES = 2_000
REMEMBERED_RUNS = 4_096

current_run_id: contextvars.ContextVar[bytes] = contextvars.ContextVar("run_id", default=frames.NOBODY)

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if code != 0x09}


def capture(connection: Connection) -> Limiter:
    """Send what is written to stdout, stderr and the root logger to the runner from now on."""
    limiter = Limiter(connection)
    limiter.writers = (
        LineWriter(limiter, "stdout", sys.__stdout__),
        LineWriter(limiter, "stderr", sys.__stderr__),
    )
    sys.stdout, sys.stderr = limiter.writers
    root = logging.getLogger()
    root.addHandler(FrameHandler(limiter))
    root.setLevel(logging.INFO)
    return limiter


class Limiter:
    """Sends log lines as long as the run and the process are within their bounds."""

    def __init__(self, connection: Connection) -> None:
        self.writers: tuple[LineWriter, ...] = ()
        self._connection = connection
        self._lines: OrderedDict[bytes, int] = OrderedDict()
        self._tokens = float(BURST_LINES)
        self._refilled_at = monotonic()
        self._dropped = 0
        self._lock = threading.Lock()

    def emit(self, level: str, logger: str, message: str, run_id: bytes | None = None) -> None:
        """Send one line, or count it as dropped; of the current run unless another is given."""
        run_id = current_run_id.get() if run_id is None else run_id
        with self._lock:
            seen = self._count(run_id)
            if seen > MAX_LINES_PER_RUN:
                if seen == MAX_LINES_PER_RUN + 1:
                    self._send(run_id, "WARNING", "runyard", f"more than {MAX_LINES_PER_RUN} lines: dropped")
                return
            if not self._take_token():
                self._dropped += 1
                return
            dropped, self._dropped = self._dropped, 0
        if dropped:
            text = f"{dropped} lines dropped: more than {LINES_PER_SECOND} a second"
            self._send(run_id, "WARNING", "runyard", text)
        self._send(run_id, level, logger, clean(message))

    def forget(self, run_id: bytes) -> None:
        """The run is over: send its half lines, drop its count."""
        for writer in self.writers:
            writer.finish(run_id)
        with self._lock:
            self._lines.pop(run_id, None)

    def _count(self, run_id: bytes) -> int:
        if run_id == frames.NOBODY:
            return 0
        seen = self._lines[run_id] = self._lines.get(run_id, 0) + 1
        if len(self._lines) > REMEMBERED_RUNS:
            self._lines.popitem(last=False)
        return seen

    def _take_token(self) -> bool:
        now = monotonic()
        self._tokens = min(BURST_LINES, self._tokens + (now - self._refilled_at) * LINES_PER_SECOND)
        self._refilled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _send(self, run_id: bytes, level: str, logger: str, message: str) -> None:
        document = {"level": level, "message": message, "logger": logger}
        self._connection.send(frames.LOG, run_id, json_dumps(document).encode())


def clean(message: str) -> str:
    """A line without control characters, cut at the limit."""
    message = message.encode("utf-8", "replace")[:MAX_LINE_BYTES].decode("utf-8", "ignore")
    return message.translate(_CONTROL)


class LineWriter(io.TextIOBase):
    """A text stream whose whole lines become log lines. Each thread and run has its own half line."""

    def __init__(self, limiter: Limiter, name: str, original: TextIO | None) -> None:
        self._limiter = limiter
        self._name = name
        self._original = original
        self._level = "INFO" if name == "stdout" else "WARNING"
        self._partial: dict[tuple[int, bytes], str] = {}

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        if self._original is None:
            raise io.UnsupportedOperation("fileno")
        return self._original.fileno()

    def write(self, text: str) -> int:
        key = (threading.get_ident(), current_run_id.get())
        *lines, rest = (self._partial.pop(key, "") + text).split("\n")
        for line in lines:
            if line:
                self._limiter.emit(self._level, self._name, line)
        if len(rest) > MAX_LINE_BYTES:
            self._limiter.emit(self._level, self._name, rest)
        elif rest:
            self._partial[key] = rest
        return len(text)

    def finish(self, run_id: bytes) -> None:
        """Send the half lines of a run."""
        if not self._partial:
            return
        for key in [key for key in self._partial if key[1] == run_id]:
            self._limiter.emit(self._level, self._name, self._partial.pop(key), run_id)

    def flush(self) -> None:
        """Half a line stays until it is whole: `print(x, end="", flush=True)` is one line in the log."""


class FrameHandler(logging.Handler):
    """Log records of user code and its libraries → LOG frames."""

    def __init__(self, limiter: Limiter) -> None:
        super().__init__()
        self._limiter = limiter
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            for line in self.format(record).splitlines() or [""]:
                self._limiter.emit(record.levelname, record.name, line)
        except Exception:  # a record whose arguments do not fit its format
            self._limiter.emit("ERROR", record.name, f"unprintable log record: {record.msg!r}")
