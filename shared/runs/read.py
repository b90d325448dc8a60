"""Records of runs: their fields, reading and searching.

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

from shared.errors import NotFound
from shared.figures import usage
from shared.infra.postgres import Row, dumps
from shared.models import (
    LIVE_RUN_STATUSES,
    UNSUCCESSFUL_RUN_STATUSES,
    RunStatus,
    has_ended,
    is_unsuccessful,
)
from shared.records import (
    COUNT,
    FAILURE,
    ID,
    OBJECT,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_NULL,
    JsonSchema,
    Record,
    RecordField,
    listed,
    mapped,
    one_of,
    or_null,
    record,
)
from shared.threads import records

STRATEGIES = ("reject", "rollback", "interrupt", "enqueue")

# An internal stream mode: the run also writes the protocol's events into its log. The API neither accepts nor shows it.
PROTOCOL = "protocol"
# Kwargs that the API does not show: stream modes added by readers, and the thread's metadata of a temporary run.
THREAD_METADATA = "thread_metadata"
HIDDEN = ("joined", THREAD_METADATA)

# Whether a later run exists on the thread of the run with the alias `r`. Ignores runs cancelled before they started.
IS_FOLLOWED = """
EXISTS (SELECT FROM run o WHERE o.deployment_id = r.deployment_id AND o.thread_id = r.thread_id
        AND o.created_seq > r.created_seq AND NOT (o.status = 'interrupted' AND o.attempt = 0))"""

# A run that ends at an interrupt, or at a breakpoint of a node, has the status success. While the thread stays there,
# `waits_for` is `answer` if the thread has an open interrupt, else `resume`. An update of the thread's state changes
# `state_updated_at`.
ANSWER, RESUME = "answer", "resume"
WAITS_FOR = f"""
CASE WHEN run.status = 'success' THEN (
    SELECT CASE WHEN EXISTS (SELECT FROM json_each(readable(t.interrupts)) i WHERE json_array_length(i.value) > 0)
                THEN '{ANSWER}' ELSE '{RESUME}' END
    FROM run r JOIN thread t ON t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
    WHERE r.run_id = run.run_id AND t.rest_status = 'interrupted' AND t.state_updated_at = r.ended_at
      AND NOT {IS_FOLLOWED}) END"""

TOKENS: dict[str, Any] = dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), COUNT)
DETAILS: dict[str, Any] = dict.fromkeys(("input_token_details", "output_token_details"), mapped(COUNT))
USAGE: JsonSchema = {
    "description": "Tokens by model, as reported by the models, of the attempt that ended the run",
    **or_null(mapped(record("TokenUsage", tuple(DETAILS), **TOKENS, **DETAILS))),
}
COST: JsonSchema = {
    "type": ["number", "null"],
    "description": "Cost of these tokens by the service's prices. Null if a model has no price",
}
LOST_ATTEMPT = record(
    "LostAttempt",
    attempt={"type": "integer", "minimum": 1},
    worker=TEXT,
    started_at=TIME,
    ended_at=TIME,
    reason=TEXT,
)
QUEUED = record(
    "QueuedRun",
    position={"type": ["integer", "null"], "minimum": 1},
    waiting_seconds={"type": "number", "minimum": 0},
    reason=TEXT,
)
WAITING: JsonSchema = {
    "description": "Present while the run has ended with success and its thread is paused where the run stopped: at an"
    " interrupt (`answer`), or before or after a node by `interrupt_before` or `interrupt_after` (`resume`)",
    **one_of(ANSWER, RESUME),
}


def _kwargs(row: Row) -> dict[str, Any]:
    kwargs = row["kwargs"]
    return {
        "input": row["input"],
        **{name: value for name, value in kwargs.items() if name not in HIDDEN},
        "stream_mode": [mode for mode in kwargs["stream_mode"] if mode != PROTOCOL],
    }


def _tracing_project(row: Row) -> str | None:
    return (row["kwargs"].get("langsmith_tracer") or {}).get("project_name")


RUN = Record(
    "Run",
    {
        "run_id": RecordField(ID),
        "thread_id": RecordField(ID),
        "assistant_id": RecordField(ID),
        "created_at": RecordField(TIME),
        "updated_at": RecordField(TIME),
        "status": RecordField(one_of(*RunStatus)),
        "metadata": RecordField(OBJECT),
        "kwargs": RecordField(OBJECT, ("input", "kwargs"), _kwargs),
        "multitask_strategy": RecordField(one_of(*STRATEGIES)),
        "langsmith_session_name": RecordField(TEXT_OR_NULL, ("kwargs",), _tracing_project),
        "cancel_reason": RecordField(TEXT_OR_NULL),
        "revision_id": RecordField(ID),
        "usage": RecordField(USAGE),
        "started_at": RecordField(TIME_OR_NULL),
        "ended_at": RecordField(TIME_OR_NULL),
        "attempts": RecordField(listed(LOST_ATTEMPT), value=lambda row: row["attempts"] or []),
        "cost": RecordField(COST, ("usage",), lambda row: usage.cost(row["usage"])),
        "queue": RecordField(QUEUED, shown="added"),
        "waits_for": RecordField(WAITING, shown=("waits_for",)),
        "error": RecordField(or_null(FAILURE), shown="search"),
        "attempt": RecordField(COUNT, shown="search"),
    },
    expressions={"waits_for": WAITS_FOR},
    internal=["owner", "temporary", "seq_reserved"],
)
NULL_AT_FIRST = dict.fromkeys(("usage", "started_at", "ended_at", "attempts", "waits_for"))


def show_new(row: Row) -> dict[str, Any]:
    """Return the record of a row that may lack columns which are NULL in a new run."""
    return RUN.show({**NULL_AT_FIRST, **row})


def get(conn: Connection, deployment_id: UUID, run_id: UUID, *, thread_id: UUID | None = None) -> RowMapping:
    """Return a run. Raises NotFound if it is missing or belongs to another thread."""
    row = (
        conn.execute(
            text(
                f"SELECT {RUN.select} FROM run WHERE run_id = :run_id AND deployment_id = :deployment_id"
                " AND (CAST(:thread_id AS uuid) IS NULL OR thread_id = :thread_id)"
            ),
            {"run_id": run_id, "deployment_id": deployment_id, "thread_id": thread_id},
        )
        .mappings()
        .one_or_none()
    )
    if row is None:
        raise NotFound("Not Found")
    return row


def list_of_thread(
    conn: Connection,
    deployment_id: UUID,
    thread_id: UUID,
    *,
    limit: int,
    offset: int,
    status: str | None = None,
) -> list[RowMapping]:
    """Return a thread's runs, newest first. Raises NotFound if the thread does not exist."""
    rows = (
        conn.execute(
            text(
                f"SELECT {RUN.select} FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
                " AND (CAST(:status AS text) IS NULL OR status = :status)"
                " ORDER BY created_seq DESC LIMIT :limit OFFSET :offset"
            ),
            {
                "deployment_id": deployment_id,
                "thread_id": thread_id,
                "status": status,
                "limit": limit,
                "offset": offset,
            },
        )
        .mappings()
        .all()
    )
    if not rows:
        records.require(conn, deployment_id, thread_id)
    return list(rows)


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
