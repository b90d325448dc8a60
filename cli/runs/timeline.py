"""The timeline of a run as a table in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import typer

from cli.output import Column, printable, show_table

BAR = 24  # characters
MOST = 60  # bands
KINDS = {"host_start": "host"}  # short names

Band = Mapping[str, Any]


def show(line: Mapping[str, Any]) -> None:
    """Print the bands of a timeline, each after the band around it. The wait for a person has no bar."""
    bands: Sequence[Band] = line["bands"]
    now = datetime.now(UTC)
    begin, end = _time(line["from"], now), _time(line["until"], now)
    depths: dict[str, int] = {}
    for band in bands:
        depths[band["id"]] = depths.get(band["parent"] or "", -1) + 1

    def bar(band: Band) -> str:
        if band["kind"] == "person" or end <= begin:
            return ""
        times = (_time(band["started_at"], now), _time(band["ended_at"], now))
        first, last = (min(max(int((at - begin) / (end - begin) * BAR), 0), BAR) for at in times)
        return " " * min(first, BAR - 1) + "━" * max(last - first, 1)

    columns = [
        Column("Timeline", lambda band: "  " * depths[band["id"]] + printable(band["name"])),
        Column("Kind", lambda band: KINDS.get(band["kind"], band["kind"])),
        Column("Start", lambda band: _seconds(_time(band["started_at"], now), begin)),
        Column("Took", lambda band: _seconds(_time(band["ended_at"], now), _time(band["started_at"], now))),
        Column("", bar, no_wrap=True),
        Column("State", _state),
    ]
    show_table(bands[:MOST], columns)
    if len(bands) > MOST:
        typer.echo(f"{len(bands) - MOST} more bands are on the run's page in the console.")


def _time(text: str | None, now: datetime) -> datetime:
    return datetime.fromisoformat(text) if text else now


def _seconds(until: datetime, since: datetime) -> str:
    seconds = (until - since).total_seconds()
    return f"{seconds * 1000:.0f} ms" if abs(seconds) < 1 else f"{seconds:.1f} s"


def _state(band: Band) -> str:
    words = ["" if band["status"] == "success" else band["status"], printable(band["detail"] or "")]
    return ", ".join(word for word in words if word)
