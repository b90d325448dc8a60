"""Search for runs of a deployment by status and other properties.

A search for unsuccessful statuses only lists runs by the time of their end, latest first, and `since` and `until` refer
to that time: this order suits the search for failures. Any other search lists runs by the time of their creation,
newest first, and `since` and `until` refer to that time. It uses the run ids for this (UUIDs of version 7), so the cost
of a page does not depend on the number of runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text

from shared.infra.postgres import dumps
from shared.models import (
    LIVE_RUN_STATUSES,
    UNSUCCESSFUL_RUN_STATUSES,
    RunStatus,
    has_ended,
    is_unsuccessful,
)
from shared.runs.record import RUN

CRON_ID = "cron_id"  # key in the metadata of a cron's runs
MOST_COUNTED = 10_000  # bound of the total in searches that include other than unsuccessful statuses

NO_VISIBILITY: tuple[str, dict[str, Any]] = ("true", {})
_GIVEN = {
    "assistant_id": "assistant_id = :assistant_id",
    "thread_id": "thread_id = :thread_id",
    "graph_id": "graph_id = :graph_id",
    "error": "readable(error) ->> 'error' = :error",
    "metadata": "metadata @> CAST(:metadata AS jsonb)",
    # repeats a condition of `metadata` with the expression of an index
    CRON_ID: f"metadata ? '{CRON_ID}' AND left(metadata ->> '{CRON_ID}', 36) = left(:{CRON_ID}, 36)",
}
_BY_END = {"since": "ended_at >= :since", "until": "ended_at < :until"}
_BY_ID = {"since": "run_id >= :since", "until": "run_id < :until"}


@dataclass(frozen=True, slots=True)
class _Search:
    """The SQL conditions of a search, and their values."""

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
    """Return a page of the runs that match every filter, and the total number of matches.

    The default of `status` is all unsuccessful statuses. If other statuses are included, the total is counted up to
    MOST_COUNTED. `visible` is an SQL condition with its values that selects the runs visible to the caller.
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
        f"SELECT {RUN.select} {matching} ORDER BY ended_at DESC, run_id DESC LIMIT :limit OFFSET :offset"
    )
    rows = conn.execute(page, asked.values).mappings().all()
    return list(rows), conn.execute(text(f"SELECT count(*) {matching}"), asked.values).scalar_one()


def _of_any_status(
    conn: Connection, asked: _Search, statuses: Collection[RunStatus]
) -> tuple[list[RowMapping], int]:
    """Search live and ended runs separately. Each has its own index, so inserting a run updates only one of them."""
    places = [asked.where(*part) for part in _parts(set(statuses))]
    last = asked.values["offset"] + asked.values["limit"]
    found = " UNION ALL ".join(
        f"(SELECT {RUN.stored} FROM run WHERE {where} ORDER BY run_id DESC LIMIT CAST(:last AS bigint))"
        for where in places
    )
    page = text(f"SELECT {RUN.select} FROM ({found}) AS run ORDER BY run_id DESC LIMIT :limit OFFSET :offset")
    rows = conn.execute(page, {**asked.values, "last": last}).mappings().all()
    if len(rows) < asked.values["limit"] and (rows or not asked.values["offset"]):
        return list(rows), asked.values["offset"] + len(rows)  # this is the last page, so the total is known
    counted = " UNION ALL ".join(
        f"(SELECT 1 FROM run WHERE {where} LIMIT CAST(:most AS bigint))" for where in places
    )
    total = text(f"SELECT count(*) FROM (SELECT 1 FROM ({counted}) AS found LIMIT :most) AS few")
    most = max(MOST_COUNTED, last + 1)
    return list(rows), conn.execute(total, {**asked.values, "most": most}).scalar_one()


def _parts(statuses: set[RunStatus]) -> list[tuple[str, ...]]:
    """Return the conditions for live runs and for ended runs. Omits a half without any of the statuses."""
    live = set(LIVE_RUN_STATUSES)
    halves = [("is_live(status)", live), (has_ended(), set(RunStatus) - live)]
    return [
        (condition,) if half <= statuses else (condition, "status = ANY(:status)")
        for condition, half in halves
        if half & statuses
    ]


def least_id(at: datetime) -> UUID:
    """Return the smallest possible id of a run that was created at this time."""
    milliseconds = min(max(round(at.timestamp() * 1000), 0), 2**48 - 1)
    return UUID(int=(milliseconds << 80) | (7 << 76) | (1 << 63))
