"""JSON Schemas of the records that a deployment's API returns."""

from __future__ import annotations

from typing import Any

from shared.records import (
    ANYTHING,
    BOOLEAN,
    COUNT,
    COUNT_OR_NULL,
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
    or_null,
    record,
    selection,
)

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
