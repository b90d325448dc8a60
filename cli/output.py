"""What the command line prints: the processes' lines with their names before them, and its own sentences."""

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
UNLIMITED = 10_000  # columns: lines are as long as they are
FLUSH_SECONDS = 1.0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# What a service, a graph or a model says is shown and never obeyed: a terminal's codes are data here.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Lines:
    """Whole lines, one at a time, from any thread.

    Nobody waits for whoever reads them: who shows the lines of processes looks after these, too.
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
        """What some process printed, of one line or several."""
        prefix = f"{name:<{WIDTH}} │ "
        if self._coloured:
            if name not in self._names:
                self._names.append(name)
            colour = COLOURS[self._names.index(name) % len(COLOURS)]
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        self._write("\n".join(prefix + part for part in line.split("\n")))

    def say(self, text: str = "") -> None:
        """A sentence of our own; waits a moment, so that it comes before what is printed after it."""
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
                return  # whoever read us has gone; the service has not


def _outlet(out: TextIO) -> Outlet | None:
    """What writes to the descriptor behind this; None where there is none, and nobody to wait for."""
    try:
        descriptor = os.dup(out.fileno())
    except (OSError, ValueError):
        return None
    outlet = Outlet(descriptor, lambda dropped: b"%d lines were dropped: nobody read them\n" % dropped)
    atexit.register(outlet.flush, FLUSH_SECONDS)
    return outlet


def printable(text: str) -> str:
    """The text without what a terminal would obey."""
    return CONTROL_CHARACTERS.sub("�", text)


def when(time: str | None) -> str:
    """A time of the service in local time; the text itself where it is none."""
    try:
        return datetime.fromisoformat(time or "").astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return time or ""


def as_time(timestamp: str | float) -> str:
    """A line's time as ISO 8601 to the microsecond: a log has milliseconds, a stream has text."""
    if isinstance(timestamp, str):
        at = datetime.fromisoformat(timestamp).astimezone(UTC)
    else:
        at = EPOCH + timedelta(microseconds=round(timestamp * 1000))
    return at.isoformat(timespec="microseconds")


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Where text goes: in colour on a terminal, plain and unwrapped elsewhere. Made when used, not before."""
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
