"""Runs, with a thread or without: create, wait, stream, read, join, cancel, delete.

Whoever follows a run subscribes to its channel before its row exists, so nothing can be missed and the
log need not be read first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from uuid import UUID

from flask import Blueprint, Response, g, jsonify, request
from marshmallow import ValidationError
from uuid_utils.compat import uuid7

from shared import events, queues, runs, threads
from shared.database import connection, driver, dumps
from shared.errors import Invalid, NotFound, Unavailable
from shared.events import END, Event
from shared.models import RunStatus
from shared.runs import Created, RunRequest
from web import sse
from web.deployment_api.assistants import (
    CONFIG_BYTES,
    METADATA_BYTES,
    ConfigField,
    refuse_two_configurations,
)
from web.deployment_api.control import tell
from web.deployment_api.pages import deployment, selected, settings
from web.deployment_api.threads import refuse
from web.openapi import operation
from web.validation import (
    AnyJson,
    Field,
    ItemOrList,
    JsonObject,
    OneOf,
    QueryBoolean,
    QueryInteger,
    QueryList,
    Rule,
    Schema,
    StrictBoolean,
    StrictString,
    load,
    load_query,
    uuid_path,
)

bp = Blueprint("runs", __name__)

STREAM_MODES = (
    "values", "messages", "messages-tuple", "tasks", "checkpoints", "updates", "events", "debug", "custom",
    "tools", "lifecycle",
)  # fmt: skip
RUN_FIELDS = (
    "run_id", "thread_id", "assistant_id", "created_at", "updated_at", "status", "metadata", "kwargs",
    "multitask_strategy", "langsmith_session_name", "cancel_reason",
)  # fmt: skip


class NodeNames(Field):
    """`"*"` or an array of node names."""

    type_rule = Rule('must be "*" or an array of node names', "value_error")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if value == "*" or (isinstance(value, list) and all(isinstance(name, str) for name in value)):
            return value
        raise ValidationError([self.type_rule])


class RunCreate(Schema):
    assistant_id = StrictString(required=True, min_length=1)
    input = AnyJson()
    command = JsonObject(allow_none=True)
    metadata = JsonObject(max_bytes=METADATA_BYTES, searchable=True)
    config = ConfigField(max_bytes=CONFIG_BYTES)
    context = JsonObject(max_bytes=CONFIG_BYTES)
    interrupt_before = NodeNames(allow_none=True)
    interrupt_after = NodeNames(allow_none=True)
    stream_mode = ItemOrList(OneOf(*STREAM_MODES), allow_none=True)
    stream_subgraphs = StrictBoolean()
    stream_resumable = StrictBoolean()
    multitask_strategy = OneOf("reject", "rollback", "interrupt", "enqueue", allow_none=True)
    if_not_exists = OneOf("create", "reject", allow_none=True)
    on_completion = OneOf("delete", "keep", allow_none=True)
    on_disconnect = OneOf("cancel", "continue", allow_none=True)
    durability = OneOf("sync", "async", "exit", allow_none=True)
    checkpoint_during = StrictBoolean(allow_none=True)
    langsmith_tracer = JsonObject(allow_none=True)  # names a vendor's project: means nothing here
    # refused while they are not served
    webhook = AnyJson()
    after_seconds = AnyJson()
    checkpoint = AnyJson()
    checkpoint_id = AnyJson()
    feedback_keys = AnyJson()
    strict_resume = AnyJson()


NOT_SERVED = ("webhook", "after_seconds", "checkpoint", "checkpoint_id", "feedback_keys", "strict_resume")
COMMANDS = ("resume", "update", "goto")


class ListQuery(Schema):
    limit = QueryInteger(minimum=1, maximum=1000, load_default=10)
    offset = QueryInteger(minimum=0, load_default=0)
    status = StrictString()
    select = QueryList(StrictString())


class JoinQuery(Schema):
    stream_mode = QueryList(StrictString())
    cancel_on_disconnect = QueryBoolean(load_default=False)
    namespace = QueryList(StrictString())


class CancelQuery(Schema):
    wait = QueryBoolean(load_default=False)
    action = OneOf("interrupt", "rollback", load_default="interrupt")
    reason = StrictString(max_length=1024)


# --- creating ------------------------------------------------------------------------------------


@bp.post("/threads/<thread_id>/runs")
@operation("Create a run on a thread", body=RunCreate, errors=(400, 404, 409, 429))
def create_run(thread_id: str) -> Response:
    return _in_background(_thread(thread_id))


@bp.post("/runs")
@operation("Create a run without a thread", body=RunCreate, errors=(400, 404, 409, 429))
def create_stateless_run() -> Response:
    return _in_background(None)


@bp.post("/threads/<thread_id>/runs/stream")
@operation("Create a run on a thread and stream its events", body=RunCreate, sse=True, errors=(400, 404, 409))
def stream_run(thread_id: str) -> Response:
    return _streamed(_thread(thread_id))


@bp.post("/runs/stream")
@operation("Create a run without a thread and stream its events", body=RunCreate, sse=True, errors=(400, 404))
def stream_stateless_run() -> Response:
    return _streamed(None)


@bp.post("/threads/<thread_id>/runs/wait")
@operation("Create a run on a thread and wait for its output", body=RunCreate, errors=(400, 404, 409))
def wait_for_run(thread_id: str) -> Response:
    return _awaited(_thread(thread_id))


@bp.post("/runs/wait")
@operation("Create a run without a thread and wait for its output", body=RunCreate, errors=(400, 404))
def wait_for_stateless_run() -> Response:
    return _awaited(None)


def _thread(thread_id: str) -> UUID:
    return uuid_path(thread_id, "thread_id", message="Invalid thread ID: must be a UUID")


def _asked() -> tuple[RunRequest, dict[str, Any]]:
    """The body as the rules want it, and the rest."""
    body = load(RunCreate)
    refuse(body, *NOT_SERVED)
    refuse_two_configurations(body)
    if "checkpoint_id" in body.get("config", {}).get("configurable", {}):
        raise Invalid(
            "config.configurable.checkpoint_id: not supported by this server",
            loc=("body", "config", "configurable", "checkpoint_id"),
        )
    if request.args.get("namespace"):
        raise Invalid("namespace: not supported by this server", loc=("query", "namespace"))
    body = {name: value for name, value in body.items() if value is not None}
    during = body.pop("checkpoint_during", None)
    if during is not None:
        body.setdefault("durability", "async" if during else "exit")
    body["command"] = _command(body.pop("command", None))
    body["stream_mode"] = body.get("stream_mode") or ["values"]
    body.pop("langsmith_tracer", None)
    on_disconnect = body.pop("on_disconnect", "continue")
    return RunRequest(**body), {"on_disconnect": on_disconnect}


def _command(command: dict[str, Any] | None) -> dict[str, Any] | None:
    """A command with known parts only; an empty one acts like none."""
    if not command:
        return None
    unknown = sorted(set(command) - set(COMMANDS))
    if unknown:
        raise Invalid(f"command: unknown key {unknown[0]!r}", loc=("body", "command", unknown[0]))
    return {name: value for name, value in command.items() if value is not None} or None


def _create(asked: RunRequest, thread_id: UUID | None, run_id: UUID) -> Created:
    """Commit the run's row, then ring."""
    # What may displace other runs is several statements in one transaction, the rest one that inserts.
    alone = thread_id is None or asked.multitask_strategy == "enqueue"
    with driver() if alone else connection() as conn:
        created = runs.create(
            conn,
            deployment(),
            asked,
            thread_id=thread_id,
            run_id=run_id,
            request_id=g.get("request_id", ""),
            max_pending=settings().max_pending_per_thread,
        )
    tell(created.displaced, settings().event_retention_seconds)
    queues.enqueue_run(created.pool, created.run_id)
    return created


def _in_background(thread_id: UUID | None) -> Response:
    asked, _ = _asked()
    created = _create(asked, thread_id, uuid7())
    response = jsonify(runs.record(created.row))
    response.headers["Content-Location"] = _location(thread_id, created.run_id)
    return response


def _location(thread_id: UUID | None, run_id: UUID, suffix: str = "") -> str:
    """A path from the deployment's own root: clients join it to the base address they know."""
    root = "" if thread_id is None else f"/threads/{thread_id}"
    return f"{root}/runs/{run_id}{suffix}"


def _streamed(thread_id: UUID | None) -> Response:
    asked, rest = _asked()
    run_id = uuid7()
    with ExitStack() as stack:
        reader = stack.enter_context(events.hub().reader(run_id, unseen=True))
        created = _create(asked, thread_id, run_id)
        follower = Follower(created.run_id, created.thread_id, cancels=rest["on_disconnect"] == "cancel")
        body = sse.body(follower.batches(reader, after=0), follower.clock, with_ids=asked.stream_resumable)
        return sse.event_stream(
            follower.stream(body, stack.pop_all()),
            {
                "Location": _location(thread_id, run_id, "/stream"),
                "Content-Location": _location(thread_id, run_id),
            },
        )


def _awaited(thread_id: UUID | None) -> Response:
    asked, rest = _asked()
    run_id = uuid7()
    with ExitStack() as stack:
        reader = stack.enter_context(events.hub().reader(run_id, unseen=True))
        created = _create(asked, thread_id, run_id)
        follower = Follower(created.run_id, created.thread_id, cancels=rest["on_disconnect"] == "cancel")
        return follower.answer(reader, stack.pop_all(), after=0)


class Follower:
    """One client that follows one run: what it needs after the request's context is gone."""

    def __init__(self, run_id: UUID, thread_id: UUID, *, cancels: bool) -> None:
        self.run_id, self.thread_id = run_id, thread_id
        self.deployment_id = deployment().id
        self.settings = settings()
        self.cancels = cancels
        self.clock = sse.Clock(self.settings.heartbeat_seconds, watched=cancels)

    def batches(self, reader: events.Reader, *, after: int | None) -> Iterator[list[Event]]:
        """The run's events; watches the client's socket where its going matters."""
        followed = events.follow(
            reader, self.run_id, after=after, ended=self.ended, quiet_seconds=self.clock.quiet_seconds
        )
        return sse.watch(request.environ.get("gunicorn.socket"), followed) if self.cancels else followed

    def stream(self, body: Iterator[bytes], holds: AbstractContextManager[Any]) -> sse.Stream:
        return sse.Stream(body, holds=holds, on_disconnect=self.cancel if self.cancels else None)

    def answer(
        self, reader: events.Reader, holds: AbstractContextManager[Any], *, after: int | None
    ) -> Response:
        """Line feeds until the run has ended, then its output."""
        body = sse.waiting(self.batches(reader, after=after), self.clock, self.output)
        return sse.late_json(
            self.stream(body, holds),
            {
                "Location": _location(self.thread_id, self.run_id, "/join"),
                "Content-Location": _location(self.thread_id, self.run_id),
            },
        )

    def ended(self) -> Sequence[Event] | None:
        """The end of a log that was lost, made from the row; None while the run lives."""
        try:
            with connection() as conn:
                row = runs.get(conn, self.deployment_id, self.run_id)
        except NotFound:
            return [Event(0, 0, END, b"{}")]
        except Unavailable:
            return None
        if row["status"] in runs.LIVE:
            return None
        end = Event(0, 0, END, b"{}")
        if row["status"] in (RunStatus.ERROR, RunStatus.TIMEOUT) and row["error"]:
            return [Event(0, 0, "error", dumps(row["error"]).encode()), end]
        return [end]

    def output(self, last: Event | None) -> bytes:
        """What a wait or join answers."""
        if last is not None:
            told = last.data.partition(b',"output":')[2][:-1]
            if told and told != b"null":
                return told
        return dumps(self.stored_output()).encode()

    def stored_output(self) -> Any:
        """The same from the rows, for a log that says nothing of it."""
        try:
            with connection() as conn:
                row = runs.get(conn, self.deployment_id, self.run_id)
                thread = threads.get(conn, self.deployment_id, row["thread_id"])
        except NotFound:
            return None
        if row["status"] in (RunStatus.ERROR, RunStatus.TIMEOUT):
            return {"__error__": row["error"]}
        open_interrupts = [
            {**item, "response_schema": None}
            for items in (thread["interrupts"] or {}).values()
            for item in items
        ]
        if not open_interrupts:
            return thread["values"]
        return {**(thread["values"] or {}), "__interrupt__": open_interrupts}

    def cancel(self) -> None:
        """The client has gone and wanted the run to go with it."""
        reason = "client disconnected from the run stream (on_disconnect=cancel)"
        try:
            with connection() as conn:
                stopped = runs.cancel(conn, self.deployment_id, self.thread_id, self.run_id, reason=reason)
        except NotFound:
            return  # it had ended
        tell([stopped], self.settings.event_retention_seconds, reason=reason)


# --- reading and joining -------------------------------------------------------------------------


@bp.get("/threads/<thread_id>/runs")
@operation("List a thread's runs, newest first", query=ListQuery, errors=(404,))
def list_runs(thread_id: str) -> Response:
    key = _thread(thread_id)
    query = load_query(ListQuery)
    select = query.get("select")
    unknown = [name for name in select or () if name not in RUN_FIELDS]
    if unknown:
        raise Invalid(
            f"Invalid select columns: {unknown}. Expected: {set(RUN_FIELDS)}", loc=("query", "select")
        )
    with connection() as conn:
        rows = runs.list_of_thread(
            conn,
            deployment().id,
            key,
            limit=query["limit"],
            offset=query["offset"],
            status=query.get("status"),
        )
    return jsonify(selected([runs.record(row) for row in rows], select))


@bp.get("/threads/<thread_id>/runs/<run_id>")
@operation("Get a run", errors=(404,))
def get_run(thread_id: str, run_id: str) -> Response:
    return jsonify(runs.record(_find(_thread(thread_id), run_id)))


def _find(thread_id: UUID | None, run_id: str) -> Any:
    key = uuid_path(run_id, "run_id")
    with connection() as conn:
        return runs.get(conn, deployment().id, key, thread_id=thread_id)


@bp.delete("/threads/<thread_id>/runs/<run_id>")
@operation("Delete a run", status=204, errors=(404,))
def delete_run(thread_id: str, run_id: str) -> tuple[str, int]:
    """A run that is going on is stopped first."""
    thread_key, run_key = _thread(thread_id), uuid_path(run_id, "run_id")
    with connection() as conn:
        stopped = runs.delete(conn, deployment().id, thread_key, run_key)
    if stopped is not None:
        tell([stopped], settings().event_retention_seconds)
    return "", 204


@bp.get("/threads/<thread_id>/runs/<run_id>/join")
@operation("Wait for a run's output", query=JoinQuery, errors=(404,))
def join_run(thread_id: str, run_id: str) -> Response:
    return _joined(_find(_thread(thread_id), run_id))


@bp.get("/runs/<run_id>/join")
@operation("Wait for the output of a run without a thread", query=JoinQuery, errors=(404,))
def join_stateless_run(run_id: str) -> Response:
    return _joined(_find(None, run_id))


def _joined(row: Any) -> Response:
    cancels = load_query(JoinQuery)["cancel_on_disconnect"]
    follower = Follower(row["run_id"], row["thread_id"], cancels=cancels)
    with ExitStack() as stack:
        reader = stack.enter_context(events.hub().reader(follower.run_id))
        return follower.answer(reader, stack.pop_all(), after=0)


@bp.get("/threads/<thread_id>/runs/<run_id>/stream")
@operation("Join a run's event stream", query=JoinQuery, sse=True, errors=(404,))
def join_stream(thread_id: str, run_id: str) -> Response:
    key = _thread(thread_id)
    return _joined_stream(_find(key, run_id), key)


@bp.get("/runs/<run_id>/stream")
@operation("Join the event stream of a run without a thread", query=JoinQuery, sse=True, errors=(404,))
def join_stateless_stream(run_id: str) -> Response:
    return _joined_stream(_find(None, run_id), None)


def _joined_stream(row: Any, thread_id: UUID | None) -> Response:
    query = load_query(JoinQuery)
    if query.get("namespace"):
        raise Invalid("namespace: not supported by this server", loc=("query", "namespace"))
    follower = Follower(row["run_id"], row["thread_id"], cancels=query["cancel_on_disconnect"])
    resumable = row["kwargs"]["resumable"]
    after = _position(request.headers.get("Last-Event-ID"), row)
    with ExitStack() as stack:
        reader = stack.enter_context(events.hub().reader(follower.run_id))
        if row["status"] not in runs.LIVE and not resumable:
            batches: Any = iter(())
        else:
            batches = follower.batches(reader, after=after)
        body = sse.body(batches, follower.clock, with_ids=resumable, keep=_filter(query.get("stream_mode")))
        return sse.event_stream(
            follower.stream(body, stack.pop_all()),
            {
                "Location": _location(thread_id, follower.run_id, "/stream"),
                "Content-Location": _location(thread_id, follower.run_id),
            },
        )


def _position(last_event_id: str | None, row: Any) -> int | None:
    """The number to go on after; None means from now on."""
    if row["status"] == RunStatus.PENDING and not row["attempt"]:
        return 0
    if not row["kwargs"]["resumable"] or last_event_id is None:
        return None
    text = last_event_id.strip()
    if text in ("-", "-1", "0"):
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        return None
    return int(text) if int(text) <= row["seq_reserved"] else None


def _filter(modes: list[str] | None) -> Callable[[str], bool] | None:
    """Which event names belong to the modes asked for; the error that ends a run always does."""
    if not modes:
        return None
    wanted = {"messages" if mode == "messages-tuple" else mode for mode in modes}
    parts = ("messages/metadata", "messages/partial", "messages/complete") if "messages" in modes else ()

    def keep(name: str) -> bool:
        base = name.partition("|")[0]
        return base in wanted or base in parts or base == "error"

    return keep


# --- ending --------------------------------------------------------------------------------------


@bp.post("/threads/<thread_id>/runs/<run_id>/cancel")
@operation("Cancel a run", query=CancelQuery, status=202, errors=(404,))
def cancel_run(thread_id: str, run_id: str) -> Response | tuple[str, int]:
    thread_key, run_key = _thread(thread_id), uuid_path(run_id, "run_id")
    query = load_query(CancelQuery)
    reason = query.get("reason")
    path = f"{query['action']} requested via POST {_location(thread_key, run_key)}/cancel"
    with ExitStack() as stack:
        reader = stack.enter_context(events.hub().reader(run_key)) if query["wait"] else None
        with connection() as conn:
            stopped = runs.cancel(
                conn, deployment().id, thread_key, run_key, action=query["action"], reason=reason or path
            )
        tell([stopped], settings().event_retention_seconds, reason=reason or path)
        if reader is None:
            return "", 202
        follower = Follower(run_key, thread_key, cancels=False)
        body = sse.waiting(follower.batches(reader, after=None), follower.clock, lambda last: b"{}")
        return sse.late_json(
            follower.stream(body, stack.pop_all()),
            {
                "Location": _location(thread_key, run_key, "/join"),
                "Content-Location": _location(thread_key, run_key),
            },
        )
