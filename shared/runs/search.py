"""Finds runs of a deployment by their status and what else is known of them.

Runs that have all ended without success are listed the last to end first, and bound by when they ended: that is how
one looks for what failed. With other statuses among them all are listed the newest first, and bound by when they were
created, which their ids say (they are UUIDs of version 7): so a page costs the same however many runs there are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text

from shared.infra.json_text import readable
from shared.infra.postgres import dumps
from shared.models import (
    LIVE_RUN_STATUSES,
    UNSUCCESSFUL_RUN_STATUSES,
    RunStatus,
    has_ended,
    is_live,
    is_unsuccessful,
)
from shared.runs import read

CRON_ID = "cron_id"  # in the metadata of a cron's runs
MOST_COUNTED = 10_000  # of runs that did not all fail

NO_VISIBILITY: tuple[str, dict[str, Any]] = ("true", {})
_GIVEN = {
    "assistant_id": "assistant_id = :assistant_id",
    "thread_id": "thread_id = :thread_id",
    "graph_id": "graph_id = :graph_id",
    "error": f"{readable('error')} ->> 'error' = :error",
    "metadata": "metadata @> CAST(:metadata AS jsonb)",
    # beside the metadata, in the words of an index
    CRON_ID: f"metadata ? '{CRON_ID}' AND left(metadata ->> '{CRON_ID}', 36) = left(:{CRON_ID}, 36)",
}
_BY_END = {"since": "ended_at >= :since", "until": "ended_at < :until"}
_BY_ID = {"since": "run_id >= :since", "until": "run_id < :until"}


@dataclass(frozen=True, slots=True)
class _Search:
    """The conditions of a search, and their values."""

    conditions: list[str]
    values: dict[str, Any]

    def where(self, *more: str) -> str:
        return " AND ".join(["deployment_id = :deployment_id", *self.conditions, *more])


def search(
    conn: Connection,
    deployment_id: UUID,
    filters: Mapping[str, Any],
    *,
    limit: int,
    offset: int,
    visible: tuple[str, dict[str, Any]] = NO_VISIBILITY,
) -> tuple[list[RowMapping], int]:
    """Runs that match every filter; and how many match in all, where not all have failed counted up to MOST_COUNTED.

    Without a `status` it is those that ended without success. `visible` is a condition and its values: which runs the
    caller may see.
    """
    statuses = [RunStatus(status) for status in filters.get("status") or UNSUCCESSFUL_RUN_STATUSES]
    failed_alone = set(statuses) <= set(UNSUCCESSFUL_RUN_STATUSES)
    given = {name: value for name, value in filters.items() if value is not None and name != "status"}
    if not failed_alone:
        given |= {name: least_id(given[name]) for name in _BY_ID if name in given}
    cron_id = given.get("metadata", {}).get(CRON_ID)
    if isinstance(cron_id, str):
        given[CRON_ID] = cron_id
    known = {**_GIVEN, **(_BY_END if failed_alone else _BY_ID)}
    asked = _Search(
        [*(known[name] for name in given), visible[0]],
        {
            **visible[1],
            **given,
            **({"metadata": dumps(given["metadata"])} if "metadata" in given else {}),
            "deployment_id": deployment_id,
            "status": [str(status) for status in statuses],
            "limit": limit,
            "offset": offset,
        },
    )
    return _failed(conn, asked) if failed_alone else _of_any_status(conn, asked, statuses)


def _failed(conn: Connection, asked: _Search) -> tuple[list[RowMapping], int]:
    matching = f"FROM run WHERE {asked.where(is_unsuccessful(), 'status = ANY(:status)')}"
    page = text(
        f"SELECT {read.COLUMNS} {matching} ORDER BY ended_at DESC, run_id DESC LIMIT :limit OFFSET :offset"
    )
    rows = conn.execute(page, asked.values).mappings().all()
    return list(rows), conn.execute(text(f"SELECT count(*) {matching}"), asked.values).scalar_one()


def _of_any_status(
    conn: Connection, asked: _Search, statuses: Collection[RunStatus]
) -> tuple[list[RowMapping], int]:
    """Runs that have ended and runs that have not are found by an index each, of which creating a run pays for one."""
    places = [asked.where(*part) for part in _parts(set(statuses))]
    last = asked.values["offset"] + asked.values["limit"]
    found = " UNION ALL ".join(
        f"(SELECT {read.COLUMNS} FROM run WHERE {where} ORDER BY run_id DESC LIMIT CAST(:last AS bigint))"
        for where in places
    )
    page = text(
        f"SELECT {read.SHOWN_COLUMNS} FROM ({found}) AS run ORDER BY run_id DESC LIMIT :limit OFFSET :offset"
    )
    rows = conn.execute(page, {**asked.values, "last": last}).mappings().all()
    if len(rows) < asked.values["limit"] and (rows or not asked.values["offset"]):
        return list(rows), asked.values["offset"] + len(rows)  # nothing is left to be counted
    counted = " UNION ALL ".join(
        f"(SELECT 1 FROM run WHERE {where} LIMIT CAST(:most AS bigint))" for where in places
    )
    total = text(f"SELECT count(*) FROM (SELECT 1 FROM ({counted}) AS found LIMIT :most) AS few")
    most = max(MOST_COUNTED, last + 1)
    return list(rows), conn.execute(total, {**asked.values, "most": most}).scalar_one()


def _parts(statuses: set[RunStatus]) -> list[tuple[str, ...]]:
    """The conditions of those that are live, and of those that have ended, as far as either is wanted."""
    live = set(LIVE_RUN_STATUSES)
    halves = [(is_live(), live), (has_ended(), set(RunStatus) - live)]
    return [
        (condition,) if half <= statuses else (condition, "status = ANY(:status)")
        for condition, half in halves
        if half & statuses
    ]


def least_id(at: datetime) -> UUID:
    """The least id of a run that was created then."""
    milliseconds = min(max(round(at.timestamp() * 1000), 0), 2**48 - 1)
    return UUID(int=(milliseconds << 80) | (7 << 76) | (1 << 63))


def record(row: Any) -> dict[str, Any]:
    """A run that was found as the API shows it: with its error, and in which attempt it is, or was."""
    return {**read.record(row), "error": row["error"], "attempt": row["attempt"]}
