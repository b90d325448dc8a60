"""Runs that did not succeed: a list of them, and another try."""

from __future__ import annotations

from flask import Blueprint, Response

from shared.errors import NotFound
from shared.infra.postgres import connection
from shared.models import UNSUCCESSFUL_RUN_STATUSES
from shared.runs import retry, visibility
from shared.runs.drafts import RunRequest
from web.context import deployment
from web.deployment_api import creation, schemas
from web.deployment_api.authorization import allow, changed
from web.deployment_api.creation import WantedRun
from web.deployment_api.crons import Moment
from web.deployment_api.paging import MAX_OFFSET, page
from web.fields import ItemOrList, OneOf, Schema, StrictBoolean, StrictInteger, StrictString, UuidField
from web.operations import operation
from web.validation import load, uuid_path

bp = Blueprint("failed", __name__)


class Search(Schema):
    status = ItemOrList(OneOf(*UNSUCCESSFUL_RUN_STATUSES), allow_none=True)
    since = Moment(allow_none=True)
    until = Moment(allow_none=True)
    assistant_id = UuidField(allow_none=True)
    thread_id = UuidField(allow_none=True)
    error = StrictString(min_length=1, max_length=255, allow_none=True)
    limit = StrictInteger(minimum=1, maximum=1000, load_default=10)
    offset = StrictInteger(minimum=0, maximum=MAX_OFFSET, load_default=0)


class Retry(Schema):
    force = StrictBoolean(load_default=False)


@bp.post("/runs/search")
@operation(
    "Search for runs that failed, timed out or were cancelled",
    role="read",
    answer=schemas.FAILED_RUNS,
    headers=schemas.PAGE_HEADERS,
    body=Search,
)
def search_failed() -> Response:
    """The last to end first. `since` and `until` bound when they ended, `error` names the error's class."""
    body = load(Search)
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
    with connection() as conn:
        rows, total = retry.search(
            conn,
            deployment().id,
            body,
            limit=limit,
            offset=offset,
            visible=visibility.of_visible_threads(asked.filter, "run", changed(asked)),
        )
    return page([retry.record(row) for row in rows], offset=offset, limit=limit, total=total)


@bp.post("/threads/<thread_id>/runs/<run_id>/retry")
@operation(
    "Run a failed run again, from its last checkpoint",
    role="run",
    answer=schemas.RUN,
    headers=schemas.RUN_HEADERS,
    body=Retry,
    body_optional=True,
    errors=(400, 404, 409, 429),
    idempotent=True,
)
def retry_run(thread_id: str, run_id: str) -> Response:
    """Makes a new run with the same configuration, on what the deployment serves now.

    It starts over from the input when the failed one has no checkpoint. Refused (409) while the thread is
    busy, and when it has moved on since, unless `force` is true: then it forks from that checkpoint.
    """
    thread_key, run_key = uuid_path(thread_id, "thread_id"), uuid_path(run_id, "run_id")
    force = load(Retry, optional=True)["force"]
    wanted = WantedRun(
        request=RunRequest(assistant_id=""),
        thread_id=thread_key,
        of_thread=lambda conn, deployment_id: retry.of_failed(
            conn, deployment_id, thread_key, run_key, force=force
        ),
        hidden=lambda: NotFound("Not Found"),
    )
    return creation.make(wanted)[1]
