"""The record of a run."""

from __future__ import annotations

from typing import Any

from shared.figures import prices
from shared.infra.postgres import Row
from shared.models import RunStatus
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
        "cost": RecordField(COST, ("usage",), lambda row: prices.cost(row["usage"])),
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
