"""Threads: create, read, change, delete, search, count, and the newest state."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify, request

from shared import runs, threads
from shared.database import connection
from shared.errors import Invalid
from web.deployment_api.assistants import METADATA_BYTES
from web.deployment_api.control import tell
from web.deployment_api.pages import MAX_OFFSET, deployment, page, refuse, selected, settings
from web.openapi import operation
from web.validation import (
    JsonObject,
    ListOf,
    OneOf,
    QueryBoolean,
    QueryList,
    Schema,
    StrictInteger,
    StrictString,
    UuidField,
    load,
    load_query,
    uuid_path,
)

bp = Blueprint("threads", __name__)

FIELDS = (
    "thread_id", "created_at", "updated_at", "state_updated_at", "metadata", "config", "status", "values",
    "interrupts",
)  # fmt: skip
STATE_FIELDS = (
    "values", "next", "tasks", "checkpoint", "metadata", "created_at", "parent_checkpoint", "interrupts",
)  # fmt: skip


class ThreadCreate(Schema):
    thread_id = UuidField()
    metadata = JsonObject(max_bytes=METADATA_BYTES, searchable=True)
    if_exists = OneOf("raise", "do_nothing")
    # refused while they are not served
    ttl = JsonObject()
    supersteps = ListOf(JsonObject())


class ThreadPatch(Schema):
    metadata = JsonObject(max_bytes=METADATA_BYTES, searchable=True, load_default=dict)
    ttl = JsonObject()  # refused while it is not served


class ThreadFilter(Schema):
    metadata = JsonObject(searchable=True)
    values = JsonObject()  # refused while it is not served
    status = OneOf("idle", "busy", "interrupted", "error")


class ThreadSearch(ThreadFilter):
    ids = ListOf(StrictString())
    limit = StrictInteger(minimum=1, maximum=1000, load_default=10)
    offset = StrictInteger(minimum=0, maximum=MAX_OFFSET, load_default=0)
    sort_by = OneOf(*threads.SORTABLE, load_default="updated_at")
    sort_order = OneOf("asc", "desc", load_default="desc")
    select = ListOf(OneOf(*FIELDS, "context"))
    extract = JsonObject()  # refused while it is not served


class StateQuery(Schema):
    subgraphs = QueryBoolean(load_default=False)
    select = QueryList(StrictString())


@bp.post("/threads")
@operation("Create a thread", body=ThreadCreate, errors=(409,))
def create_thread() -> Response:
    body = load(ThreadCreate)
    refuse(body, "ttl", "supersteps")
    with connection() as conn:
        return jsonify(threads.record(threads.create(conn, deployment().id, **body)))


@bp.get("/threads/<thread_id>")
@operation("Get a thread", errors=(404,))
def get_thread(thread_id: str) -> Response:
    key = uuid_path(thread_id, "thread_id")
    with connection() as conn:
        return jsonify(threads.record(threads.get(conn, deployment().id, key)))


@bp.patch("/threads/<thread_id>")
@operation("Merge metadata into a thread", body=ThreadPatch, errors=(404,))
def change_thread(thread_id: str) -> Response | tuple[str, int]:
    key = uuid_path(thread_id, "thread_id")
    body = load(ThreadPatch)
    refuse(body, "ttl")
    with connection() as conn:
        row = threads.update(conn, deployment().id, key, metadata=body["metadata"])
    if request.headers.get("Prefer") == "return=minimal":
        return "", 204
    return jsonify(threads.record(row))


@bp.delete("/threads/<thread_id>")
@operation("Delete a thread with its runs and checkpoints", status=204, errors=(404,))
def delete_thread(thread_id: str) -> tuple[str, int]:
    key = uuid_path(thread_id, "thread_id")
    with connection() as conn:
        live = runs.delete_thread(conn, deployment().id, key)
    tell(live, settings().event_retention_seconds)
    return "", 204


@bp.post("/threads/search")
@operation("Search threads", body=ThreadSearch, errors=(400,))
def search_threads() -> Response:
    body = load(ThreadSearch)
    refuse(body, "values", "extract")
    select = body.pop("select", None)
    body["ids"] = [_thread_id(text) for text in body.get("ids", ())]
    paging = {name: body.pop(name) for name in ("limit", "offset", "sort_by", "sort_order")}
    with connection() as conn:
        rows = threads.search(conn, deployment().id, **paging, **body)
        total = threads.count(conn, deployment().id, **body)
    records = selected([threads.record(row) for row in rows], select)
    return page(records, offset=paging["offset"], limit=paging["limit"], total=total)


def _thread_id(text: str) -> Any:
    try:
        return uuid_path(text, "thread_id")
    except Invalid:
        raise Invalid(f"Invalid thread ID {text}", loc=("body", "ids"), status=400) from None


@bp.post("/threads/count")
@operation("Count threads", body=ThreadFilter)
def count_threads() -> Response:
    body = load(ThreadFilter)
    refuse(body, "values")
    with connection() as conn:
        return jsonify(threads.count(conn, deployment().id, **body))


@bp.get("/threads/<thread_id>/state")
@operation("Get a thread's newest state", query=StateQuery, errors=(404,))
def get_state(thread_id: str) -> Response:
    """The state after the last run that ended; `subgraphs` adds what is known of waiting subgraphs."""
    key = uuid_path(thread_id, "thread_id")
    query = load_query(StateQuery)
    with connection() as conn:
        state = threads.state(conn, deployment().id, key)
    if not query["subgraphs"]:
        state["tasks"] = [{**task, "state": None} for task in state["tasks"]]
    return jsonify(_selected_state(state, query.get("select")))


def _selected_state(state: dict[str, Any], select: list[str] | None) -> dict[str, Any]:
    if not select:
        return state
    shown: dict[str, Any] = {}
    for name in select:
        if name.startswith("values."):
            key = name.removeprefix("values.")
            shown.setdefault("values", {})
            if isinstance(state["values"], dict) and key in state["values"]:
                shown["values"][key] = state["values"][key]
        elif name in STATE_FIELDS:
            shown[name] = state[name]
        else:
            raise Invalid(f"Invalid select field {name!r}", loc=("query", "select"))
    return shown
