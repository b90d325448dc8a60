"""Ids, revision numbers, statuses and addresses, as arguments and output of commands have them.

The short form of an id is its end: ids begin with their creation time, so those of neighbouring rows begin alike.

The service's own definitions of the statuses are in `shared/models/statuses.py`. Importing them would load SQLAlchemy
and double the start time of a command. A test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

from cli.errors import BadUsage, CommandFailed

SHORT = 8
SHORTEST = 4
MOST_CANDIDATES = 10
PART = re.compile(r"[0-9a-f-]+")
VERSION = re.compile(r"v(\d{1,9})")
PREVIEW_SIGN = "--"  # between the names of a deployment and its preview, as in the preview's address

REVISION_FAILURES = frozenset({"CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED"})
REVISION_ENDS = REVISION_FAILURES | {"DEPLOYED", "SKIPPED", "INTERRUPTED"}
UNSUCCESSFUL_RUNS = frozenset({"error", "timeout", "interrupted"})
RUN_ENDS = UNSUCCESSFUL_RUNS | {"success"}
RUN_STATUSES = ("pending", "running", "success", "error", "timeout", "interrupted")

REVISION_STYLES = {
    "DEPLOYED": "bold green",
    "SKIPPED": "yellow",
    "INTERRUPTED": "yellow",
    **dict.fromkeys(REVISION_FAILURES, "bold red"),
}
RUN_STYLES = {
    "success": "green",
    "idle": "green",
    "interrupted": "yellow",
    "error": "bold red",
    "timeout": "bold red",
}
WAITS_FOR = {"answer": "waits for an answer", "resume": "waits to be resumed"}


# Ids and revision numbers


def is_id(text: str) -> bool:
    """Return whether a text has the form of an id.

    Commands treat such a text as an id. The service refuses it as an organization's name, but not as a deployment's.
    """
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def short_id(id: object) -> str:
    """Return the end of an id, which is usually unique."""
    return str(id)[-SHORT:]


def is_part(text: str) -> bool:
    """Return whether a text can be the beginning or end of an id."""
    return len(text) >= SHORTEST and PART.fullmatch(text.lower()) is not None


def with_part(rows: Iterable[dict[str, Any]], text: str, *, key: str = "id") -> list[dict[str, Any]]:
    """Return the rows whose id begins or ends with the text. `key` is the id's field."""
    part = text.lower()
    return [row for row in rows if str(row[key]).startswith(part) or str(row[key]).endswith(part)]


def only_match(
    rows: Sequence[dict[str, Any]],
    text: str,
    kind: str,
    missing: str,
    *,
    key: str = "id",
    label: Callable[[dict[str, Any]], str],
) -> dict[str, Any]:
    """Return the single row that a text selected. Raises CommandFailed(`missing`), or BadUsage for several.

    BadUsage lists the candidates by their id, which is the field `key`, and `label`.
    """
    if len(rows) > 1:
        shown = "".join(f"\n  {row[key]}  {label(row)}".rstrip() for row in rows[:MOST_CANDIDATES])
        more = f"\n  and {len(rows) - MOST_CANDIDATES} more" if len(rows) > MOST_CANDIDATES else ""
        raise BadUsage(f"{len(rows)} {kind} match {text!r}: give more of the id.{shown}{more}")
    if not rows:
        raise CommandFailed(missing)
    return rows[0]


def number_of(text: str) -> int | None:
    """Return the number of a revision such as `v3`; None if the text has another form."""
    match = VERSION.fullmatch(text.lower())
    return int(match[1]) if match else None


def version(number: object) -> str:
    """Return a revision's number as `v3`; `-` if the service does not number revisions."""
    return f"v{number}" if number else "-"


# Statuses


def revision_style(status: str) -> str:
    """Return the style of a revision's status."""
    return REVISION_STYLES.get(status, "cyan")


def run_style(status: str) -> str:
    """Return the style of a run's or a thread's status."""
    return RUN_STYLES.get(status, "cyan")


def run_state(row: Mapping[str, Any]) -> str:
    """Return a run's status as text, with the reason if the run stopped at a question or at a breakpoint."""
    waits_for = row.get("waits_for")
    return f"{row['status']}, {WAITS_FOR.get(waits_for, waits_for)}" if waits_for else row["status"]


def run_state_style(row: Mapping[str, Any]) -> str:
    """Return the style of the text that `run_state` returns."""
    return RUN_STYLES["interrupted"] if row.get("waits_for") else run_style(row["status"])


# Addresses of deployments


def address_of(url: str, record: Mapping[str, Any]) -> str:
    """Return a deployment's address: from its record, else derived from the service's `url`."""
    return address_in(record) or f"{url}/d/{record['name']}"


def served_at(url: str, name: str, shown: str | None) -> str:
    """Return the address below the service's `url` where a deployment or preview is called.

    `shown` is the address in its record, which may name any host. Only its mount prefix is used, so that an API key
    goes to no other service than the one at `url`. This address also works through a tunnel or a proxy.
    """
    path = urlsplit(shown or "").path
    _, is_below, prefix = path.partition(f"/d/{name}")
    return f"{url}/d/{quote(name, safe='')}{prefix if is_below else path}".rstrip("/")


def address_in(record: Mapping[str, Any]) -> str | None:
    """Return the address in a deployment's record; None until a revision serves."""
    config = record.get("source_config")
    return config.get("custom_url") if isinstance(config, Mapping) else None
