"""Runs, with a thread or without: create, wait, stream, read, join, cancel, delete.

Whoever follows a run subscribes to its channel before its row exists, so nothing can be missed and the
log need not be read first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

from flask import Blueprint, Response, g, jsonify, request
from uuid_utils.compat import uuid7

from shared import claims, following, queues, runs
from shared.control import ring, tell
from shared.database import connection, driver
from shared.errors import Forbidden, Invalid, TooMany
from shared.events import Event
from shared.models import RunStatus
from shared.runs import Created, RunRequest
from web import sse
from web.auth import caller
from web.deployment_api.following import Follower, location
from web.deployment_api.pages import deployment, selected, settings
from web.deployment_api.run_request import RunCreate, refuse_namespaces, run_request
from web.openapi import operation
from web.validation import (
    OneOf,
    QueryBoolean,
    QueryInteger,
    QueryList,
    Schema,
    SchemaViolation,
    StrictString,
    load_query,
    uuid_path,
)

bp = Blueprint("runs", __name__)

COUNT_SECONDS = 2.0

RUN_FIELDS = (
    "run_id", "thread_id", "assistant_id", "created_at", "updated_at", "status", "metadata", "kwargs",
    "multitask_strategy", "langsmith_session_name", "cancel_reason",
)  # fmt: skip


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


@bp.post("/threads/<thread_id>/runs")
@operation("Create a run on a thread", body=RunCreate, errors=(400, 404, 409, 429))
def create_run(thread_id: str) -> Response:
    return _in_background(_new_runs_thread(thread_id))


@bp.post("/runs")
@operation("Create a run without a thread", body=RunCreate, errors=(400, 404, 409, 429))
def create_stateless_run() -> Response:
    return _in_background(None)


@bp.post("/threads/<thread_id>/runs/stream")
@operation("Create a run on a thread and stream its events", body=RunCreate, sse=True, errors=(400, 404, 409))
def stream_run(thread_id: str) -> Response:
    return _streamed(_new_runs_thread(thread_id))


@bp.post("/runs/stream")
@operation("Create a run without a thread and stream its events", body=RunCreate, sse=True, errors=(400, 404))
def stream_stateless_run() -> Response:
    return _streamed(None)


@bp.post("/threads/<thread_id>/runs/wait")
@operation("Create a run on a thread and wait for its output", body=RunCreate, errors=(400, 404, 409))
def wait_for_run(thread_id: str) -> Response:
    return _awaited(_new_runs_thread(thread_id))


@bp.post("/runs/wait")
@operation("Create a run without a thread and wait for its output", body=RunCreate, errors=(400, 404))
def wait_for_stateless_run() -> Response:
    return _awaited(None)


def _thread(thread_id: str) -> UUID:
    return uuid_path(thread_id, "thread_id")


def _new_runs_thread(thread_id: str) -> UUID:
    return uuid_path(thread_id, "thread_id", message="Invalid thread ID")


def _create(asked: RunRequest, thread_id: UUID | None, run_id: UUID) -> Created:
    """Commit the run's row, then ring."""
    _refuse_when_full()
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


_counted: dict[UUID, tuple[float, int]] = {}  # deployment → when, how many runs were pending


def _refuse_when_full() -> None:
    """Hold to the deployment's bound of pending runs; counted every few seconds, so it may be overshot."""
    most = settings().max_pending_per_deployment
    counted_at, pending = _counted.get(deployment().id, (0.0, 0))
    if time.monotonic() - counted_at > COUNT_SECONDS:
        with driver() as conn:
            pending = runs.count_pending(conn, deployment().id, most=most)
        _counted[deployment().id] = (time.monotonic(), pending)
    if pending >= most:
        raise TooMany(f"This deployment has {most} pending runs already.", retry_after_seconds=5)


def _in_background(thread_id: UUID | None) -> Response:
    asked, _ = run_request()
    created = _create(asked, thread_id, uuid7())
    response = jsonify(runs.record(created.row))
    response.headers["Content-Location"] = location(thread_id, created.run_id)
    return response


def _streamed(thread_id: UUID | None) -> Response:
    asked, on_disconnect = run_request()
    run_id = uuid7()
    with ExitStack() as stack:
        reader = stack.enter_context(following.hub().reader(run_id, unseen=True))
        created = _create(asked, thread_id, run_id)
        follower = Follower(created.run_id, created.thread_id, cancels=on_disconnect == "cancel")
        batches = follower.batches_of_new(reader, starts_at_once=created.starts_at_once)
        body = sse.body(batches, follower.clock, with_ids=asked.stream_resumable)
        return sse.event_stream(
            follower.stream(body, stack.pop_all()),
            {
                "Location": location(thread_id, run_id, "/stream"),
                "Content-Location": location(thread_id, run_id),
            },
        )


def _awaited(thread_id: UUID | None) -> Response:
    asked, on_disconnect = run_request()
    run_id = uuid7()
    with ExitStack() as stack:
        reader = stack.enter_context(following.hub().reader(run_id, unseen=True))
        created = _create(asked, thread_id, run_id)
        follower = Follower(created.run_id, created.thread_id, cancels=on_disconnect == "cancel")
        return follower.answer(reader, stack.pop_all(), after=0)


@bp.get("/threads/<thread_id>/runs")
@operation("List a thread's runs, newest first", query=ListQuery, errors=(404,))
def list_runs(thread_id: str) -> Response:
    key = _thread(thread_id)
    query = _list_query()
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


def _list_query() -> dict[str, Any]:
    """The checked query; a limit or an offset that is no number is a 400 here."""
    try:
        return load_query(ListQuery)
    except SchemaViolation as error:
        if error.violations[0].kind != "int_parsing":
            raise
        raise Invalid(error.message, loc=error.loc, kind=error.kind, status=400) from error


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
        next_run = claims.next_of(conn, deployment().id, thread_key) if stopped else None
    if stopped is not None:
        tell([stopped], settings().event_retention_seconds)
    ring(next_run)
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
    cancels = _cancels(load_query(JoinQuery))
    follower = Follower(row["run_id"], row["thread_id"], cancels=cancels)
    if row["status"] not in runs.LIVE:
        return follower.answer_at_once(follower.stored_output())
    with ExitStack() as stack:
        reader = stack.enter_context(following.hub().reader(follower.run_id))
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


def _cancels(query: dict[str, Any]) -> bool:
    """Whether the run goes when its reader does; raises Forbidden for a reader who may only look."""
    if query["cancel_on_disconnect"] and not caller().may("run"):
        raise Forbidden("cancel_on_disconnect needs the role run")
    return bool(query["cancel_on_disconnect"])


def _joined_stream(row: Any, thread_id: UUID | None) -> Response:
    query = load_query(JoinQuery)
    refuse_namespaces()
    follower = Follower(row["run_id"], row["thread_id"], cancels=_cancels(query))
    resumable = row["kwargs"]["resumable"]
    after = _position(request.headers.get("Last-Event-ID"), row)
    with ExitStack() as stack:
        reader = stack.enter_context(following.hub().reader(follower.run_id))
        newest, is_whole = follower.extent()
        if after is not None and newest:  # a log that holds nothing was lost: its numbers were in use
            after = min(after, newest)
        is_over = row["status"] not in runs.LIVE
        if is_over and (after is None or not resumable or (is_whole and after == newest)):
            batches: Iterator[list[Event]] = iter(())
        else:
            batches = follower.batches(reader, after=after)
        body = sse.body(batches, follower.clock, with_ids=resumable, keep=_filter(query.get("stream_mode")))
        return sse.event_stream(
            follower.stream(body, stack.pop_all()),
            {
                "Location": location(thread_id, follower.run_id, "/stream"),
                "Content-Location": location(thread_id, follower.run_id),
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


@bp.post("/threads/<thread_id>/runs/<run_id>/cancel")
@operation("Cancel a run", query=CancelQuery, status=202, errors=(404,))
def cancel_run(thread_id: str, run_id: str) -> Response | tuple[str, int]:
    thread_key, run_key = _thread(thread_id), uuid_path(run_id, "run_id")
    query = load_query(CancelQuery)
    reason = _reason(query, location(thread_key, run_key, "/cancel"))
    with ExitStack() as stack:
        reader = stack.enter_context(following.hub().reader(run_key))
        follower = Follower(run_key, thread_key, cancels=False)
        before, _ = follower.extent()
        with connection() as conn:
            stopped = runs.cancel(
                conn, deployment().id, thread_key, run_key, action=query["action"], reason=reason
            )
            next_run = claims.next_of(conn, deployment().id, thread_key)
        tell([stopped], settings().event_retention_seconds)
        ring(next_run)
        if not query["wait"]:
            return "", 202
        if stopped.is_over:
            return follower.answer_at_once({})
        return follower.answer(reader, stack.pop_all(), after=before, says=lambda last: b"{}")


def _reason(query: dict[str, Any], path: str) -> str:
    reason = f"{query['action']} requested via POST {path}"
    if "reason" not in query:
        return reason
    if query["action"] == "rollback":
        raise Invalid("reason: only with the action interrupt", loc=("query", "reason"))
    return f"{query['reason']}: {reason}"
