"""A thread's state: the newest state, the state at a checkpoint, the history, and updates that no run makes.

The thread's row holds the newest state. It also answers a history of one state when that state has no tasks left.
A graph host answers everything else, since only the graph can interpret its checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

import orjson
from flask import Response, jsonify
from marshmallow import ValidationError

from shared import thread_updates
from shared.errors import Invalid
from shared.infra.postgres import connection
from shared.records import (
    ANYTHING,
    ID,
    INTERRUPT,
    OBJECT,
    OBJECT_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    TIME_OR_NULL,
    listed,
    or_null,
    record,
    selection,
)
from shared.runs.configurable import CHECKPOINT_KEYS
from shared.threads import checkpoints, records, state
from shared.threads.state import Newest
from shared.user_code import filters
from shared.user_code.authorization import Ask, Granted
from web.deployment_api.assistants import METADATA_BYTES
from web.deployment_api.runs.run_request import (
    CheckpointConfig,
    CheckpointId,
    CheckpointMap,
    checkpoint_named,
)
from web.gate.context import allow, allow_all, deployment, metadata_of, user_document
from web.schemas import fields
from web.schemas.openapi_examples import MESSAGES
from web.schemas.operations import RouteGroup

bp = RouteGroup("states", section="State and history", switches=("disable_threads",))

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

FIELDS = (
    "values", "next", "tasks", "checkpoint", "metadata", "created_at", "parent_checkpoint", "interrupts",
)  # fmt: skip
MAX_HISTORY = 1000


class Before(fields.Field):
    """A checkpoint's id, or the object around it that some clients send."""

    type_rule = fields.Rule("must be a checkpoint id, or an object with a checkpoint_id", "value_error")
    json_schema: ClassVar[dict[str, Any]] = {**OBJECT, "type": ["string", "object"]}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if isinstance(value, dict):
            value = value.get("configurable") or value
        if isinstance(value, dict):
            value = value.get("checkpoint_id")
        if not isinstance(value, str):
            raise ValidationError([self.type_rule])
        return value


class Values(fields.Field):
    """A state update: an object, an array, or null."""

    type_rule = fields.Rule("must be an object, an array or null", "value_error")
    json_schema: ClassVar[dict[str, Any]] = {"anyOf": [OBJECT, {"type": "array", "items": {}}]}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if isinstance(value, dict | list):
            return value
        raise ValidationError([self.type_rule])


class StateQuery(fields.Schema):
    subgraphs = fields.QueryBoolean(load_default=False)
    select = fields.QueryList(fields.StrictString())


class CheckpointToRead(fields.Schema):
    """A checkpoint to read. Any text is accepted as its id: an unknown checkpoint has an empty state."""

    checkpoint_id = fields.StrictString(allow_none=True)
    checkpoint_ns = fields.StrictString(allow_none=True)
    checkpoint_map = CheckpointMap(allow_none=True)


class StateAt(fields.Schema):
    example: ClassVar[dict[str, Any]] = {
        "checkpoint": {"checkpoint_id": "0198c0de-0000-7000-8000-000000000000"}
    }

    checkpoint = fields.Nested(CheckpointToRead, required=True)
    subgraphs = fields.StrictBoolean(load_default=False)
    select = fields.ListOf(fields.StrictString())


class HistoryQuery(fields.Schema):
    limit = fields.QueryInteger(minimum=1, maximum=MAX_HISTORY, load_default=1)
    before = fields.StrictString()


class History(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"limit": 10}

    limit = fields.StrictInteger(minimum=1, maximum=MAX_HISTORY, load_default=1)
    before = Before(allow_none=True)
    metadata = fields.Filter(allow_none=True)
    checkpoint = fields.Nested(CheckpointToRead, allow_none=True)
    select = fields.ListOf(fields.StrictString(), allow_none=True)


class StateUpdate(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"values": MESSAGES}

    values = Values(allow_none=True, load_default=None)
    as_node = fields.StrictString(allow_none=True, load_default=None)
    checkpoint = fields.Nested(CheckpointConfig, allow_none=True)
    checkpoint_id = CheckpointId(allow_none=True)


class StatePatch(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"metadata": {"topic": "greetings"}}

    metadata = fields.JsonObject(max_bytes=METADATA_BYTES, searchable=True, load_default=dict)


@bp.operation(
    "GET /threads/<thread_id>/state",
    "Get a thread's newest state",
    role="read",
    query=StateQuery,
    answer=STATE,
    errors=(404, 409, 424, 504),
)
def get_state(thread_id: UUID, query: dict[str, Any]) -> Response:
    """Get the newest state, usually from the thread's row.

    A graph host computes it while a run is in progress, and when `subgraphs` is set and a subgraph is interrupted.
    """
    newest = _newest(thread_id, allow("threads", "read", thread_id=thread_id))
    in_subgraph = any(task["checkpoint"] for task in newest.record["tasks"])
    if newest.graph_id and (newest.is_behind or (query["subgraphs"] and in_subgraph)):
        document = {"op": "state", "checkpoint": None, "subgraphs": query["subgraphs"]}
        return _respond(_call_host(thread_id, newest, document), query.get("select"), "query")
    return jsonify(_selected(newest.record, query.get("select"), "query"))


@bp.operation(
    "GET /threads/<thread_id>/state/<checkpoint_id>",
    "Get a thread's state at a checkpoint",
    role="read",
    query=StateQuery,
    answer=STATE,
    errors=(404, 409, 424, 504),
)
def get_state_at(thread_id: UUID, checkpoint_id: str, query: dict[str, Any]) -> Response:
    """Get the state at a checkpoint. The state of an unknown checkpoint is empty."""
    raw = _state_at(thread_id, {"checkpoint_id": checkpoint_id}, query["subgraphs"])
    return _respond(raw, query.get("select"), "query")


@bp.operation(
    "POST /threads/<thread_id>/state/checkpoint",
    "Get a thread's state at a checkpoint, optionally of a subgraph",
    role="read",
    body=StateAt,
    answer=STATE,
    errors=(404, 409, 424, 504),
)
def find_state(thread_id: UUID, body: dict[str, Any]) -> Response:
    raw = _state_at(thread_id, body["checkpoint"], body["subgraphs"])
    return _respond(raw, body.get("select"), "body")


@bp.operation(
    "GET /threads/<thread_id>/history",
    "List a thread's states, newest first",
    role="read",
    slow=True,
    query=HistoryQuery,
    answer=STATES,
    errors=(404, 409, 424, 504),
)
def list_history(thread_id: UUID, query: dict[str, Any]) -> Response:
    return _respond(_history(thread_id, query), None, "query")


@bp.operation(
    "POST /threads/<thread_id>/history",
    "List a thread's states, newest first",
    role="read",
    slow=True,
    body=History,
    answer=STATES,
    errors=(404, 409, 424, 504),
)
def search_history(thread_id: UUID, body: dict[str, Any]) -> Response:
    """List states. `before` limits them to older checkpoints; `checkpoint.checkpoint_ns` selects a subgraph."""
    return _respond(_history(thread_id, body), body.get("select"), "body")


@bp.operation(
    "POST /threads/<thread_id>/state",
    "Update a thread's state",
    role="run",
    body=StateUpdate,
    answer=STATE_UPDATED,
    errors=(400, 404, 409, 424, 504),
)
def update_state(thread_id: UUID, body: dict[str, Any]) -> Response:
    """Apply `values` through the graph's reducers, as if the node `as_node` had returned them.

    `as_node` decides which nodes run next. An update of an older checkpoint forks the thread. An unknown checkpoint is
    refused: the update would otherwise start the thread over from an empty state.
    """
    checkpoint = {
        "checkpoint_id": body.get("checkpoint_id"),
        **checkpoint_named(body.get("checkpoint"), thread_id),
    }
    step = [{"values": body["values"], "as_node": body["as_node"]}]
    granted = allow_all([Ask("threads", action, {"thread_id": thread_id}) for action in ("update", "read")])
    return jsonify(apply_supersteps(thread_id, [step], checkpoint=_keys_of(checkpoint), grants=granted))


@bp.operation(
    "PATCH /threads/<thread_id>/state",
    "Merge metadata into a thread",
    role="run",
    body=StatePatch,
    answer=records.RECORD.schema,
    errors=(404,),
)
def patch_state(thread_id: UUID, body: dict[str, Any]) -> Response:
    granted = allow("threads", "update", thread_id=thread_id, metadata=body["metadata"])
    missing = records.missing_for_update()
    with connection() as conn:
        filters.require_thread(conn, deployment().id, thread_id, granted.filter, lock=True, error=missing)
        row = records.update(conn, deployment().id, thread_id, metadata=metadata_of(granted))
    return jsonify(records.RECORD.show(row))


def apply_supersteps(
    thread_id: UUID,
    supersteps: list[list[dict[str, Any]]],
    *,
    checkpoint: dict[str, Any] | None = None,
    grants: Sequence[Granted] = (),
) -> dict[str, Any]:
    """Apply supersteps in order, to the newest state or to the one at `checkpoint`. Returns the new checkpoint.

    Raises NotFound if a filter of `grants` hides the thread, and Invalid if the thread has no graph id.
    """
    with connection() as conn:
        for granted in grants:
            filters.require_thread(conn, deployment().id, thread_id, granted.filter, lock=True)
        newest = state.newest(conn, deployment().id, thread_id)
        if not newest.graph_id:
            raise Invalid(
                f"Thread '{thread_id}' has no assigned graph ID: run a graph on it, or create it with"
                " metadata.graph_id",
                status=400,
            )
        state.require_quiet(conn, deployment().id, thread_id)
        checkpoints.require(conn, deployment().id, thread_id, checkpoint or {})
    new_checkpoint = thread_updates.apply(
        deployment(), thread_id, newest, supersteps, user=user_document(), checkpoint=checkpoint
    )
    return {
        "checkpoint": new_checkpoint,
        "configurable": new_checkpoint,
        "checkpoint_id": new_checkpoint["checkpoint_id"],
    }


def _newest(thread_id: UUID, granted: Granted) -> Newest:
    with connection() as conn:
        filters.require_thread(conn, deployment().id, thread_id, granted.filter)
        return state.newest(conn, deployment().id, thread_id)


def _state_at(thread_id: UUID, checkpoint: dict[str, Any], subgraphs: bool) -> bytes:
    newest = _newest(thread_id, allow("threads", "read", thread_id=thread_id))
    document = {"op": "state", "checkpoint": _keys_of(checkpoint), "subgraphs": subgraphs}
    if newest.graph_id:
        return _call_host(thread_id, newest, document)
    checkpoint_id = checkpoint.get("checkpoint_id")
    named = {"checkpoint_ns": "", **_keys_of(checkpoint), "thread_id": thread_id} if checkpoint_id else None
    return orjson.dumps({"values": {}, **state.EMPTY, "checkpoint": named, "checkpoint_id": checkpoint_id})


def _history(thread_id: UUID, criteria: dict[str, Any]) -> bytes:
    newest = _newest(thread_id, allow("threads", "read", thread_id=thread_id))
    if not newest.graph_id:
        return b"[]"
    document = {
        "op": "history",
        "limit": criteria["limit"],
        "before": _before(criteria.get("before")),
        "filter": criteria.get("metadata"),
        "checkpoint_ns": (criteria.get("checkpoint") or {}).get("checkpoint_ns"),
        "values": _shows_values(criteria.get("select")),
    }
    bounds = (document["before"], document["filter"], document["checkpoint_ns"])
    if document["limit"] == 1 and newest.is_finished and not any(bounds):
        return orjson.dumps([{**newest.record, "metadata": newest.checkpoint_metadata}])
    return _call_host(thread_id, newest, document)


def _shows_values(select: list[str] | None) -> bool:
    return not select or any(name == "values" or name.startswith("values.") for name in select)


def _before(checkpoint_id: str | None) -> str | None:
    """Return a checkpoint id in the form in which it is stored. An id that is not a UUID sets no bound."""
    try:
        return str(UUID(checkpoint_id)) if checkpoint_id else None
    except ValueError:
        return None


def _call_host(thread_id: UUID, newest: Newest, document: dict[str, Any]) -> bytes:
    return thread_updates.call_host(deployment(), thread_id, newest, document, user=user_document())


def _keys_of(checkpoint: dict[str, Any]) -> dict[str, Any]:
    return {name: checkpoint[name] for name in CHECKPOINT_KEYS if checkpoint.get(name)}


def _respond(document: bytes, select: list[str] | None, part: str) -> Response:
    """Return a state or a list of states. Without `select` the JSON is passed on unparsed."""
    if not select:
        return Response(document, mimetype="application/json")
    parsed = orjson.loads(document)
    if isinstance(parsed, list):
        return jsonify([_selected(record, select, part) for record in parsed])
    return jsonify(_selected(parsed, select, part))


def _selected(record: dict[str, Any], select: list[str] | None, part: str) -> dict[str, Any]:
    if not select:
        return record
    shown: dict[str, Any] = {}
    for name in select:
        if name.startswith("values."):
            key = name.removeprefix("values.")
            shown.setdefault("values", {})
            if isinstance(record["values"], dict) and key in record["values"]:
                shown["values"][key] = record["values"][key]
        elif name in FIELDS:
            shown[name] = record[name]
        else:
            raise Invalid(f"Invalid select field {name!r}", loc=(part, "select"))
    return shown
