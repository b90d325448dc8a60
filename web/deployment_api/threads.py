"""Threads: create, read, change, delete, search, count; copy, prune, storage; the stream of a thread's runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from operator import itemgetter
from typing import Any, ClassVar
from uuid import UUID, uuid4

from flask import Response, jsonify, request
from sqlalchemy import Connection
from uuid_utils.compat import uuid7

from shared import thread_copies, thread_stream
from shared.access.idempotency import HEADER
from shared.errors import Conflict, Invalid, NotFound, RunyardError
from shared.eventlog.events import EXPIRED
from shared.eventlog.hub import hub
from shared.infra.postgres import connection, driver
from shared.infra.replica import read
from shared.records import COUNT, ID, listed, mapped, record, selection
from shared.removal import expiry
from shared.runs import cancel
from shared.runs.signals import publish_cancels
from shared.thread_stream import MODES, RUN_MODES, StreamPosition, ThreadEvent, ThreadStream
from shared.threads import records
from shared.threads.records import TTL_STRATEGIES
from shared.user_code import filters
from shared.user_code.authorization import Ask
from web.deployment_api import states
from web.deployment_api.assistants import METADATA_BYTES
from web.deployment_api.crons import Moment
from web.deployment_api.runs import stream_filter
from web.deployment_api.runs.run_request import Command
from web.deployment_api.states import Values
from web.gate.context import allow, allow_all, deployment, metadata_of, settings
from web.gate.idempotency import Repeated, once
from web.http import sse
from web.http.responses import PAGE_HEADERS, page, select_fields
from web.schemas import fields
from web.schemas.operations import RouteGroup
from web.schemas.validation import load_query, uuid_path

bp = RouteGroup("threads", section="Threads", switches=("disable_threads",))

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

MISSING = "At least one thread not found or not authorized"
MAX_TTL_MINUTES = 52_560_000  # a hundred years


class Ttl(fields.Schema):
    """A thread's time to live, in minutes after its last change."""

    ttl = fields.StrictNumber(required=True, minimum=0, maximum=MAX_TTL_MINUTES)
    strategy = fields.OneOf(*TTL_STRATEGIES, load_default="delete")


class SuperstepUpdate(fields.Schema):
    values = Values(allow_none=True)
    command = fields.Nested(Command, allow_none=True)
    as_node = fields.StrictString(required=True)


class Superstep(fields.Schema):
    updates = fields.ListOf(fields.Nested(SuperstepUpdate), required=True, not_empty=True, max_items=100)


class ThreadCreate(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"metadata": {"topic": "greetings"}}

    thread_id = fields.UuidField()
    metadata = fields.JsonObject(max_bytes=METADATA_BYTES, searchable=True)
    if_exists = fields.OneOf("raise", "do_nothing")
    ttl = fields.Nested(Ttl)
    supersteps = fields.ListOf(fields.Nested(Superstep), max_items=1000)


class ThreadPatch(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"metadata": {"topic": "greetings"}}

    metadata = fields.JsonObject(max_bytes=METADATA_BYTES, searchable=True, load_default=dict)
    ttl = fields.Nested(Ttl)


class ThreadQuery(fields.Schema):
    include = fields.QueryList(fields.StrictString(), load_default=list)


class ThreadPrune(fields.Schema):
    example: ClassVar[dict[str, Any]] = {
        "thread_ids": ["0198c0de-0000-7000-8000-000000000000"],
        "strategy": "keep_latest",
    }

    thread_ids = fields.ListOf(fields.UuidField(), required=True, max_items=1000)
    strategy = fields.OneOf(*TTL_STRATEGIES, load_default="delete")


class ThreadFilter(fields.Schema):
    metadata = fields.Filter()
    values = fields.Filter()
    status = fields.OneOf("idle", "busy", "interrupted", "error")
    since = Moment(allow_none=True)
    until = Moment(allow_none=True)


class ThreadSearch(ThreadFilter):
    example: ClassVar[dict[str, Any]] = {"limit": 10}

    ids = fields.ListOf(fields.StrictString())
    limit = fields.StrictInteger(minimum=1, maximum=1000, load_default=10)
    offset = fields.StrictInteger(minimum=0, maximum=fields.MAX_OFFSET, load_default=0)
    sort_by = fields.OneOf(*records.SORTABLE, load_default="updated_at")
    sort_order = fields.OneOf("asc", "desc", load_default="desc")
    select = fields.ListOf(fields.OneOf(*records.RECORD.selectable, "context"))
    extract = fields.JsonObject()


@bp.operation(
    "POST /threads",
    "Create a thread",
    role="run",
    body=ThreadCreate,
    answer=records.RECORD.schema,
    errors=(400, 404, 409, 424, 504),
    idempotent=True,
)
def create_thread(body: dict[str, Any]) -> Response:
    """Create a thread. `supersteps` are state updates, applied in order. If one fails, the thread is removed again."""
    ttl, supersteps = body.pop("ttl", None), body.pop("supersteps", None)
    if_exists, key = body.get("if_exists", "raise"), body.get("thread_id") or uuid7()
    granted = allow(
        "threads", "create", thread_id=key, metadata=body.get("metadata", {}), if_exists=if_exists
    )
    # A bare insert is one statement and needs no transaction. A TTL, a filter or an idempotency key adds statements
    # that must commit with it.
    is_bare = not (ttl or granted.filter or HEADER in request.headers)
    with driver() if is_bare else connection() as conn:
        keep = once(conn)
        row = records.create(
            conn, deployment().id, thread_id=key, metadata=metadata_of(granted), if_exists=if_exists
        )
        if isinstance(conn, Connection):
            if not row.is_new and not filters.is_thread_visible(conn, deployment().id, key, granted.filter):
                raise records.already_exists(key)
            if row.is_new and ttl:
                expiry.set_ttl(conn, deployment().id, row.record["thread_id"], ttl)
        if not row.is_new or not supersteps:
            return keep(jsonify(records.RECORD.show(row.record)))
    return _apply_supersteps(row.record["thread_id"], [step["updates"] for step in supersteps])


def _apply_supersteps(thread_id: UUID, supersteps: list[list[dict[str, Any]]]) -> Response:
    """Apply supersteps to a new thread and return its record; delete the thread if they fail.

    Stores the response under the idempotency key only after the updates. When two requests with one key build threads
    at the same time, the later one gets the response of the first, and its own thread is deleted.
    """
    try:
        states.apply_supersteps(thread_id, supersteps)
        with connection() as conn:
            keep = once(conn)
            return keep(jsonify(records.RECORD.show(records.get(conn, deployment().id, thread_id))))
    except (RunyardError, Repeated):
        with connection() as conn:
            live = cancel.delete_thread(conn, deployment().id, thread_id)
        publish_cancels(live, settings().event_retention_seconds)
        raise


@bp.operation(
    "GET /threads/<thread_id>",
    "Get a thread",
    role="read",
    query=ThreadQuery,
    answer=records.RECORD.schema,
    errors=(404,),
)
def get_thread(thread_id: UUID, query: dict[str, Any]) -> Response:
    """Get a thread. `include=ttl` adds its time to live and when it expires, `include=title` adds its title.

    The title is `metadata.title`, else the text of the first message by a person, at most 120 characters; else empty.
    """
    include = query["include"]
    granted = allow("threads", "read", thread_id=thread_id)
    with connection() as conn:
        filters.require_thread(conn, deployment().id, thread_id, granted.filter)
        record = records.RECORD.show(records.get(conn, deployment().id, thread_id))
        if "ttl" in include and (ttl := expiry.ttl_of(conn, deployment().id, thread_id)):
            record["ttl"] = ttl
        if "title" in include:
            record["title"] = records.titles(conn, deployment().id, [thread_id]).get(thread_id, "")
    return jsonify(record)


@bp.operation(
    "PATCH /threads/<thread_id>",
    "Merge metadata into a thread",
    role="run",
    body=ThreadPatch,
    answer=records.RECORD.schema,
    empty=(204,),
    errors=(404,),
)
def change_thread(thread_id: UUID, body: dict[str, Any]) -> Response | tuple[str, int]:
    granted = allow("threads", "update", thread_id=thread_id, metadata=body["metadata"])
    with connection() as conn:
        filters.require_thread(
            conn, deployment().id, thread_id, granted.filter, lock=True, error=records.missing_for_update()
        )
        row = records.update(conn, deployment().id, thread_id, metadata=metadata_of(granted))
        if body.get("ttl"):
            expiry.set_ttl(conn, deployment().id, thread_id, body["ttl"])
    if request.headers.get("Prefer") == "return=minimal":
        return "", 204
    return jsonify(records.RECORD.show(row))


@bp.operation(
    "DELETE /threads/<thread_id>",
    "Delete a thread and its runs and checkpoints",
    role="run",
    slow=True,
    status=204,
    errors=(404,),
)
def delete_thread(thread_id: UUID) -> None:
    granted = allow("threads", "delete", thread_id=thread_id)
    with connection() as conn:
        filters.require_thread(conn, deployment().id, thread_id, granted.filter, lock=True)
        live = cancel.delete_thread(conn, deployment().id, thread_id)
    publish_cancels(live, settings().event_retention_seconds)
    thread_stream.notify(thread_id)


@bp.operation(
    "POST /threads/<thread_id>/copy",
    "Copy a thread",
    role="run",
    slow=True,
    answer=records.RECORD.schema,
    errors=(409,),
)
def copy_thread(thread_id: UUID) -> Response:
    """Copy the metadata and checkpoints of a thread, but not its runs, into a new thread.

    Returns 409 if the thread does not exist.
    """
    target = uuid4()
    source, _new = allow_all(
        [Ask("threads", "read", {"thread_id": thread_id}), Ask("threads", "create", {"thread_id": target})]
    )
    try:
        with connection() as conn:
            filters.require_thread(conn, deployment().id, thread_id, source.filter)
            return jsonify(
                records.RECORD.show(thread_copies.copy(conn, deployment().id, thread_id, target=target))
            )
    except NotFound as error:
        raise Conflict(error.message) from error


@bp.operation(
    "POST /threads/prune",
    "Delete threads, or all their checkpoints except the newest",
    role="run",
    slow=True,
    body=ThreadPrune,
    answer=PRUNED,
)
def prune_threads(body: dict[str, Any]) -> Response:
    """Delete threads, or all their checkpoints except the newest. Returns the number of threads pruned.

    Unknown ids are not counted. `keep_latest` skips threads with a pending or running run, and does not count them.

    If the deployment's authorization limits the caller to some threads, one id outside of them, or an unknown one,
    fails the whole request with 404.
    """
    asks = [Ask("threads", "delete", {"thread_id": key}) for key in body["thread_ids"]]
    whole = Ask("threads", "delete", {"thread_ids": [str(key) for key in body["thread_ids"]]})
    of_all, *of_each = allow_all([whole, *asks])
    with connection() as conn:
        for key, granted in sorted(zip(body["thread_ids"], of_each, strict=True), key=itemgetter(0)):
            for filter in (of_all.filter, granted.filter):
                filters.require_thread(conn, deployment().id, key, filter, lock=True, error=NotFound(MISSING))
        pruned, stopped = thread_copies.prune(
            conn, deployment().id, body["thread_ids"], strategy=body["strategy"]
        )
    publish_cancels(stopped, settings().event_retention_seconds)
    return jsonify(pruned_count=pruned)


@bp.operation(
    "GET /threads/<thread_id>/storage",
    "Get the size of a thread's checkpoints",
    role="read",
    answer=STORAGE,
    errors=(404,),
)
def get_storage(thread_id: UUID) -> Response:
    """Get sizes in bytes, as stored. A small channel value is stored in its checkpoint and counted there."""
    granted = allow("threads", "read", thread_id=thread_id)
    with connection() as conn:
        filters.require_thread(conn, deployment().id, thread_id, granted.filter)
        return jsonify(thread_copies.storage(conn, deployment().id, thread_id))


@bp.operation(
    "POST /threads/search",
    "Search threads",
    role="read",
    slow=True,
    body=ThreadSearch,
    answer=listed(selection(records.RECORD.schema)),
    headers=PAGE_HEADERS,
    errors=(400,),
)
def search_threads(body: dict[str, Any]) -> Response:
    """Search threads. `since` and `until` bound the time at which a thread was last updated.

    `extract` maps aliases to paths such as `values.topic` or `metadata.tags[0]`, whose values are in `extracted`. The path
    `title` is the thread's title: `metadata.title`, else the text of the first message by a person.
    """
    select, paths = body.pop("select", None), parse_paths(body.pop("extract", {}))
    body["ids"] = [_thread_id(text) for text in body.get("ids", ())]
    paging = {name: body.pop(name) for name in ("limit", "offset", "sort_by", "sort_order")}
    _allow_search(body, limit=paging["limit"], offset=paging["offset"])

    needs_titles = any(path[0] == TITLE for path in paths.values())

    def search(conn: Connection) -> tuple[Any, dict[UUID, str], int]:
        rows, total = records.search(conn, deployment().id, **paging, **body)
        ids = [row["thread_id"] for row in rows if needs_titles]
        titles = records.titles(conn, deployment().id, ids) if ids else {}
        return rows, titles, total

    rows, titles, total = read(search)
    whole = [records.RECORD.show(row) for row in rows]
    shown = select_fields(whole, select)
    if paths:
        shown = [
            {**chosen, "extracted": extract_values({**record, TITLE: titles.get(record["thread_id"])}, paths)}
            for chosen, record in zip(shown, whole, strict=True)
        ]
    return page(shown, offset=paging["offset"], limit=paging["limit"], total=total)


def _allow_search(criteria: dict[str, Any], *, limit: int, offset: int) -> None:
    """Authorize a search. Narrows `criteria`, in place, to the threads that the caller may see. Raises Denied."""
    named = {"metadata": criteria.get("metadata", {}), "values": criteria.get("values", {})}
    granted = allow("threads", "search", **named, status=criteria.get("status"), limit=limit, offset=offset)
    criteria["metadata"] = metadata_of(granted)
    criteria["visible"] = filters.clause(granted.filter, "thread.metadata")


def _thread_id(text: str) -> Any:
    try:
        return uuid_path(text, "thread_id")
    except Invalid:
        raise Invalid(f"Invalid thread ID {text}", loc=("body", "ids"), status=400) from None


@bp.operation("POST /threads/count", "Count threads", role="read", slow=True, body=ThreadFilter, answer=COUNT)
def count_threads(body: dict[str, Any]) -> Response:
    _allow_search(body, limit=0, offset=0)
    return jsonify(read(records.count, deployment().id, **body))


MAX_PATHS = 10
TITLE = "title"
ROOTS = ("values", "metadata", "config", "interrupts", TITLE)
ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
STEP = re.compile(r"\.([^.\[\]]+)|\[(-?\d{1,9})\]")

Path = list[str | int]


def parse_paths(paths: Mapping[str, Any]) -> dict[str, Path]:
    """Return the steps of each path, by alias. Raises Invalid."""
    if len(paths) > MAX_PATHS:
        raise Invalid(f"extract: at most {MAX_PATHS} paths", loc=("body", "extract"))
    return {alias: _parse_path(alias, path) for alias, path in paths.items()}


def _parse_path(alias: str, path: Any) -> Path:
    loc = ("body", "extract", alias)
    if not ALIAS.match(alias):
        raise Invalid(f"extract: the alias {alias!r} is not an identifier", loc=loc)
    if not isinstance(path, str):
        raise Invalid(f"extract: the path of {alias!r} must be a string", loc=loc, kind="string_type")
    root = next((root for root in ROOTS if re.match(rf"{root}(?=[.\[]|\Z)", path)), None)
    if root is None:
        raise Invalid(f"extract: the path {path!r} must begin with one of {', '.join(ROOTS)}", loc=loc)
    steps: Path = [root]
    at = len(root)
    while at < len(path):
        step = STEP.match(path, at)
        if step is None:
            raise Invalid(f"extract: the path {path!r} is invalid from position {at} on", loc=loc)
        name, index = step.groups()
        steps.append(name if index is None else int(index))
        at = step.end()
    return steps


def extract_values(record: Mapping[str, Any], paths: Mapping[str, Path]) -> dict[str, Any]:
    """Return the value at each path, by alias; None for a path that leads nowhere."""
    return {alias: _value_at(record, path) for alias, path in paths.items()}


def _value_at(value: Any, path: Path) -> Any:
    for step in path:
        try:
            if isinstance(step, int) != isinstance(value, list):
                return None
            value = value[step]
        except (LookupError, TypeError):
            return None
    return value


class ThreadStreamQuery(fields.Schema):
    stream_mode = fields.QueryList(fields.OneOf(*MODES))


@bp.operation(
    "GET /threads/<thread_id>/stream",
    "Stream all runs of a thread, one after the other",
    role="read",
    long=True,
    query=ThreadStreamQuery,
    sse=True,
    errors=(404,),
)
def follow_thread(thread_id: UUID) -> Response:
    """Stream until the client disconnects. The mode `run_modes` sends the events and the end of each run, `lifecycle`
    only the beginning and the end, and `state_update` the thread's state after each change."""
    granted = allow("threads", "read", thread_id=thread_id)
    if granted.filter:
        with connection() as conn:
            filters.require_thread(conn, deployment().id, thread_id, granted.filter)
    stream = ThreadStream(
        deployment().id,
        thread_id,
        modes=load_query(ThreadStreamQuery).get("stream_mode") or (RUN_MODES,),
        position=StreamPosition.parse(request.headers.get("Last-Event-ID")),
        filter_of=lambda kwargs: stream_filter.creator_filter(kwargs, None),
        retention_seconds=settings().event_retention_seconds,
    )
    heartbeat = sse.HeartbeatTimer(settings().heartbeat_seconds)
    with ExitStack() as stack:
        wake_ups = stack.enter_context(hub().reader(thread_id, at=thread_stream.channel(thread_id)))
        stream.open()
        body = sse.chunks(stream.batches(wake_ups, heartbeat.quiet_seconds), heartbeat, _encode_event)
        stack.callback(body.close)
        return sse.event_stream(sse.Stream(body, holds=stack.pop_all(), on_disconnect=None), {})


def _encode_event(event: ThreadEvent) -> bytes:
    if event.name == EXPIRED.name:
        return sse.HISTORY_EXPIRED
    return sse.encode_parts(event.name, event.data, event.id.encode())
