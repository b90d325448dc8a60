"""Runs of a whole deployment: search for them, and retry one that did not succeed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flask import Response
from sqlalchemy import Connection, RowMapping

from shared.infra.replica import read
from shared.models import RunStatus
from shared.records import listed
from shared.runs import queue_position, retry
from shared.runs.drafts import RunRequest
from shared.runs.read import RUN, search
from shared.user_code import filters
from web.deployment_api.crons import Moment
from web.deployment_api.paging import PAGE_HEADERS, page
from web.deployment_api.runs import creation
from web.deployment_api.runs.locations import RUN_HEADERS
from web.gate.authorization import allow, changed
from web.gate.context import deployment
from web.schemas.fields import (
    MAX_OFFSET,
    Filter,
    ItemOrList,
    OneOf,
    Schema,
    StrictBoolean,
    StrictInteger,
    StrictString,
    UuidField,
)
from web.schemas.operations import RouteGroup
from web.schemas.validation import load

bp = RouteGroup("failed", section="Runs", switches=("disable_runs",))


class Search(Schema):
    status = ItemOrList(OneOf(*RunStatus), allow_none=True)
    metadata = Filter()
    graph_id = StrictString(min_length=1, max_length=255, allow_none=True)
    since = Moment(allow_none=True)
    until = Moment(allow_none=True)
    assistant_id = UuidField(allow_none=True)
    thread_id = UuidField(allow_none=True)
    error = StrictString(min_length=1, max_length=255, allow_none=True)
    limit = StrictInteger(minimum=1, maximum=1000, load_default=10)
    offset = StrictInteger(minimum=0, maximum=MAX_OFFSET, load_default=0)


class Retry(Schema):
    force = StrictBoolean(load_default=False)


@bp.operation(
    "POST /runs/search",
    "Search runs, by default those that failed, timed out or were cancelled",
    role="read",
    slow=True,
    answer=listed(RUN.search_schema),
    headers=PAGE_HEADERS,
    body=Search,
)
def search_runs() -> Response:
    """Search runs. `error` selects runs by the class of their error. Pending runs have a `queue`.

    If `status` selects only unsuccessful runs, they are sorted by their end, latest first, and `since` and `until`
    bound the end. Otherwise runs are sorted by their creation, newest first, `since` and `until` bound the creation,
    and X-Pagination-Total counts up to 10,000.
    """
    body = {name: value for name, value in load(Search).items() if value not in (None, [], {})}
    limit, offset = body.pop("limit"), body.pop("offset")
    thread = {"thread_id": body["thread_id"]} if body.get("thread_id") else {}
    asked = allow(
        "threads",
        "search",
        metadata={},
        values={},
        status=body.get("status"),
        limit=limit,
        offset=offset,
        **thread,
    )

    def found(conn: Connection) -> tuple[list[RowMapping], int, dict[UUID, dict[str, Any]]]:
        rows, total = search(
            conn,
            deployment().id,
            body,
            limit=limit,
            offset=offset,
            visible=filters.of_visible_threads(asked.filter, "run", changed(asked)),
        )
        return rows, total, queue_position.of_many(conn, deployment().id, rows)

    rows, total, waits = read(found)
    return page([_shown(row, waits) for row in rows], offset=offset, limit=limit, total=total)


def _shown(row: RowMapping, waits: dict[UUID, dict[str, Any]]) -> dict[str, Any]:
    queue = waits.get(row["run_id"])
    return {**RUN.show_search_result(row), **({"queue": queue} if queue is not None else {})}


@bp.operation(
    "POST /threads/<thread_id>/runs/<run_id>/retry",
    "Retry a failed run from its last checkpoint",
    role="run",
    answer=RUN.schema,
    headers=RUN_HEADERS,
    body=Retry,
    errors=(400, 404, 409, 429),
    idempotent=True,
)
def retry_run(thread_id: UUID, run_id: UUID) -> Response:
    """Create a run with the configuration of the failed one, on the revision that the deployment serves now.

    If the failed run has no checkpoint, the new run starts over from its input. Returns 409 while the thread is busy.
    Also returns 409 if the thread has moved on since the failed run, unless `force` is true: the new run then forks the
    thread from the failed run's last checkpoint.
    """
    rule = retry.RetryRun(run_id, force=load(Retry)["force"])
    run_request = RunRequest(assistant_id="", thread_id=thread_id, rule=rule)
    return creation.respond_with_new([run_request], creation.run_renderer(thread_id))
