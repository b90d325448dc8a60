"""Log lines: one format for all processes, and the ids bound around a request or task.

    with logs.bound(run_id=run.run_id):
        log.info("claimed")          # … claimed run_id=0198…

Text for terminals, one JSON object a line with RUNYARD_LOG_FORMAT=json.
"""

from __future__ import annotations

import contextvars
import logging
import os
import sys
import time
from _queue import SimpleQueue  # queue's is another one once gevent has patched it
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson
from gevent import monkey
from gevent.hub import Hub

from shared.settings import Settings

log = logging.getLogger(__name__)

_bound: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar("bound", default={})  # noqa: B039

select: Any = monkey.get_original("select", "select")
sleep: Any = monkey.get_original("time", "sleep")
start_new_thread: Any = monkey.get_original("_thread", "start_new_thread")

MOST_WAITING = 10_000  # lines that are kept for a reader who does not keep up
FLUSH_SECONDS = 1.0

# What every record has of itself; whatever else it carries came with `extra=`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "bound", "taskName"}

# Libraries that tell at INFO what only they need to know.
_CHATTY = (
    "httpx",
    "httpx2",
    "httpcore2",
    "kombu",
    "amqp",
    "alembic",
    "celery.beat",
    "celery.worker.strategy",
    "celery.app.trace",
)


@contextmanager
def bound(**ids: Any) -> Iterator[None]:
    """Add these ids to every line logged inside the block, by this greenlet or thread."""
    token = _bound.set({**_bound.get(), **{name: str(value) for name, value in ids.items()}})
    try:
        yield
    finally:
        _bound.reset(token)


def bound_ids() -> Mapping[str, str]:
    """The ids that are bound here."""
    return _bound.get()


def configure(settings: Settings) -> None:
    """Send everything to stderr in our format; called once, when a process starts."""
    handler = Handler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    # gevent's own writes to stderr, and waits for whoever reads it
    Hub.print_exception = _greenlet_failed  # type: ignore[method-assign]


def _greenlet_failed(hub: Hub, context: Any, kind: Any, error: Any, trace: Any) -> None:
    log.error("%s failed", context, exc_info=(kind, error, trace))


class Handler(logging.StreamHandler[TextIO]):
    """Writes lines without ever waiting for whoever reads them.

    A pipe that nobody reads is full some day, and a write to it would stop the process: with gevent all that it
    does. So lines to a descriptor go through an `Outlet`.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        try:
            self._outlet: Outlet | None = Outlet(os.dup(stream.fileno()), self._notice)
        except (OSError, ValueError):  # an object of this process, which makes nobody wait
            self._outlet = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._outlet is None:
            super().emit(record)
            return
        self._outlet.put((self.format(record) + self.terminator).encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Wait a moment until everything has been written; `logging` calls this when the process ends."""
        if self._outlet is None:
            super().flush()
        else:
            self._outlet.flush(FLUSH_SECONDS)

    def _notice(self, dropped: int) -> bytes:
        record = {"name": __name__, "levelname": "WARNING", "levelno": logging.WARNING}
        record = logging.makeLogRecord(
            {**record, "msg": "%d log lines were dropped: nobody read them", "args": (dropped,)}
        )
        return (self.format(record) + self.terminator).encode()


class Outlet:
    """A descriptor that a thread of its own writes to, line by line in order, and drops what does not fit.

    The thread and what it waits on are the system's, also under gevent: it is there to be blocked. Each line
    carries how many were dropped before it, so that the notice of them comes where they would have been.
    """

    def __init__(self, descriptor: int, notice: Callable[[int], bytes]) -> None:
        self._descriptor, self._notice = descriptor, notice
        self._dropped = 0  # by `put`
        self._begin()
        os.register_at_fork(
            after_in_child=self._begin
        )  # threads do not come along, lines belong to the parent

    def _begin(self) -> None:
        self._lines: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
        self._written = self._accepted = 0
        self._reported = self._dropped
        self._is_writing = False

    def put(self, line: bytes) -> None:
        """Never waits."""
        if not self._is_writing:
            self._is_writing = True
            start_new_thread(self._write_forever, ())
        if self._accepted - self._written >= MOST_WAITING:
            self._dropped += 1
            return
        self._accepted += 1
        self._lines.put((self._dropped, line))

    def flush(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._written < self._accepted and time.monotonic() < deadline:
            sleep(0.001)

    def _write_forever(self) -> None:
        while True:
            dropped, line = self._lines.get()
            self._report(dropped)
            self._write(line)
            self._written += 1
            if self._lines.empty():
                self._report(self._dropped)

    def _report(self, dropped: int) -> None:
        if dropped > self._reported:
            self._write(self._notice(dropped - self._reported))
            self._reported = dropped

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # somebody else has made it so
                select((), (self._descriptor,), ())
            except OSError:
                return  # there is no reader any more, and nobody to tell


class TextLines(logging.Formatter):
    """`12:04:33.120 WARNING workers.runner.host_pool: message run_id=…`"""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        ids = "".join(f" {name}={value}" for name, value in fields(record).items())
        message = one_line(record.getMessage())
        line = f"{at:%H:%M:%S}.{at.microsecond // 1000:03} {record.levelname} {record.name}: {message}{ids}"
        return f"{line}\n{trace}" if (trace := self.trace(record)) else line

    def trace(self, record: logging.LogRecord) -> str | None:
        return self.formatException(record.exc_info) if record.exc_info else record.stack_info


class JsonLines(TextLines):
    """One JSON object a line, for collectors."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **fields(record),
        }
        if trace := self.trace(record):
            line["trace"] = trace
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The bound ids, and what came with `extra=`."""
    extra = {name: value for name, value in vars(record).items() if name not in _OWN}
    return {**_bound.get(), **extra}


def one_line(message: str) -> str:
    """The message with control characters made visible: a payload must not forge lines or drive a terminal."""
    if message.isprintable():
        return message
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
