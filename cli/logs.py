"""`runyard logs`: a deployment's lines, and those that come."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from cli.client import Client
from cli.deploy import Say
from cli.errors import CommandFailed

FOLLOW_SECONDS = 1.0
KINDS = ("deploy", "build")


def show(client: Client, name: str, kind: str, say: Say, *, follow: bool, limit: int) -> None:
    """The newest lines, oldest first; with `follow`, the lines after them until interrupted."""
    if kind not in KINDS:
        raise CommandFailed(f"--type must be one of {', '.join(KINDS)}")
    found = client.find(name)
    if found is None:
        raise CommandFailed(f"There is no deployment {name!r}. `runyard list` shows those there are.")
    revision_id = client.newest_revision(found["id"])["id"] if kind == "build" else None
    lines = client.logs(found["id"], revision_id, kind, {"order": "desc", "limit": limit})["logs"][::-1]
    seen = {line["id"] for line in lines}
    for line in lines:
        say(text(line))
    while follow:
        body: dict[str, Any] = {"order": "asc", "limit": 1000}
        if lines:
            body["start_time"] = as_time(lines[-1]["timestamp"])
        new = [
            line
            for line in client.logs(found["id"], revision_id, kind, body)["logs"]
            if line["id"] not in seen
        ]
        for line in new:
            say(text(line))
        seen.update(line["id"] for line in new)
        lines = new or lines
        time.sleep(FOLLOW_SECONDS)


def text(line: dict[str, Any]) -> str:
    """`[time] [level] message`"""
    return f"[{as_time(line['timestamp'])}] [{line['level']}] {line['message']}"


def as_time(timestamp: str | float) -> str:
    """ISO 8601, whatever form the service answered in."""
    if isinstance(timestamp, str):
        return timestamp
    return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")
