"""Log lines: one format for all processes, and ids bound to the lines of a request or task.

    with logs.bound(run_id=run.run_id):
        log.info("claimed")          # … claimed run_id=0198…

Text for terminals; one JSON object per line with RUNYARD_LOG_FORMAT=json.
"""

from __future__ import annotations

import contextvars
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson
from gevent.hub import Hub

from shared.infra.outlet import Outlet
from shared.settings import Settings

log = logging.getLogger(__name__)

_bound: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar("bound", default={})  # noqa: B039

FLUSH_SECONDS = 1.0

# Attributes of every record; all others came with `extra=`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "bound", "taskName"}

# Libraries whose INFO lines concern only their own developers.
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
    """Return the ids that are bound to the current context."""
    return _bound.get()


def configure(settings: Settings) -> None:
    """Send all log lines to stderr in this service's format. Called once, when a process starts."""
    handler = Handler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    # gevent's own handler writes to stderr and blocks until the reader of stderr catches up
    Hub.print_exception = _greenlet_failed  # type: ignore[method-assign]


def _greenlet_failed(hub: Hub, context: Any, kind: Any, error: Any, trace: Any) -> None:
    log.error("%s failed", context, exc_info=(kind, error, trace))


class Handler(logging.StreamHandler[TextIO]):
    """Writes lines without ever blocking on their reader.

    A pipe that is not read fills up. A write to it would then block the process, and with gevent all of its greenlets.
    Lines to a descriptor therefore go through an `Outlet`.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        try:
            self._outlet: Outlet | None = Outlet(os.dup(stream.fileno()), self._notice)
        except (OSError, ValueError):  # not a descriptor but an object in memory, which never blocks
            self._outlet = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._outlet is None:
            super().emit(record)
            return
        self._outlet.put((self.format(record) + self.terminator).encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Wait up to FLUSH_SECONDS until all lines are written. `logging` calls this when the process ends."""
        if self._outlet is None:
            super().flush()
        else:
            self._outlet.flush(FLUSH_SECONDS)

    def _notice(self, dropped: int) -> bytes:
        text = "%d log lines were dropped: the process that reads them is too slow"
        record = log.makeRecord(__name__, logging.WARNING, __file__, 0, text, (dropped,), None)
        return (self.format(record) + self.terminator).encode()


class TextLines(logging.Formatter):
    """`12:04:33.120 WARNING workers.runner.host_pool: message run_id=…`"""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        ids = "".join(f" {name}={value}" for name, value in fields(record).items())
        message = _one_line(record.getMessage())
        line = f"{at:%H:%M:%S}.{at.microsecond // 1000:03} {record.levelname} {record.name}: {message}{ids}"
        return f"{line}\n{trace}" if (trace := self.trace(record)) else line

    def trace(self, record: logging.LogRecord) -> str | None:
        return self.formatException(record.exc_info) if record.exc_info else record.stack_info


class JsonLines(TextLines):
    """One JSON object per line, for log collectors."""

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
    """Return the bound ids and the attributes passed as `extra=`."""
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    return {**_bound.get(), **extra}


def _one_line(message: str) -> str:
    """Escape control characters, so that a payload cannot forge log lines or control a terminal."""
    if message.isprintable():
        return message
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
