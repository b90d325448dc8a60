"""Log format, and the ids bound around a request or task."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import orjson

from shared.settings import Settings

_ids: ContextVar[dict[str, str] | None] = ContextVar("log_ids", default=None)


@contextmanager
def bound(**ids: object) -> Iterator[None]:
    """Put these ids on every line logged inside the block."""
    token = _ids.set({**(_ids.get() or {}), **{name: str(value) for name, value in ids.items()}})
    try:
        yield
    finally:
        _ids.reset(token)


def configure(settings: Settings) -> None:
    """Send the process's logs to stderr in the format the settings name."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        ids = " ".join(f"{name}={value}" for name, value in (_ids.get() or {}).items())
        return f"{super().format(record)} {ids}".rstrip()


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **(_ids.get() or {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()
