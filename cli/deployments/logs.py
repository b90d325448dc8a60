"""`runyard logs`: print a deployment's log and follow it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from cli.api.client import Client
from cli.deployments import revisions
from cli.deployments.deployments import NameOrPreview, chosen_with_preview
from cli.deployments.project import kept_paths
from cli.deployments.report import LEVEL_STYLES
from cli.errors import BadUsage
from cli.options import Key, Org, Url, open_client, sentences, settings
from cli.output import as_time, console, printable

FOLLOW_SECONDS = 1.0
WAIT_SECONDS = 20  # timeout of a long poll; the service answers as soon as there is a line
PAGE = 1000
AGO = re.compile(r"(\d+)\s*([smhd])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Line = dict[str, Any]


def command(
    name: NameOrPreview = None,
    kind: Annotated[
        Literal["deploy", "build"],
        typer.Option("--type", help="Log of the serving deployment, or of a build."),
    ] = "deploy",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines as they come, until Ctrl-C.")
    ] = False,
    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] | None,
        typer.Option(help="Only lines of this level and above.", case_sensitive=False, show_default=False),
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", help="Only lines that contain this text.", metavar="TEXT")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only lines since this time: 2026-01-31T12:00:00, or an age such as 15m, 2h, 3d.",
            metavar="TIME",
        ),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only lines up to this time.", metavar="TIME")] = None,
    revision: Annotated[
        str | None,
        typer.Option(
            help="Only lines of this revision: v3, its id or the end of its id. Default for --type build: the newest.",
            metavar="REVISION",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Number of lines, the newest.", min=1, metavar="N")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each line.")] = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Show log lines of a deployment, oldest first."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        filters = {
            "level": level,
            "query": query,
            "start_time": moment(since) if since else None,
            "end_time": moment(until) if until else None,
        }
        found, preview = chosen_with_preview(client, name)
        if preview is None or revision:
            revision_id = _revision_id(client, found, kind, revision)
        else:
            serving = preview["revision_id"] if kind == "deploy" else None
            revision_id = serving or preview["latest_revision_id"]
        log = Log(client, found["id"], revision_id, kind, filters)
        show = _json_line if as_json else _shower(kept_paths(settings().data_dir, found["name"]))
        lines = log.newest(limit)
        for line in lines:
            show(line)
        if not lines and not follow and not as_json:
            what = "that matches" if any(filters.values()) else "yet"
            typer.echo(
                f"There is nothing in the {kind} log {what}. --follow shows lines as they come.", err=True
            )
        if follow:
            for line in log.following():
                show(line)


def _revision_id(client: Client, found: dict[str, Any], kind: str, revision: str | None) -> str | None:
    if revision:
        return revisions.find(client, found, revision)["id"]
    return client.newest_revision(found["id"])["id"] if kind == "build" else None


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
            asked_at = time.monotonic()
            page = self._page("asc", PAGE, wait_seconds=WAIT_SECONDS, **where)
            offset = page.get("next_offset") or offset
            fresh = [line for line in page["logs"] if line["id"] not in self._read_ids]
            self._remember(fresh)
            yield from fresh
            if not page["logs"] and time.monotonic() - asked_at < FOLLOW_SECONDS:
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


def _shower(rewrite: Callable[[str], str]) -> Callable[[Line], None]:
    out = console()

    def show(line: Line) -> None:
        style = LEVEL_STYLES.get(line["level"], "")
        stamp = (f"[{as_time(line['timestamp'])}] ", "dim")
        out.print(Text.assemble(stamp, (f"[{line['level']}] {printable(rewrite(line['message']))}", style)))

    return show


def _json_line(line: Line) -> None:
    typer.echo(json.dumps({**line, "timestamp": as_time(line["timestamp"])}, ensure_ascii=False))


def moment(text: str) -> str:
    """Convert an ISO 8601 time or an age such as `15m` to ISO 8601 with a time zone. Raises BadUsage."""
    ago = AGO.fullmatch(text.strip())
    if ago:
        return (datetime.now(UTC) - timedelta(**{UNITS[ago[2]]: int(ago[1])})).isoformat()
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadUsage(
            f"{text!r} is no time: give one like 2026-01-31T12:00:00, or an age like 15m, 2h, 3d."
        ) from None
    return (at if at.tzinfo else at.astimezone()).isoformat()
