"""Lines that the processes of a graph host print, other than the records that the host sends in frames.

A JavaScript host whose heap is exhausted prints a report of some 40 lines before it aborts: V8's garbage collections and
the stack of its own native code. The report says nothing about the project, so it is the reason of the host's end and no
part of the deployment's log. A process that the host started can print the same report: that one is logged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO

import gevent
from gevent.event import Event

READ_BYTES, LINE_BYTES = 16 * 1024, 8 * 1024  # most bytes of one read, and of one line
REPORT_BEGIN, REPORT_REASON = b"<--- Last few GCs --->", b"JavaScript heap out of memory"
MAX_REPORT_BYTES = 32 * 1024
WAIT_SECONDS = 2.0  # longest wait for the report of a host that has aborted
HOLD_SECONDS = 10.0  # how long a report is held back while the host goes on


class PrintedOutput:
    """Reads a host's pipe line by line. `write` receives each line as text."""

    def __init__(self, stream: IO[bytes], write: Callable[[str], None], *, has_heap: bool = False) -> None:
        self._stream = stream
        self._write = write
        self._has_heap = has_heap  # a JavaScript host, which may print a report
        # The lines of a report so far, or an empty line, which may precede a report.
        self._held: list[bytes] = []
        self._is_report = False
        self._is_dropping = False  # the host has ended with a report
        self._reported = Event()  # the reason has been read, or everything
        self._claimed = Event()  # `has_exhausted_heap` has taken the report, if it is one

    def read(self) -> None:
        """Pass on all lines. Takes at most a tenth of the runner's time: user code that floods the pipe blocks."""
        rest = b""
        while data := self._stream.read(READ_BYTES):
            began = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(line)
            if len(rest) >= LINE_BYTES:
                self._take(rest)
                rest = b""
            gevent.sleep(9 * (time.monotonic() - began))
        if rest:
            self._take(rest)
        self._reported.set()
        if self._is_report:
            self._claimed.wait(WAIT_SECONDS)
        self._release()
        self._stream.close()

    def has_exhausted_heap(self) -> bool:
        """Whether a host that has aborted reported an exhausted heap. Drops the report, and all lines after it."""
        if self._has_heap:
            self._reported.wait(WAIT_SECONDS)
            self._is_dropping = any(REPORT_REASON in line for line in self._held)
            self._claimed.set()
        return self._is_dropping

    def _take(self, line: bytes) -> None:
        if self._is_dropping:
            return
        if not self._is_report:
            if line != REPORT_BEGIN:
                self._release()
            if not self._has_heap or line not in (b"", REPORT_BEGIN):
                self._print(line)
                return
            if line == REPORT_BEGIN:
                self._is_report = True
                gevent.spawn_later(HOLD_SECONDS, self._release)
        self._held.append(line)
        if REPORT_REASON in line:
            self._reported.set()
        if sum(map(len, self._held)) > MAX_REPORT_BYTES:
            self._release()

    def _release(self) -> None:
        """Pass on the lines that were held back: they are no report of this host's end."""
        held, self._held, self._is_report = self._held, [], False
        if not self._is_dropping:
            for line in held:
                self._print(line)

    def _print(self, line: bytes) -> None:
        for at in range(0, max(len(line), 1), LINE_BYTES):
            self._write(line[at : at + LINE_BYTES].decode("utf-8", "replace"))
