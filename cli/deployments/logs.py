"""`runyard logs`: print a deployment's log and follow it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import typer
from rich.text import Text
from typer import Option

from cli.client.client import Client
from cli.commands import command, settings
from cli.deployments.project import kept_paths
from cli.deployments.report import LEVEL_STYLES
from cli.deployments.revisions import find_revision
from cli.deployments.target import NameOrPreview, resolve_with_preview
from cli.errors import BadUsage
from cli.output import Output, as_time, console, json_text, printable

FOLLOW_SECONDS = 1.0
WAIT_SECONDS = 20  # timeout of a long poll; the service answers as soon as there is a line
PAGE = 1000
PERIOD = re.compile(r"(\d+)\s*([smhd])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Line = dict[str, Any]


@command(json_help="Print one JSON object for each line.")
def logs(
    client: Client,
    out: Output,
    name: NameOrPreview = None,
    kind: Literal["deploy", "build"] = Option(
        "deploy", "--type", help="Log of the serving deployment, or of a build."
    ),
    follow: bool = Option(False, "--follow", "-f", help="Print new lines as they come, until Ctrl-C."),
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] | None = Option(
        None, help="Only lines of this level and above.", case_sensitive=False
    ),
    query: str | None = Option(None, help="Only lines that contain this text.", metavar="TEXT"),
    since: str | None = Option(
        None,
        help="Only lines since this time: 2026-01-31T12:00:00, or an age such as 15m, 2h, 3d.",
        metavar="TIME",
    ),
    until: str | None = Option(None, help="Only lines up to this time.", metavar="TIME"),
    revision: str | None = Option(
        None,
        help="Only lines of this revision: v3, its id or the end of its id. Default for --type build: the newest.",
        metavar="REVISION",
    ),
    limit: int = Option(100, help="Number of lines, the newest.", min=1, metavar="N"),
) -> None:
    """Show log lines of a deployment, oldest first."""
    filters = {
        "level": level,
        "query": query,
        "start_time": as_moment(since) if since else None,
        "end_time": as_moment(until) if until else None,
    }
    deployment, preview = resolve_with_preview(client, name)
    if preview is None or revision:
        revision_id = _revision_id(client, deployment, kind, revision)
    else:
        serving = preview["revision_id"] if kind == "deploy" else None
        revision_id = serving or preview["latest_revision_id"]
    log = Log(client, deployment["id"], revision_id, kind, filters)
    show = _json_line if out.as_json else _line_printer(kept_paths(settings().data_dir, deployment["name"]))
    lines = log.newest(limit)
    for line in lines:
        show(line)
    if not lines and not follow and not out.as_json:
        what = "that matches" if any(filters.values()) else "yet"
        typer.echo(f"There is nothing in the {kind} log {what}. --follow shows lines as they come.", err=True)
    if follow:
        for line in log.following():
            show(line)


def _revision_id(client: Client, deployment: dict[str, Any], kind: str, revision: str | None) -> str | None:
    if revision:
        return find_revision(client, deployment, revision)["id"]
    return client.newest_revision(deployment["id"])["id"] if kind == "build" else None


class Log:
    """One log, read page by page. Each line is returned once."""

    def __init__(
        self, client: Client, deployment_id: str, revision_id: str | None, kind: str, filters: dict[str, Any]
    ) -> None:
        self._client = client
        self._source = (deployment_id, revision_id, kind)
        self._filters = {name: value for name, value in filters.items() if value is not None}
        self._newest: Line | None = None
        self._read_ids: set[str] = set()

    def newest(self, limit: int) -> list[Line]:
        """Return the newest lines, at most `limit`, oldest first."""
        lines: list[Line] = []
        offset: str | None = None
        while len(lines) < limit:
            size = min(limit - len(lines), PAGE)
            where: dict[str, Any] = {"offset": offset} if offset else {}
            page = self._page("desc", size, **where)
            lines += page["logs"]
            offset = page.get("next_offset")
            if not offset or len(page["logs"]) < size:
                break
        lines.reverse()
        self._remember(lines)
        return lines

    def following(self) -> Iterator[Line]:
        """Yield new lines without end."""
        offset: str | None = None
        while True:
            where: dict[str, Any] = {"offset": offset} if offset else self._since_newest()
            sent_at = time.monotonic()
            page = self._page("asc", PAGE, wait_seconds=WAIT_SECONDS, **where)
            offset = page.get("next_offset") or offset
            fresh = [line for line in page["logs"] if line["id"] not in self._read_ids]
            self._remember(fresh)
            yield from fresh
            if not page["logs"] and time.monotonic() - sent_at < FOLLOW_SECONDS:
                # The service answered without a long poll: the log is a build's, or the service is shutting down.
                time.sleep(FOLLOW_SECONDS)

    def _since_newest(self) -> dict[str, Any]:
        """Return the filter for lines from the newest line's time on, that line included.

        Starting after it would miss a line with the same time. The caller drops lines that it has read before.
        """
        return {"start_time": as_time(self._newest["timestamp"])} if self._newest else {}

    def _remember(self, lines: list[Line]) -> None:
        if lines:
            self._newest = lines[-1]
            self._read_ids = {line["id"] for line in lines[-PAGE:]}

    def _page(self, order: str, limit: int, *, wait_seconds: int = 0, **where: Any) -> dict[str, Any]:
        deployment_id, revision_id, kind = self._source
        body = {**self._filters, "order": order, "limit": limit, **where}
        return self._client.logs(deployment_id, revision_id, kind, body, wait_seconds=wait_seconds)


def _line_printer(rewrite: Callable[[str], str]) -> Callable[[Line], None]:
    out = console()

    def show(line: Line) -> None:
        style = LEVEL_STYLES.get(line["level"], "")
        stamp = (f"[{as_time(line['timestamp'])}] ", "dim")
        out.print(Text.assemble(stamp, (f"[{line['level']}] {printable(rewrite(line['message']))}", style)))

    return show


def _json_line(line: Line) -> None:
    typer.echo(json_text({**line, "timestamp": as_time(line["timestamp"])}))


def as_moment(text: str, *, is_ahead: bool = False) -> str:
    """Convert an ISO 8601 time or a period such as `15m` to ISO 8601 with a time zone. Raises BadUsage.

    A period leads back from now, with `is_ahead` into the future.
    """
    period = PERIOD.fullmatch(text.strip())
    try:
        if period:
            distance = timedelta(**{UNITS[period[2]]: int(period[1])})
            at = datetime.now(UTC) + (distance if is_ahead else -distance)
        else:
            at = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise BadUsage(
            f"{text!r} is no time: give one like 2026-01-31T12:00:00, or a period like 15m, 2h, 3d."
        ) from None
    return (at if at.tzinfo else at.astimezone()).isoformat()
