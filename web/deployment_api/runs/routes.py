"""Runs, with or without a thread: create, wait, stream, read, delete.

A route that follows a new run subscribes to the run's channel before it inserts the row. It cannot miss an event, and
need not read the event log first. A creation that is repeated under its `Idempotency-Key` creates nothing: it returns
the stream or the output of the run that the first request created.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import orjson
from flask import Response, jsonify
from uuid_utils.compat import uuid7

from shared.errors import Invalid, NotFound
from shared.eventlog.hub import hub
from shared.infra.postgres import connection
from shared.records import listed, selection
from shared.runs import cancel, eligibility, queue_position, read, visibility
from shared.runs.record import RUN
from shared.runs.signals import notify_next, publish_cancels
from shared.threads import records
from shared.user_code import filters
from shared.user_code.authorization import Ask
from web.deployment_api.paging import selected
from web.deployment_api.runs import creation, stream_filter
from web.deployment_api.runs.creation import WantedRun
from web.deployment_api.runs.follower import RunFollower
from web.deployment_api.runs.locations import FOLLOWED_HEADERS, OUTPUT, RUN_HEADERS, stream_headers
from web.deployment_api.runs.run_request import (
    MAX_BATCH,
    CreateQuery,
    RunCreate,
    namespaces_asked,
    run_request,
    run_requests,
)
from web.gate.authorization import allow, allow_all, changed
from web.gate.context import deployment, settings
from web.gate.idempotency import REPLAYED, Repeated
from web.http import sse
from web.schemas.fields import QueryInteger, QueryList, Schema, StrictString
from web.schemas.operations import RouteGroup
from web.schemas.validation import SchemaViolation, load_query

bp = RouteGroup("runs", section="Runs", switches=("disable_runs",))


class ListQuery(Schema):
    limit = QueryInteger(minimum=1, maximum=1000, load_default=10)
    offset = QueryInteger(minimum=0, load_default=0)
    status = StrictString()
    select = QueryList(StrictString())


CREATES: dict[str, Any] = {
    "role": "run",
    "body": RunCreate,
    "errors": (400, 404, 409, 429),
    "idempotent": True,
    "id_message": "Invalid thread ID",
}
FOLLOWS: dict[str, Any] = {**CREATES, "long": True, "headers": FOLLOWED_HEADERS}


@bp.with_and_without_thread(
    "POST /runs",
    "Create a run on a thread",
    "Create a run without a thread",
    answer=RUN.schema,
    headers=RUN_HEADERS,
    **CREATES,
)
def create_run(thread_id: UUID | None) -> Response:
    asked, _ = run_request(thread_id)
    return creation.make(WantedRun(request=asked, thread_id=thread_id))[1]


@bp.operation(
    "POST /runs/batch",
    "Create several runs without a thread",
    body_items=MAX_BATCH,
    answer=RUN.schema,
    many=True,
    **CREATES,
)
def create_batch() -> Response:
    """Create all runs of the array, or none of them. Returns their records in the same order."""
    return creation.make_all([WantedRun(request=each, thread_id=None) for each in run_requests()])


@bp.with_and_without_thread(
    "POST /runs/stream",
    "Create a run on a thread and stream its events",
    "Create a run without a thread and stream its events",
    query=CreateQuery,
    sse=True,
    **FOLLOWS,
)
def stream_run(thread_id: UUID | None) -> Response:
    namespaces = namespaces_asked()
    asked, on_disconnect = run_request(thread_id, namespaces)
    run_id, cancels = uuid7(), on_disconnect == "cancel"
    wanted = WantedRun(request=asked, thread_id=thread_id, run_id=run_id)
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(run_id, unseen=True))
        try:
            created, _ = creation.make(wanted)
        except Repeated as repeated:
            return _streamed_again(_first_answer(repeated), thread_id, namespaces, cancels=cancels)
        follower = RunFollower(run_id, created.thread_id, cancels=cancels)
        batches = follower.batches_of_new(reader, starts_at_once=created.starts_at_once)
        keep = stream_filter.of_creator(created.row["kwargs"], namespaces)
        body = sse.body(
            batches,
            follower.heartbeat,
            with_ids=asked.stream_resumable,
            keep=keep,
            headers_first=not created.starts_at_once,
        )
        return sse.event_stream(follower.stream(body, stack.pop_all()), stream_headers(thread_id, run_id))


def _first_answer(repeated: Repeated) -> dict[str, Any]:
    """Return the record of the run that the first request under this key created."""
    assert isinstance(repeated.response, Response)
    return orjson.loads(repeated.response.get_data())


def _streamed_again(
    run: Mapping[str, Any], thread_id: UUID | None, namespaces: list[str] | None, *, cancels: bool
) -> Response:
    """Stream the run of the first request from its start, as far as its event log is still stored."""
    run_id = UUID(run["run_id"])
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(run_id))
        follower = RunFollower(run_id, UUID(run["thread_id"]), cancels=cancels)
        body = sse.body(
            follower.batches(reader, after=0),
            follower.heartbeat,
            with_ids=run["kwargs"]["resumable"],
            keep=stream_filter.of_creator(run["kwargs"], namespaces),
            headers_first=True,
        )
        headers = {**stream_headers(thread_id, run_id), REPLAYED: "true"}
        return sse.event_stream(follower.stream(body, stack.pop_all()), headers)


@bp.with_and_without_thread(
    "POST /runs/wait",
    "Create a run on a thread and wait for its output",
    "Create a run without a thread and wait for its output",
    answer=OUTPUT,
    **FOLLOWS,
)
def wait_for_run(thread_id: UUID | None) -> Response:
    asked, on_disconnect = run_request(thread_id)
    run_id, cancels = uuid7(), on_disconnect == "cancel"
    wanted = WantedRun(request=asked, thread_id=thread_id, run_id=run_id)
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(run_id, unseen=True))
        try:
            created, _ = creation.make(wanted)
        except Repeated as repeated:
            return _awaited_again(_first_answer(repeated), cancels=cancels)
        follower = RunFollower(run_id, created.thread_id, cancels=cancels)
        return follower.answer(reader, stack.pop_all(), after=0)


def _awaited_again(run: Mapping[str, Any], *, cancels: bool) -> Response:
    run_id = UUID(run["run_id"])
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(run_id))
        follower = RunFollower(run_id, UUID(run["thread_id"]), cancels=cancels)
        response = follower.answer(reader, stack.pop_all(), after=0)
        response.headers[REPLAYED] = "true"
        return response


@bp.operation(
    "GET /threads/<thread_id>/runs",
    "List a thread's runs, newest first",
    role="read",
    slow=True,
    query=ListQuery,
    answer=listed(selection(RUN.schema)),
    errors=(400, 404),
)
def list_runs(thread_id: UUID) -> Response:
    query = _list_query()
    select = query.get("select")
    unknown = [name for name in select or () if name not in RUN.selectable]
    if unknown:
        expected = ", ".join(map(repr, RUN.selectable))
        raise Invalid(f"Invalid select columns: {unknown}. Expected: {{{expected}}}", loc=("query", "select"))
    of_thread, of_search = allow_all(
        [
            Ask("threads", "read", {"thread_id": thread_id}),
            Ask("threads", "search", {"thread_id": thread_id, "metadata": {}}),
        ]
    )
    with connection() as conn:
        filters.require_thread(conn, deployment().id, thread_id, of_thread.filter)
        if visibility.is_hidden(conn, deployment().id, thread_id, of_search.filter, changed(of_search)):
            raise records.missing(thread_id)
        rows = read.list_of_thread(
            conn,
            deployment().id,
            thread_id,
            limit=query["limit"],
            offset=query["offset"],
            status=query.get("status"),
        )
        shown = queue_position.shown(conn, deployment().id, rows)
    return jsonify(selected(shown, select))


def _list_query() -> dict[str, Any]:
    """Return the validated query. Raises Invalid, with status 400 instead of 422 for a number that cannot be read."""
    try:
        return load_query(ListQuery)
    except SchemaViolation as error:
        if error.violations[0].kind != "int_parsing":
            raise
        raise Invalid(error.message, loc=error.loc, kind=error.kind, status=400) from error


@bp.operation(
    "GET /threads/<thread_id>/runs/<run_id>", "Get a run", role="read", answer=RUN.schema, errors=(404,)
)
def get_run(thread_id: UUID, run_id: UUID) -> Response:
    """While the run is pending, `queue` holds its position, how long it has waited, and the reason."""
    asked = allow("threads", "read", thread_id=thread_id)
    with connection() as conn:
        filters.require_thread(conn, deployment().id, thread_id, asked.filter, error=NotFound("Not Found"))
        row = read.get(conn, deployment().id, run_id, thread_id=thread_id)
        return jsonify(queue_position.shown(conn, deployment().id, [row])[0])


@bp.operation(
    "DELETE /threads/<thread_id>/runs/<run_id>", "Delete a run", role="run", status=204, errors=(404,)
)
def delete_run(thread_id: UUID, run_id: UUID) -> tuple[str, int]:
    """Delete a run. A pending or running run is cancelled first."""
    asked = allow("threads", "delete", run_id=run_id, thread_id=thread_id)
    with connection() as conn:
        error = NotFound("Run not found")
        filters.require_thread(conn, deployment().id, thread_id, asked.filter, lock=True, error=error)
        stopped = cancel.delete_run(conn, deployment().id, thread_id, run_id)
        next_run = eligibility.next_of(conn, deployment().id, thread_id) if stopped else None
    if stopped is not None:
        publish_cancels([stopped], settings().event_retention_seconds)
    notify_next(next_run)
    return "", 204
