"""Joining an existing run: its output, or its events after the last one received or from now on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

from flask import Response, request
from sqlalchemy import Connection

from shared.errors import Forbidden, NotFound
from shared.eventlog.events import Event
from shared.eventlog.hub import hub
from shared.infra.postgres import connection
from shared.models import LIVE_RUN_STATUSES, RunStatus
from shared.runs import create, end_event, read, signals
from shared.runs.read import THREAD_METADATA
from shared.user_code import filters
from shared.user_code.authorization import Ask
from shared.user_code.filters import Filter
from web.deployment_api.runs import stream_filter
from web.deployment_api.runs.follower import FOLLOWED_HEADERS, OUTPUT, RunFollower, stream_headers
from web.deployment_api.runs.run_request import STREAM_MODES, Namespaces
from web.gate.context import allow_all, caller, deployment, unchecked_deployment, user
from web.http import sse
from web.schemas import fields
from web.schemas.operations import RouteGroup
from web.schemas.validation import whole_number

bp = RouteGroup("joins", section="Runs", switches=("disable_runs",))

ALL_STORED = "-"  # a Last-Event-ID that requests all stored events, also of a run that is not resumable

JOINS: dict[str, Any] = {
    "role": "read",
    "long": True,
    "headers": FOLLOWED_HEADERS,
    "errors": (404,),
}


class JoinQuery(fields.Schema):
    cancel_on_disconnect = fields.QueryBoolean(load_default=False)


class StreamQuery(JoinQuery):
    stream_mode = fields.QueryList(fields.StrictString())
    namespace = Namespaces(fields.StrictString())


@bp.with_and_without_thread(
    "GET /runs/<run_id>/join",
    "Wait for a run's output",
    "Wait for the output of a run without a thread",
    query=JoinQuery,
    answer=OUTPUT,
    **JOINS,
)
def join_run(thread_id: UUID | None, run_id: UUID, query: dict[str, Any]) -> Response:
    cancels = _cancels(query)
    row, is_deleted = _authorized_row(thread_id, run_id, cancels=cancels)
    follower = RunFollower(row["run_id"], row["thread_id"], cancels=cancels, kwargs=row["kwargs"])
    if row["status"] not in LIVE_RUN_STATUSES and not is_deleted:
        return follower.answer_at_once(follower.stored_output())
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(follower.run_id))
        return follower.answer(reader, stack.pop_all(), after=0)


def _authorized_row(thread_id: UUID | None, run_id: UUID, *, cancels: bool) -> tuple[Any, bool]:
    """Authorize reading a run, and cancelling it if `cancels`. Returns its row, and whether the stored row is gone.

    The row of a temporary run is deleted when the run ends. The event log then provides the fields that readers need.
    Raises Denied, and NotFound for a run that is missing or hidden by a filter.
    """
    key = thread_of(run_id) if thread_id is None else thread_id
    asks = [Ask("threads", "read", {"thread_id": key})]
    if cancels:
        runs = {"run_ids": [str(run_id)], "status": None}
        asks.append(Ask("threads", "update", {"thread_id": key, "action": "interrupt", "metadata": runs}))
    grants = allow_all(asks)
    with connection() as conn:
        row, is_deleted = _row(conn, deployment().id, thread_id, run_id)
        if not all(_is_visible(conn, row, granted.filter, is_deleted=is_deleted) for granted in grants):
            raise NotFound("Not Found")
    return row, is_deleted


def _row(conn: Connection, deployment_id: UUID, thread_id: UUID | None, run_id: UUID) -> tuple[Any, bool]:
    try:
        return read.get(conn, deployment_id, run_id, thread_id=thread_id), False
    except NotFound:
        row = end_event.row_in_log(deployment_id, run_id)
        if row is None or thread_id not in (None, row["thread_id"]):
            raise
        return row, True


def thread_of(run_id: UUID) -> UUID | None:
    """Return the thread to authorize if the caller names none. The caller must not learn it before that."""
    if user() is None:
        return None
    with connection() as conn:
        try:
            return _row(conn, unchecked_deployment().id, None, run_id)[0]["thread_id"]
        except NotFound:
            return None


def _is_visible(conn: Connection, row: Any, filter: Filter | None, *, is_deleted: bool) -> bool:
    if not filter:
        return True
    if is_deleted:  # the thread is gone, too
        return filters.matches(conn, row["kwargs"].get(THREAD_METADATA) or {}, filter)
    return filters.is_thread_visible(conn, deployment().id, row["thread_id"], filter)


def _cancels(query: dict[str, Any]) -> bool:
    """Return whether a disconnect of the client cancels the run. Raises Forbidden if the caller's role may not cancel it."""
    if query["cancel_on_disconnect"] and not caller().may("run"):
        raise Forbidden("cancel_on_disconnect needs the role run")
    return bool(query["cancel_on_disconnect"]) and request.method != "HEAD"  # a HEAD reads no stream


@bp.with_and_without_thread(
    "GET /runs/<run_id>/stream",
    "Join a run's event stream",
    "Join the event stream of a run without a thread",
    query=StreamQuery,
    sse=True,
    **JOINS,
)
def join_stream(thread_id: UUID | None, run_id: UUID, query: dict[str, Any]) -> Response:
    """Join the stream. With Last-Event-ID `-`, all stored events come first, whether the run is resumable or not."""
    modes, namespaces, cancels = query.get("stream_mode"), query.get("namespace"), _cancels(query)
    row = add_stream_modes(_authorized_row(thread_id, run_id, cancels=cancels)[0], modes, namespaces)
    follower = RunFollower(row["run_id"], row["thread_id"], cancels=cancels, kwargs=row["kwargs"])
    resumable = row["kwargs"]["resumable"]
    after = _position(request.headers.get("Last-Event-ID"), row)
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(follower.run_id))
        newest, is_whole = follower.extent()
        if after is not None and newest:  # else the log was lost, and the client has its events up to `after`
            after = min(after, newest)
        is_over = row["status"] not in LIVE_RUN_STATUSES
        if is_over and (after is None or (is_whole and after == newest)):
            batches: Iterator[list[Event]] = iter(())
        else:
            batches = follower.batches(reader, after=after)
        rename = stream_filter.join_filter(row, modes, namespaces)
        body = sse.body(batches, follower.heartbeat, with_ids=resumable, rename=rename, headers_first=True)
        headers = stream_headers(thread_id, follower.run_id)
        return sse.event_stream(follower.stream(body, stack.pop_all()), headers)


def add_stream_modes(row: Any, modes: list[str] | None, namespaces: list[str] | None) -> Any:
    """Have a run stream the requested modes, too. Returns the run's row.

    A run that has not started will stream all of them. A running run adds, from now on, the modes for which the graph
    library already produces data that the run does not read.
    """
    subgraphs = stream_filter.needs_subgraphs(namespaces)
    known = [mode for mode in modes or () if mode in STREAM_MODES]
    if row["status"] == RunStatus.PENDING and (known or subgraphs):
        with connection() as conn:
            joined = create.widen(conn, deployment().id, row["run_id"], modes=known, subgraphs=subgraphs)
        return row if joined is None else {**row, "joined": joined}
    if row["status"] == RunStatus.RUNNING and row["owner"] and set(known) - set(row["kwargs"]["stream_mode"]):
        signals.widen(row["run_id"], row["owner"], known)
    return row


def _position(last_event_id: str | None, row: Any) -> int | None:
    """Return the number of the event after which to continue; None means from now on."""
    if row["status"] == RunStatus.PENDING and not row["attempt"]:
        return 0
    text = (last_event_id or "").strip()
    if text == ALL_STORED:
        return 0
    if not row["kwargs"]["resumable"] or last_event_id is None:
        return None
    if text in ("-1", "0"):
        return 0
    number = whole_number(text)
    return number if number is not None and number <= row["seq_reserved"] else None
