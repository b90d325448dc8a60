"""Lines of the service's processes, prefixed with their names, and messages of the command line between them."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import TextIO

from shared.infra.outlet import Outlet

COLOURS = ("36", "33", "32", "35", "34", "31", "96", "93")
WIDTH = 8
FLUSH_SECONDS = 1.0


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
