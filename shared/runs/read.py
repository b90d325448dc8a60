"""Records of runs: their fields, reading and searching.

A search for unsuccessful statuses only lists runs by the time of their end, latest first, and `since` and `until` refer
to that time: this order suits the search for failures. Any other search lists runs by the time of their creation,
newest first, and `since` and `until` refer to that time. It uses the run ids for this (UUIDs of version 7), so the cost
of a page does not depend on the number of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared.errors import NotFound
from shared.figures import usage
from shared.infra.arrays import texts
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
from shared.runs import feedback
from shared.sql import pages, part, statement
from shared.threads import records

STRATEGIES = ("reject", "rollback", "interrupt", "enqueue")

# An internal stream mode: the run also writes the protocol's events into its log. The API neither accepts nor shows it.
PROTOCOL = "protocol"
# The thread's metadata in the kwargs of a temporary run. The API does not show it.
THREAD_METADATA = "thread_metadata"
# How a case of a replay is executed, with the recorded calls (shared/replays/cases.py). The API does not show it.
REPLAY = "replay"

# A run that ends at an interrupt, or at a breakpoint of a node, has the status success. While the thread stays there,
# `waits_for` is `answer` if the thread has an open interrupt, else `resume`.
ANSWER, RESUME = "answer", "resume"
WAITS_FOR = "CASE WHEN run.status = 'success' THEN (SELECT answer FROM waits_for(run.run_id)) END"

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
        **{name: value for name, value in kwargs.items() if name not in (THREAD_METADATA, REPLAY)},
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
    internal=["owner", "temporary", "seq_reserved", "joined"],
)


def show_new(row: Row) -> dict[str, Any]:
    """Return the record of a row that has the stored columns only. A new run waits for nothing."""
    return RUN.show({"waits_for": None, **row})


_GET = statement("runs.get", columns=RUN.select)
_OF_THREAD = statement("runs.of_thread", columns=RUN.select)


def get(conn: Connection, deployment_id: UUID, run_id: UUID, *, thread_id: UUID | None = None) -> Row:
    """Return a run. Raises NotFound if it is missing or belongs to another thread."""
    row = _GET.row(conn, deployment_id=deployment_id, run_id=run_id, thread_id=thread_id)
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
) -> Sequence[Row]:
    """Return a thread's runs, newest first. Raises NotFound if the thread does not exist."""
    rows = _OF_THREAD.rows(
        conn, deployment_id=deployment_id, thread_id=thread_id, status=status, limit=limit, offset=offset
    )
    if not rows:
        records.require(conn, deployment_id, thread_id)
    return rows


# Searching


CRON_ID = "cron_id"  # key in the metadata of a cron's runs

NO_VISIBILITY: tuple[str, dict[str, Any]] = ("true", {})
_CONDITIONS = {
    "assistant_id": "assistant_id = :assistant_id",
    "thread_id": "thread_id = :thread_id",
    "graph_id": "graph_id = :graph_id",
    "error": "readable(error) ->> 'error' = :error",
    "metadata": "metadata @> CAST(:metadata AS jsonb)",
    "feedback": part("feedback.matches"),
    # repeats a condition of `metadata` with the expression of an index
    CRON_ID: f"metadata ? '{CRON_ID}' AND left(metadata ->> '{CRON_ID}', 36) = left(:{CRON_ID}, 36)",
}
_BY_END = {"since": "ended_at >= :since", "until": "ended_at < :until"}
_BY_ID = {"since": "run_id >= :since", "until": "run_id < :until"}


def search(
    conn: Connection,
    deployment_id: UUID,
    filters: Mapping[str, Any],
    *,
    limit: int,
    offset: int,
    visible: tuple[str, dict[str, Any]] = NO_VISIBILITY,
) -> tuple[Sequence[Row], int]:
    """Return a page of the runs that match every filter, and the number of matches as `pages` counts them.

    The default of `status` is all unsuccessful statuses. `visible` is an SQL condition with its values that selects the
    runs visible to the caller.
    """
    statuses, is_for_failed, condition, values = _searched(deployment_id, filters, visible)
    if is_for_failed:
        condition += f" AND {is_unsuccessful()} AND status = ANY(:status)"
        found = statement("runs.failed", columns=RUN.select, condition=condition)
        counted = statement("runs.count_failed", condition=condition)
    else:
        live: set[RunStatus] = set(LIVE_RUN_STATUSES)
        parts = {
            "live": _part(condition, "is_live(status)", live, statuses),
            "ended": _part(condition, has_ended(), set(RunStatus) - live, statuses),
        }
        found = statement("runs.newest", columns=RUN.select, stored=RUN.stored, **parts)
        counted = statement("runs.count_newest", **parts)
    return pages.statement_page(conn, found, counted, values, limit=limit, offset=offset)


def condition_of(
    deployment_id: UUID, filters: Mapping[str, Any], visible: tuple[str, dict[str, Any]]
) -> tuple[str, dict[str, Any]]:
    """Return the condition of a search in SQL, with its values. `status` has only unsuccessful, or only live, statuses."""
    _, is_for_failed, condition, values = _searched(deployment_id, filters, visible)
    kind = is_unsuccessful() if is_for_failed else "is_live(status)"
    return f"{condition} AND {kind} AND status = ANY(:status)", values


def _searched(
    deployment_id: UUID, filters: Mapping[str, Any], visible: tuple[str, dict[str, Any]]
) -> tuple[set[RunStatus], bool, str, dict[str, Any]]:
    """Return the statuses of a search, whether all are unsuccessful, and its condition without them with all values."""
    statuses = {RunStatus(status) for status in filters.get("status") or UNSUCCESSFUL_RUN_STATUSES}
    is_for_failed = statuses <= set(UNSUCCESSFUL_RUN_STATUSES)
    values = {name: value for name, value in filters.items() if value is not None and name != "status"}
    if not is_for_failed:
        values |= {name: least_id(values[name]) for name in _BY_ID if name in values}
    cron_id = values.get("metadata", {}).get(CRON_ID)
    if isinstance(cron_id, str):
        values[CRON_ID] = cron_id
    conditions = {**_CONDITIONS, **(_BY_END if is_for_failed else _BY_ID)}
    condition = " AND ".join(
        ["deployment_id = :deployment_id", *(conditions[name] for name in values), visible[0]]
    )
    if "metadata" in values:
        values["metadata"] = dumps(values["metadata"])
    if "feedback" in values:
        values |= feedback.filter_values(values.pop("feedback"))
    values |= {**visible[1], "deployment_id": deployment_id, "status": texts([str(one) for one in statuses])}
    return statuses, is_for_failed, condition, values


def _part(condition: str, is_in_half: str, half: set[RunStatus], statuses: set[RunStatus]) -> str:
    """Return the condition for the live or the ended runs; false if the search is for none of their statuses."""
    if not half & statuses:
        return "false"
    is_complete = half <= statuses
    return f"{condition} AND {is_in_half}" + ("" if is_complete else " AND status = ANY(:status)")


def least_id(at: datetime) -> UUID:
    """Return the smallest possible id of a run that was created at this time."""
    milliseconds = min(max(round(at.timestamp() * 1000), 0), 2**48 - 1)
    return UUID(int=(milliseconds << 80) | (7 << 76) | (1 << 63))
