"""Reading runs: list the runs of a thread, get a run, search all runs of the deployment, and count its queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from flask import Response, jsonify
from sqlalchemy import Connection

from shared.errors import Invalid, NotFound
from shared.infra import replica
from shared.infra.postgres import Row, connection
from shared.models import RunStatus
from shared.records import COUNT, COUNT_OR_NULL, TEXT, listed, record, selection
from shared.runs import queue_position, read
from shared.runs.read import RUN
from shared.threads import records
from shared.user_code import filters
from shared.user_code.authorization import Ask
from web.deployment_api.crons import Moment
from web.gate.context import allow, allow_all, deployment, metadata_of
from web.http.responses import PAGE_HEADERS, page, select_fields
from web.schemas import fields
from web.schemas.feedback import FeedbackFilter
from web.schemas.operations import RouteGroup
from web.schemas.validation import SchemaViolation, load_query

bp = RouteGroup("run_reads", section="Runs", switches=("disable_runs",))


class RunFilters(fields.Schema):
    status = fields.ItemOrList(fields.OneOf(*RunStatus), allow_none=True)
    metadata = fields.Filter()
    graph_id = fields.StrictString(min_length=1, max_length=255, allow_none=True)
    since = Moment(allow_none=True)
    until = Moment(allow_none=True)
    assistant_id = fields.UuidField(allow_none=True)
    thread_id = fields.UuidField(allow_none=True)
    error = fields.StrictString(min_length=1, max_length=255, allow_none=True)
    feedback = fields.Nested(FeedbackFilter, allow_none=True)


class Search(RunFilters):
    limit = fields.StrictInteger(minimum=1, maximum=1000, load_default=10)
    offset = fields.StrictInteger(minimum=0, maximum=fields.MAX_OFFSET, load_default=0)


@bp.operation(
    "POST /runs/search",
    "Search runs, by default those that failed, timed out or were cancelled",
    role="read",
    slow=True,
    answer=listed(RUN.search_schema),
    headers=PAGE_HEADERS,
    body=Search,
)
def search_runs(body: dict[str, Any]) -> Response:
    """Search runs. `error` selects runs by the class of their error, `feedback` by feedback on them. Pending runs have a
    `queue`.

    If `status` selects only unsuccessful runs, they are sorted by their end, latest first, and `since` and `until`
    bound the end. Otherwise runs are sorted by their creation, newest first, and `since` and `until` bound the creation.
    """
    body = {name: value for name, value in body.items() if value not in (None, [], {})}
    limit, offset = body.pop("limit"), body.pop("offset")
    criteria = {"metadata": {}, "values": {}, "status": body.get("status"), "limit": limit, "offset": offset}
    thread = {"thread_id": body["thread_id"]} if "thread_id" in body else {}
    granted = allow("threads", "search", **criteria, **thread)

    def search_page(conn: Connection) -> tuple[Sequence[Row], int, dict[UUID, dict[str, Any]]]:
        rows, total = read.search(
            conn,
            deployment().id,
            body,
            limit=limit,
            offset=offset,
            visible=filters.of_visible_threads(granted.filter, "run", metadata_of(granted)),
        )
        return rows, total, queue_position.of_many(conn, deployment().id, rows)

    rows, total, positions = replica.read(search_page)
    return page([_shown(row, positions) for row in rows], offset=offset, limit=limit, total=total)


def _shown(row: Row, positions: dict[UUID, dict[str, Any]]) -> dict[str, Any]:
    position = positions.get(row["run_id"])
    return {**RUN.show_search_result(row), **({"queue": position} if position is not None else {})}


class ListQuery(fields.Schema):
    limit = fields.QueryInteger(minimum=1, maximum=1000, load_default=10)
    offset = fields.QueryInteger(minimum=0, load_default=0)
    status = fields.StrictString()
    select = fields.QueryList(fields.StrictString())


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
        if filters.is_thread_hidden(
            conn, deployment().id, thread_id, of_search.filter, metadata_of(of_search)
        ):
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
    return jsonify(select_fields(shown, select))


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
    """Get a run. While it is pending, `queue` holds its position, how long it has waited, and the reason."""
    granted = allow("threads", "read", thread_id=thread_id)
    with connection() as conn:
        filters.require_thread(conn, deployment().id, thread_id, granted.filter, error=NotFound("Not Found"))
        row = read.get(conn, deployment().id, run_id, thread_id=thread_id)
        return jsonify(queue_position.shown(conn, deployment().id, [row])[0])


queue_bp = RouteGroup("queue", section="Service", switches=("disable_runs",))

QUEUE = record(
    "Queue",
    pending=COUNT,
    running=COUNT,
    oldest_wait_seconds={"type": "number", "minimum": 0},
    waiting=listed(record(reason=TEXT, runs=COUNT, oldest_wait_seconds={"type": "number", "minimum": 0})),
    max_concurrent_runs=COUNT_OR_NULL,
    pool=record(name=TEXT, runners=COUNT, slots=COUNT, running=COUNT),
)


@queue_bp.operation("GET /queue", "Count waiting runs by the reason they wait", role="read", answer=QUEUE)
def show_queue() -> Response:
    """Show the reasons, longest wait first. A run's own position is in its record while the run is pending."""
    granted = allow("threads", "search", metadata={}, values={}, status=None, limit=0, offset=0)
    with connection() as conn:
        return jsonify(queue_position.of_deployment(conn, deployment(), granted.filter, metadata_of(granted)))
