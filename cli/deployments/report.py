"""Reports of a deploy: with progress and colour on a terminal, as plain lines elsewhere, or as JSON lines."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.status import Status
from rich.text import Text

from cli.client.names import revision_style
from cli.output import console, json_text, printable

PrintLine = Callable[[str], None]
Sent = Callable[[int], None]

# A log line of the builder. The error at the end states the reason.
FAILED_STEP = re.compile(r"step '\w+' failed: ")
LEVEL_STYLES = {"ERROR": "red", "CRITICAL": "red", "WARNING": "yellow", "DEBUG": "dim"}


class Report:
    """Receives the events of a deploy. This base class prints nothing."""

    def note(self, text: str) -> None:
        """Report a hint or a warning."""

    def step(self, text: str) -> None:
        """Report the step that begins."""

    def status(self, status: str, seconds: float) -> None:
        """Report the revision's new status, and the seconds since the command began to follow it."""

    def log(self, line: dict[str, Any]) -> None:
        """Report a line of the build log: `timestamp`, `level`, `message`."""

    @contextmanager
    def upload(self, size: int) -> Iterator[Sent]:
        """Report an upload of `size` bytes. Yields a function that takes the number of bytes sent so far."""
        yield lambda done: None

    @contextmanager
    def following(self) -> Iterator[None]:
        """Report the wait for a revision while the block runs."""
        yield

    def replay(self, record: Mapping[str, Any], table: str) -> None:
        """Report an ended replay as data and as a table of text."""

    def result(self, record: dict[str, Any], text: str) -> None:
        """Report the result as data and as a sentence."""

    def failure(self, record: dict[str, Any], text: str) -> bool:
        """Report a failure. Returns whether it was printed; if not, the caller prints the error."""
        return False


class Plain(Report):
    """Reports plain lines of text, for CI logs and for callers that print lines themselves."""

    def __init__(self, print_line: PrintLine) -> None:
        self._print_line = print_line

    def note(self, text: str) -> None:
        self._print_line(text)

    def step(self, text: str) -> None:
        self._print_line(text)

    def status(self, status: str, seconds: float) -> None:
        self._print_line(f"{status} after {seconds:.1f} s")

    def log(self, line: dict[str, Any]) -> None:
        if not FAILED_STEP.match(line["message"]):
            self._print_line(f"  {printable(line['message'])}")

    def replay(self, record: Mapping[str, Any], table: str) -> None:
        self._print_line(table)

    def result(self, record: dict[str, Any], text: str) -> None:
        self._print_line(text)


class Quiet(Report):
    """Reports only the address, once: a replay has a second result."""

    def __init__(self, print_line: PrintLine) -> None:
        self._print_line = print_line

    def result(self, record: dict[str, Any], text: str) -> None:
        if "replay" not in record:
            self._print_line(record["url"] or text)


class Terminal(Report):
    """Reports with colour, a progress bar during the upload, and a spinner while the revision is built."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._wait: Status | None = None

    def note(self, text: str) -> None:
        self._out.print(Text(text, "dim"))

    def step(self, text: str) -> None:
        self._out.print(Text.assemble(("▸ ", "cyan"), text))

    def status(self, status: str, seconds: float) -> None:
        if self._wait is not None:
            self._wait.update(Text(status, revision_style(status)))
        self._out.print(Text.assemble((status, revision_style(status)), (f" after {seconds:.1f} s", "dim")))

    def log(self, line: dict[str, Any]) -> None:
        if not FAILED_STEP.match(line["message"]):
            self._out.print(Text(f"  {printable(line['message'])}", LEVEL_STYLES.get(line["level"], "")))

    @contextmanager
    def upload(self, size: int) -> Iterator[Sent]:
        columns = (TextColumn("  upload"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=self._out, transient=True) as progress:
            task = progress.add_task("upload", total=size)
            yield lambda done: progress.update(task, completed=done)

    @contextmanager
    def following(self) -> Iterator[None]:
        with self._out.status("waiting") as self._wait:
            yield
        self._wait = None

    def replay(self, record: Mapping[str, Any], table: str) -> None:
        self._out.print(Text(table))

    def result(self, record: dict[str, Any], text: str) -> None:
        self._out.print(Text(text, "bold"))


class JsonReport(Report):
    """Reports one JSON object per line: `note`, `step`, `upload_progress`, `status_change`, `log`, `replay` or `result`."""

    def note(self, text: str) -> None:
        self._write("note", message=text)

    def step(self, text: str) -> None:
        self._write("step", message=text)

    def status(self, status: str, seconds: float) -> None:
        self._write("status_change", status=status, elapsed_seconds=round(seconds, 1))

    def log(self, line: dict[str, Any]) -> None:
        self._write("log", **{name: line[name] for name in ("timestamp", "level", "message")})

    @contextmanager
    def upload(self, size: int) -> Iterator[Sent]:
        sent_percent = -1

        def sent(done: int) -> None:
            nonlocal sent_percent
            percent = 100 * done // max(size, 1)
            if percent // 10 != sent_percent // 10:
                sent_percent = percent
                self._write("upload_progress", bytes=done, size_bytes=size, percent=percent)

        yield sent

    def replay(self, record: Mapping[str, Any], table: str) -> None:
        self._write("replay", **record, message=table)

    def result(self, record: dict[str, Any], text: str) -> None:
        self._write("result", **record, message=text)

    def failure(self, record: dict[str, Any], text: str) -> bool:
        self.result(record, text)
        return True

    def _write(self, event: str, **data: Any) -> None:
        typer.echo(json_text({"event": event, **data}))


def choose_report(*, as_json: bool, is_quiet: bool = False) -> Report:
    """Return the report for these options and for stdout: a terminal or not."""
    if as_json:
        return JsonReport()
    out = console()

    def print_line(text: str) -> None:
        out.print(Text(text))

    if is_quiet:
        return Quiet(print_line)
    return Terminal(out) if out.is_terminal else Plain(print_line)


class Stopwatch:
    """The elapsed and the remaining seconds of an operation with a time limit."""

    def __init__(self, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def seconds_left(self) -> float:
        return self.limit_seconds - self.seconds
