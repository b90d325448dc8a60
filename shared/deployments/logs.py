"""Lines of build and deployment logs, stored as rows and read by filter and cursor."""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from redis.exceptions import RedisError
from sqlalchemy import Connection, RowMapping, text

from shared.errors import Invalid
from shared.eventlog import events
from shared.infra import redis
from shared.infra.arrays import texts, uuids
from shared.records import ID_OR_NULL, TEXT, Record, RecordField, one_of
from shared.sql import statement

log = logging.getLogger(__name__)

BUILD, DEPLOY = "build", "deploy"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
RECORD = Record(
    "LogLine",
    {
        "id": RecordField(TEXT, value=lambda row: str(row["id"])),
        "timestamp": RecordField(
            {"type": "number", "description": "Milliseconds since 1970-01-01T00:00:00Z"},
            ("at",),
            lambda row: round(row["at"].timestamp() * 1000, 3),  # the fraction keeps lines in order
        ),
        "level": RecordField(one_of(*LEVELS)),
        "message": RecordField(TEXT),
        "run_id": RecordField(ID_OR_NULL),
    },
)
MAX_LINE = 8 * 1024

_INSERT = statement("deployments.insert_log_lines")

# Logs show terminal codes and other control characters as escapes, so that no terminal executes them.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def clean(message: str) -> str:
    """Escape control characters in a line and truncate it to MAX_LINE characters."""
    message = CONTROL_CHARACTERS.sub(lambda match: f"\\x{ord(match[0]):02x}", message)
    return message if len(message) <= MAX_LINE else message[:MAX_LINE] + " …"


@dataclass(frozen=True, slots=True)
class Line:
    """A log line to be stored."""

    deployment_id: UUID
    revision_id: UUID | None
    kind: str
    at: datetime
    level: str
    message: str
    run_id: UUID | None = None


class RisingClock:
    """A clock that never returns the same time twice, so that readers can continue after the last line they have."""

    def __init__(self) -> None:
        self._last = datetime.min.replace(tzinfo=UTC)

    def now(self) -> datetime:
        self._last = max(datetime.now(UTC), self._last + timedelta(microseconds=1))
        return self._last


def append(conn: Connection, lines: Sequence[Line]) -> None:
    """Store lines in one statement. Drops lines of deleted deployments.

    The statement caps the time of a line at the database's now. A line from a process whose clock is ahead would
    otherwise outlive all others.
    """
    if lines:
        _INSERT.count(
            conn,
            deployments=uuids([line.deployment_id for line in lines]),
            revisions=uuids([line.revision_id for line in lines]),
            runs=uuids([line.run_id for line in lines]),
            kinds=texts([line.kind for line in lines]),
            ats=[line.at for line in lines],
            levels=texts([line.level for line in lines]),
            messages=texts([line.message for line in lines]),
        )


def channel(deployment_id: UUID) -> bytes:
    """The channel on which readers of a deployment's log are notified of new lines."""
    return f"{redis.PREFIX}log:{deployment_id}".encode()


def notify(stored: Iterable[Line]) -> None:
    """Wake up readers of these deployments' logs, after the commit. The notification may be lost."""
    for deployment_id in {line.deployment_id for line in stored}:
        try:
            redis.events(deployment_id).publish(channel(deployment_id), events.WAKE_UP)
        except RedisError as error:
            log.warning(
                "could not notify the readers of a deployment's log, they see new lines later: %s", error
            )
            if not redis.has_several():
                return


def lines(
    conn: Connection,
    deployment_id: UUID,
    kind: str,
    *,
    revision_id: UUID | None = None,
    order: str = "desc",
    limit: int = 100,
    offset: str | None = None,
    run_id: UUID | None = None,
    level: str | None = None,
    query: str | None = None,
    start_time: datetime | None = None,
    end_time: datetime | None = None,
    settled_seconds: float | None = None,
) -> tuple[list[RowMapping], str | None]:
    """Return matching lines and the cursor of the next page. In ascending order there is always a cursor.

    With `settled_seconds`, only lines older than this many seconds are returned: processes may store their lines out of
    order, and a reader that continued after a newer line would miss the older one.
    """
    is_ascending = order == "asc"
    where = ["deployment_id = :deployment_id", "kind = :kind"]
    values: dict[str, Any] = {"deployment_id": deployment_id, "kind": kind, "limit": limit}
    for name, value, condition in (
        ("revision_id", revision_id, "revision_id = :revision_id"),
        ("run_id", run_id, "run_id = :run_id"),
        ("levels", level and list(LEVELS[LEVELS.index(level) :]), "level = ANY(:levels)"),
        ("query", query, "strpos(lower(message), lower(:query)) > 0"),
        # Clients send back a time they read as milliseconds: rounding must not hide a line.
        ("start_time", start_time, "at >= CAST(:start_time AS timestamptz) - interval '1 microsecond'"),
        ("end_time", end_time, "at <= CAST(:end_time AS timestamptz) + interval '1 microsecond'"),
        ("settled", settled_seconds, "at <= now() - make_interval(secs => :settled)"),
    ):
        if value:
            where.append(condition)
            values[name] = value
    if offset:
        values["after_at"], values["after_id"] = _parse_cursor(offset)
        where.append(f"(at, id) {'>' if is_ascending else '<'} (CAST(:after_at AS timestamptz), :after_id)")
    direction = "ASC" if is_ascending else "DESC"
    page = (
        f"SELECT {RECORD.select} FROM log_line WHERE {' AND '.join(where)}"
        f" ORDER BY at {direction}, id {direction} LIMIT :limit"
    )
    rows = list(conn.execute(text(page), values).mappings())
    if not rows:
        return rows, offset if is_ascending else None
    if not is_ascending and len(rows) < limit:
        return rows, None
    return rows, _cursor(rows[-1])


def _cursor(row: RowMapping) -> str:
    return base64.urlsafe_b64encode(f"{row['at'].isoformat()} {row['id']}".encode()).decode().rstrip("=")


def _parse_cursor(offset: str) -> tuple[datetime, int]:
    try:
        raw = base64.urlsafe_b64decode(offset + "=" * (-len(offset) % 4)).decode()
        at, _, id = raw.partition(" ")
        return datetime.fromisoformat(at), int(id)
    except (ValueError, binascii.Error) as error:
        raise Invalid(
            "offset must be a next_offset of an earlier response", loc=("body", "offset")
        ) from error
