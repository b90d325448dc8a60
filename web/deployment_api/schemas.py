"""JSON Schemas of the records that a deployment's API returns."""

from __future__ import annotations

from typing import Any

from shared.models import RunStatus
from shared.records import (
    ANYTHING,
    BOOLEAN,
    COUNT,
    COUNT_OR_NULL,
    FAILURE,
    ID,
    INTERRUPT,
    OBJECT,
    OBJECT_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_NULL,
    JsonSchema,
    listed,
    mapped,
    one_of,
    or_null,
    record,
    selection,
)
from shared.runs import read

NOTHING: JsonSchema = {"type": "object", "maxProperties": 0}
PAGE_HEADERS = ("X-Pagination-Total", "X-Pagination-Next")
RUN_HEADERS = ("Content-Location",)
FOLLOWED_HEADERS = ("Location", "Content-Location")

NODE = record(
    "GraphNode", ("type", "data", "metadata"), id=TEXT, type=TEXT, data=record(name=TEXT), metadata=OBJECT
)
EDGE = record(
    "GraphEdge", ("conditional", "data"), source=TEXT, target=TEXT, conditional=BOOLEAN, data=ANYTHING
)
DRAWING = record("GraphDrawing", nodes=listed(NODE), edges=listed(EDGE))
SCHEMAS: dict[str, Any] = dict.fromkeys(
    ("input_schema", "output_schema", "state_schema", "config_schema", "context_schema"), OBJECT_OR_NULL
)
GRAPH_SCHEMAS = record("GraphSchemas", graph_id=TEXT, **SCHEMAS)
SUBGRAPHS = mapped(record("SubgraphSchemas", **SCHEMAS))

PRUNED = record("PrunedThreads", pruned_count=COUNT)
COUNTED: dict[str, Any] = {"count": COUNT, "bytes": COUNT}
STORAGE = record(
    "ThreadStorage",
    thread_id=ID,
    total_bytes=COUNT,
    checkpoints=record(**COUNTED),
    channel_values=record(**COUNTED, by_channel=mapped(record(versions=COUNT, bytes=COUNT))),
    pending_writes=record(**COUNTED),
)

CHECKPOINT = record(
    "Checkpoint",
    ("checkpoint_id", "checkpoint_map"),
    thread_id=ID,
    checkpoint_ns=TEXT,
    checkpoint_id=TEXT_OR_NULL,
    checkpoint_map=OBJECT_OR_NULL,
)
STATE_FIELDS: dict[str, Any] = {
    "values": ANYTHING,
    "next": listed(TEXT),
    "tasks": listed(OBJECT),
    "metadata": OBJECT_OR_NULL,
    "created_at": TIME_OR_NULL,
    "checkpoint": or_null(CHECKPOINT),
    "parent_checkpoint": or_null(CHECKPOINT),
    "interrupts": listed(INTERRUPT),
    "checkpoint_id": TEXT_OR_NULL,
    "parent_checkpoint_id": TEXT_OR_NULL,
}
STATE = selection(record("State", **STATE_FIELDS))
STATES = listed(STATE)
STATE_UPDATED = record("UpdatedState", checkpoint=CHECKPOINT, configurable=CHECKPOINT, checkpoint_id=TEXT)

QUEUED = record(
    "QueuedRun",
    position={"type": ["integer", "null"], "minimum": 1},
    waiting_seconds={"type": "number", "minimum": 0},
    reason=TEXT,
)
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
WAITS_FOR: JsonSchema = {
    "description": "Present while the run has ended with success and its thread is paused where the run stopped: at an"
    " interrupt (`answer`), or before or after a node by `interrupt_before` or `interrupt_after` (`resume`)",
    **one_of(read.ANSWER, read.RESUME),
}
LOST_ATTEMPT = record(
    "LostAttempt",
    attempt={"type": "integer", "minimum": 1},
    worker=TEXT,
    started_at=TIME,
    ended_at=TIME,
    reason=TEXT,
)
RUN = record(
    "Run",
    ("queue", "waits_for"),
    run_id=ID,
    thread_id=ID,
    assistant_id=ID,
    created_at=TIME,
    updated_at=TIME,
    status=one_of(*RunStatus),
    metadata=OBJECT,
    kwargs=OBJECT,
    multitask_strategy=one_of("reject", "rollback", "interrupt", "enqueue"),
    langsmith_session_name=TEXT_OR_NULL,
    cancel_reason=TEXT_OR_NULL,
    revision_id=ID,
    usage=USAGE,
    started_at=TIME_OR_NULL,
    ended_at=TIME_OR_NULL,
    attempts=listed(LOST_ATTEMPT),
    cost=COST,
    queue=QUEUED,
    waits_for=WAITS_FOR,
)
RUNS = listed(selection(RUN))
FOUND_RUN = record(
    "FoundRun",
    ("queue", "waits_for"),
    **RUN["properties"],
    error=or_null(FAILURE),
    attempt=COUNT,
)
FOUND_RUNS = listed(FOUND_RUN)
QUEUE = record(
    "Queue",
    pending=COUNT,
    running=COUNT,
    oldest_wait_seconds={"type": "number", "minimum": 0},
    waiting=listed(record(reason=TEXT, runs=COUNT, oldest_wait_seconds={"type": "number", "minimum": 0})),
    max_concurrent_runs=COUNT_OR_NULL,
    pool=record(name=TEXT, runners=COUNT, slots=COUNT, running=COUNT),
)
OUTPUT: JsonSchema = {
    "description": "The thread's values, with `__interrupt__` if the graph waits for an answer. Only `__error__` if the run"
    " failed. White space precedes the JSON if the run takes long."
}

FIRINGS = record("CronFirings", firings=listed(TIME))
NAMESPACES = record("StoreNamespaces", namespaces=listed(listed(TEXT)))
