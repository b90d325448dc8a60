"""Output of the command line: results as text or JSON, tables, and times."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from cli.client.names import short_id

UNLIMITED = 10_000  # columns; lines are never wrapped
WIDE = 120  # columns that full ids need
SHOWN_CHARACTERS = 2_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Texts of services, graphs and models are untrusted: their control characters must never reach the terminal, nor the
# characters that change the direction of text, which can make a question read as another one.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Characters that `json.dumps` does not escape: those above, and surrogates, which have no UTF-8 form.
UNESCAPED = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of a table. A column whose header begins with a lower-case letter is aligned right, for numbers."""

    header: str
    cell: Callable[[Any], Any]  # takes a row; None is shown as a dash
    no_wrap: bool = False
    folds: bool = False  # long words are folded, not cut off
    is_id: bool = False  # the end of the id is shown unless the table is wide
    only_wide: bool = False


def id_column(header: str = "ID", key: str | Callable[[Any], Any] = "id") -> Column:
    """Return a column of ids. It is never folded, so that its ids can be copied."""
    return Column(header, itemgetter(key) if isinstance(key, str) else key, no_wrap=True, is_id=True)


def table(rows: Sequence[Any], columns: Sequence[Column], *, is_wide: bool = False) -> Table:
    """Return a table without borders. `is_wide` selects full ids and all columns."""
    columns = [column for column in columns if is_wide or not column.only_wide]
    result = Table(box=None, pad_edge=False)
    for column in columns:
        justify = "right" if column.header[:1].islower() else "left"
        overflow = "fold" if column.folds else "ellipsis"
        result.add_column(column.header, justify=justify, overflow=overflow, no_wrap=column.no_wrap)
    for row in rows:
        result.add_row(*(_cell(column, row, is_wide=is_wide) for column in columns))
    return result


def _cell(column: Column, row: Any, *, is_wide: bool) -> Text:
    value = column.cell(row)
    if isinstance(value, Text):
        return value
    text = "-" if value is None else str(value)
    return Text(printable(short_id(text) if column.is_id and not is_wide else text))


class Output:
    """The result of a command: printed as text, or as JSON with `--json`."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def json(self, data: Any) -> None:
        """Print data as JSON over several lines."""
        typer.echo(json_text(data, indent=2))

    def done(self, sentence: str, result: Any) -> None:
        """Print what was done: a sentence, or the result as one line of JSON."""
        typer.echo(json_text(result) if self.as_json else printable(sentence))

    def show(self, data: Any, draw: Callable[[], RenderableType]) -> None:
        """Print data as JSON, or the table or text that `draw` returns."""
        if self.as_json:
            self.json(data)
        else:
            console().print(draw())

    def record(self, data: Any, facts: Mapping[str, Any]) -> None:
        """Print an object as JSON, or one line for each fact that is not empty."""
        if self.as_json:
            self.json(data)
            return
        out = console()
        for label, value in facts.items():
            if value not in (None, "", {}, []):
                text = value if isinstance(value, Text) else printable(shortened(as_text(value)))
                out.print(Text.assemble((f"{label:<12}", "bold"), text))

    def rows(
        self,
        rows: Sequence[Any],
        columns: Sequence[Column],
        *,
        empty: str,
        data: Any = None,
        wide: bool = False,
    ) -> None:
        """Print a list as a table, or the sentence `empty`. As JSON, print `data`; by default the rows themselves."""
        if self.as_json:
            self.json(rows if data is None else data)
        elif rows:
            show_table(rows, columns, wide=wide)
        else:
            typer.echo(empty)

    def repeat(self, read: Callable[[], Any], seconds: float) -> None:
        """Read and print data as a line of JSON, every `seconds`, without end."""
        while True:
            typer.echo(json_text(read()))
            time.sleep(seconds)


def show_table(rows: Sequence[Any], columns: Sequence[Column], *, wide: bool = False) -> None:
    """Print a table with full ids if the terminal is wide enough or `wide` is set.

    `wide` also lets lines exceed the terminal's width.
    """
    out = console(width=UNLIMITED if wide else None)
    out.print(table(rows, columns, is_wide=out.width >= WIDE))


def json_text(data: Any, *, indent: int | None = None) -> str:
    """Return data as JSON that may be printed on a terminal and encoded as UTF-8."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    return UNESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def as_text(data: Any) -> str:
    """Return a text unchanged, and other data as JSON."""
    return data if isinstance(data, str) else json_text(data)


def plain(value: Any) -> str:
    """Return a value as text, a small float without an exponent."""
    return f"{Decimal(repr(value)):f}" if isinstance(value, float) and math.isfinite(value) else str(value)


def shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …"


def printable(text: str) -> str:
    """Replace the control characters in a text, which a terminal would execute."""
    return CONTROL_CHARACTERS.sub("�", text)


def when(time: str | None) -> str:
    """Convert a time of the service to local time. Returns text that is not a time unchanged."""
    try:
        return datetime.fromisoformat(time or "").astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return time or ""


def minute(time: str | None) -> str:
    """Convert a time of the service to local time without seconds; None to `never`."""
    return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M") if time else "never"


def validity(row: Row) -> str:
    """Return the state of a key or a link as text: `valid`, `valid until TIME`, `expired TIME` or `revoked TIME`."""
    if row["revoked_at"]:
        return f"revoked {minute(row['revoked_at'])}"
    if not row["expires_at"]:
        return "valid"
    has_ended = datetime.fromisoformat(row["expires_at"]) <= datetime.now(UTC)
    return f"{'expired' if has_ended else 'valid until'} {minute(row['expires_at'])}"


def as_time(timestamp: str | float) -> str:
    """Return a log line's time as ISO 8601 with microseconds.

    The logs API returns milliseconds since 1970, the event stream a text.
    """
    if isinstance(timestamp, str):
        at = datetime.fromisoformat(timestamp).astimezone(UTC)
    else:
        at = EPOCH + timedelta(microseconds=round(timestamp * 1000))
    return at.isoformat(timespec="microseconds")


def duration(seconds: float) -> str:
    """Return a duration such as `5 s`, `3 min` or `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console for stdout or stderr: coloured on a terminal, plain and unwrapped elsewhere.

    The stream is examined at the call, so create a console for each use and not at import.
    """
    plain: dict[str, Any] = {
        "stderr": stderr,
        "highlight": False,
        "markup": False,
        "emoji": False,
        "soft_wrap": True,
    }
    result = Console(**plain, width=width)
    return result if result.is_terminal else Console(**plain, width=UNLIMITED, no_color=True)
