"""Conversion of printed and logged output of user code to LOG frames with the id of the run, and its tracebacks.

The output of one `print()` is one record, even if it has several lines. A printed traceback is one record, too. Three
limits apply: bytes per record, records per run, and records per second. A longer output becomes several records, cut
between lines, and the end of an output above MAX_CHARACTERS is dropped. One line reports the number of dropped records.

Tracebacks are for authors of graphs: they start at the user's code and leave out its callers.
"""

from __future__ import annotations

import contextvars
import io
import logging
import os
import sys
import threading
import traceback
from _thread import get_ident
from collections import OrderedDict
from collections.abc import Iterator
from json import dumps as json_dumps
from time import monotonic
from typing import Any, TextIO

from . import frames
from .connection import Connection
from .masking import MAX_RECORD_BYTES

MAX_CHARACTERS = 1_000_000  # of one output; splitting it into records blocks all other runs
MAX_LINES_PER_RUN = 10_000
LINES_PER_SECOND = 200
BURST_LINES = 2_000
REMEMBERED_RUNS = 4_096
# A traceback is printed in many pieces. Seconds until the next piece, and the beginnings of pieces.
PIECE_SECONDS = 0.1
BEGINS = ("Traceback (most recent call last):", "  + Exception Group Traceback", "Exception in thread ")
CONNECTS = ("During handling of the above", "The above exception was")

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
TRACEBACK_LINES = 30
IMPORTS = "<frozen importlib"
# Frames between the host and a node of a graph: LangGraph's loop and its threads.
CALLERS = (
    "/langgraph/pregel/",
    "/langgraph/_internal/",
    "/langchain_core/runnables/",
    "/concurrent/futures/",
    "/asyncio/",
    "/importlib/__init__.py",
)

current_run_id: contextvars.ContextVar[bytes] = contextvars.ContextVar("run_id", default=frames.NOBODY)

_CONTROL = {
    code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if code not in (0x09, 0x0A)
}


def capture(connection: Connection) -> Limiter:
    """Redirect stdout, stderr and the root logger to the runner."""
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
    """Sends log records within the limits of the run and of the process."""

    def __init__(self, connection: Connection) -> None:
        self.writers: tuple[LineWriter, ...] = ()
        self._connection = connection
        self._lines: OrderedDict[bytes, int] = OrderedDict()
        self._tokens = float(BURST_LINES)
        self._refilled_at = monotonic()
        self._dropped = 0
        self._lock = threading.Lock()

    def emit(self, level: str, logger: str, message: str, run_id: bytes | None = None) -> None:
        """Send one record or count it as dropped. Without `run_id` it belongs to the current run."""
        run_id = current_run_id.get() if run_id is None else run_id
        for writer in self.writers:
            writer.settle((get_ident(), run_id))
        if len(message) > MAX_CHARACTERS:
            line_end = message.rfind("\n", 0, MAX_CHARACTERS)
            kept = message[: line_end if line_end > 0 else MAX_CHARACTERS]
            message = f"{kept}\n{len(message) - len(kept)} more characters dropped"
        for part in _parts(clean(message)):
            self._emit(level, logger, part, run_id)

    def _emit(self, level: str, logger: str, message: str, run_id: bytes) -> None:
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
        self._send(run_id, level, logger, message)

    def after(self, seconds: float, call: Any, *arguments: Any) -> None:
        """Call a function after so many seconds, on the loop's thread."""
        loop = self._connection.loop
        loop.call_soon_threadsafe(loop.call_later, seconds, call, *arguments)

    def forget(self, run_id: bytes) -> None:
        """Send the incomplete lines of a run that has ended, and forget its count."""
        for writer in self.writers:
            writer.finish(run_id)
        with self._lock:
            self._lines.pop(run_id, None)

    def finish(self) -> None:
        """Send all incomplete lines and tracebacks, before the process ends."""
        for writer in self.writers:
            writer.finish()

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
    """Return text that can be encoded as UTF-8, with visible control characters."""
    return message.encode("utf-8", "replace").decode().translate(_CONTROL)


def _parts(message: str) -> Iterator[str]:
    """Yield the message in parts of at most MAX_RECORD_BYTES, split between lines. Cuts a line that is too long."""
    if len(message.encode()) <= MAX_RECORD_BYTES:
        yield message
        return
    lines: list[str] = []
    size = 0
    for line in message.split("\n"):
        line = line.encode()[:MAX_RECORD_BYTES].decode("utf-8", "ignore")
        if lines and size + len(line.encode()) > MAX_RECORD_BYTES:
            yield "\n".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line.encode()) + 1
    yield "\n".join(lines)


Key = tuple[int, bytes]  # thread identifier and run id


class LineWriter(io.TextIOBase):
    """A text stream whose writes become records, each ended by a newline.

    Each thread and run has its own incomplete line.
    """

    def __init__(self, limiter: Limiter, name: str, original: TextIO | None) -> None:
        self._limiter = limiter
        self._name = name
        self._original = original
        self._level = "INFO" if name == "stdout" else "WARNING"
        self._partial: dict[Key, str] = {}
        self._tracebacks: dict[Key, _PrintedTraceback] = {}
        self._lock = threading.RLock()  # reentrant: objects that the garbage collector frees may print

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
        key = (get_ident(), current_run_id.get())
        pending = self._partial.pop(key, "") + text
        if pending.endswith("\n"):
            self._take(key, pending)
        elif len(pending) > MAX_RECORD_BYTES:
            self._emit(key, pending)
        elif pending:
            self._partial[key] = pending
        return len(text)

    def _take(self, key: Key, piece: str) -> None:
        """Handle complete lines: a record, or a piece of a traceback that is being printed."""
        with self._lock:
            printed = self._tracebacks.get(key)
            if printed is not None and printed.takes(piece):
                return
        self.settle(key)
        if not piece.startswith(BEGINS):
            self._emit(key, piece)
            return
        self._tracebacks[key] = printed = _PrintedTraceback(piece)
        self._limiter.after(PIECE_SECONDS, self._settle_quiet, key, printed)

    def _settle_quiet(self, key: Key, printed: _PrintedTraceback) -> None:
        """Emit a traceback unless it is still being printed."""
        with self._lock:
            if self._tracebacks.get(key) is not printed:
                return
            if is_over := not printed.grew():
                del self._tracebacks[key]
        if is_over:
            self._emit(key, printed.text())
        else:
            self._limiter.after(PIECE_SECONDS, self._settle_quiet, key, printed)

    def settle(self, key: Key) -> None:
        """Emit a traceback that was held back, before other output of the same thread and run."""
        if not self._tracebacks:
            return
        with self._lock:
            printed = self._tracebacks.pop(key, None)
        if printed is not None:
            self._emit(key, printed.text())

    def finish(self, run_id: bytes | None = None) -> None:
        """Emit the incomplete lines and tracebacks of a run, or of all runs."""
        for key in [key for key in (*self._tracebacks, *self._partial) if run_id in (None, key[1])]:
            self.settle(key)
            self._emit(key, self._partial.pop(key, ""))

    def _emit(self, key: Key, text: str) -> None:
        if message := text.strip("\n"):
            self._limiter.emit(self._level, self._name, message, key[1])

    def flush(self) -> None:
        """Do nothing: an incomplete line is kept, so that `print(x, end="", flush=True)` does not split a line."""


class _PrintedTraceback:
    """The pieces of a traceback that a thread is printing."""

    def __init__(self, piece: str) -> None:
        self._pieces = [piece]
        self._length = len(piece)
        self._seen = 1
        self._is_whole = False  # complete, unless a chained exception follows

    def takes(self, piece: str) -> bool:
        """Append the piece if it may belong to the traceback. Returns whether it was appended."""
        content = piece.lstrip("\n")
        if self._length > MAX_CHARACTERS or (self._is_whole and content and not content.startswith(CONNECTS)):
            return False
        self._is_whole = not content.startswith((" ", *BEGINS, *CONNECTS)) if content else self._is_whole
        self._pieces.append(piece)
        self._length += len(piece)
        return True

    def grew(self) -> bool:
        """Whether pieces were appended since the last call."""
        seen, self._seen = self._seen, len(self._pieces)
        return seen != self._seen

    def text(self) -> str:
        return "".join(self._pieces)


class _Formatter(logging.Formatter):
    """Formats the message, and the traceback starting at the user's code."""

    def formatException(self, ei: Any) -> str:
        return user_traceback(ei[1])


class FrameHandler(logging.Handler):
    """Sends log records of user code and its libraries as LOG frames."""

    def __init__(self, limiter: Limiter) -> None:
        super().__init__()
        self._limiter = limiter
        self.setFormatter(_Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._limiter.emit(record.levelname, record.name, self.format(record).rstrip("\n"))
        except Exception:  # the record's arguments do not match its format
            self._limiter.emit("ERROR", record.name, f"unprintable log record: {_shown(record.msg)}")


def _shown(value: object) -> str:
    """Return the repr of a logged object, or its type's name if that fails. An error must not reach the user's code."""
    try:
        return repr(value)
    except Exception:  # any error of the project's own object
        return type(value).__name__


def user_traceback(error: BaseException) -> str:
    """Format a traceback without the frames of this package, of imports, and of LangGraph above the user's code."""
    shown = traceback.TracebackException.from_exception(error)
    for part in _chained(shown):
        part.stack = traceback.StackSummary.from_list(_below_callers(list(part.stack)))
    return "".join(shown.format()).rstrip()


def short_traceback(error: BaseException) -> str:
    """Return the last TRACEBACK_LINES lines of a traceback, starting at the user's code."""
    return last_lines(user_traceback(error))


def last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-TRACEBACK_LINES:])


def _below_callers(stack: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    kept = [frame for frame in stack if not frame.filename.startswith((HERE, IMPORTS))]
    for position, frame in enumerate(kept):
        if not any(caller in frame.filename for caller in CALLERS):
            return kept[position:]
    return kept  # the library itself failed


def _chained(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield the exception, its causes and contexts, and the exceptions of groups."""
    waiting, seen = [shown], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting += [each for each in (part.__cause__, part.__context__) if each is not None]
        waiting += part.exceptions or ()
