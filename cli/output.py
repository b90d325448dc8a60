"""Output of the command line: lines of the service's processes, prefixed with their names, and its own messages."""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TextIO

from rich.console import Console

from shared.infra.outlet import Outlet

COLOURS = ("36", "33", "32", "35", "34", "31", "96", "93")
WIDTH = 8
UNLIMITED = 10_000  # columns; lines are never wrapped
FLUSH_SECONDS = 1.0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Texts of services, graphs and models are untrusted: their control characters must never reach the terminal.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Lines:
    """Prints whole lines from any thread, without blocking on a slow reader.

    The caller also supervises the processes whose lines it prints. It must not stop because stdout is blocked.
    """

    def __init__(self, out: TextIO | None = None, rewrite: Callable[[str], str] = str) -> None:
        """`rewrite` is applied to each text before it is printed."""
        self._out = out or sys.stdout
        self._rewrite = rewrite
        self._outlet = _outlet(self._out)
        self._coloured = self._out.isatty() and "NO_COLOR" not in os.environ
        self._names: list[str] = []
        self._lock = threading.Lock()

    def show(self, name: str, line: str) -> None:
        """Print one or more lines of a process, each prefixed with the process's name."""
        prefix = f"{name:<{WIDTH}} │ "
        if self._coloured:
            if name not in self._names:
                self._names.append(name)
            colour = COLOURS[self._names.index(name) % len(COLOURS)]
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        self._write("\n".join(prefix + part for part in line.split("\n")))

    def say(self, text: str = "") -> None:
        """Print a message of the command line itself.

        Waits up to FLUSH_SECONDS until it is written, so that later output does not appear before it.
        """
        self._write(text)
        if self._outlet is not None:
            self._outlet.flush(FLUSH_SECONDS)

    def _write(self, text: str) -> None:
        text = self._rewrite(text)
        if self._outlet is not None:
            self._outlet.put((text + "\n").encode(errors="backslashreplace"))
            return
        with self._lock:
            try:
                self._out.write(text + "\n")
                self._out.flush()
            except (BrokenPipeError, OSError):
                return  # the reader has exited, but the service must continue


def _outlet(out: TextIO) -> Outlet | None:
    """Return a non-blocking writer for the stream's file descriptor; None if it has none, such as a StringIO."""
    try:
        descriptor = os.dup(out.fileno())
    except (OSError, ValueError):
        return None
    outlet = Outlet(descriptor, lambda dropped: b"%d lines were dropped: nobody read them\n" % dropped)
    atexit.register(outlet.flush, FLUSH_SECONDS)
    return outlet


def printable(text: str) -> str:
    """Replace the control characters in a text, which a terminal would execute."""
    return CONTROL_CHARACTERS.sub("�", text)


def when(time: str | None) -> str:
    """Convert a time of the service to local time. Returns text that is not a time unchanged."""
    try:
        return datetime.fromisoformat(time or "").astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return time or ""


def as_time(timestamp: str | float) -> str:
    """Return a log line's time as ISO 8601 with microseconds.

    The logs API returns milliseconds since 1970, the event stream a text.
    """
    if isinstance(timestamp, str):
        at = datetime.fromisoformat(timestamp).astimezone(UTC)
    else:
        at = EPOCH + timedelta(microseconds=round(timestamp * 1000))
    return at.isoformat(timespec="microseconds")


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console for stdout or stderr: coloured on a terminal, plain and unwrapped elsewhere.

    The stream is examined at the call, so create a console for each use and not at import.
    """
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)
    if made.is_terminal:
        return made
    return Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
        width=UNLIMITED,
        no_color=True,
    )
