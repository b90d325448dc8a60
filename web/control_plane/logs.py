"""Logs: lines of a revision's build, and lines that a deployment logs while it serves."""

from __future__ import annotations

from time import sleep
from typing import Any
from uuid import UUID

from flask import Response, jsonify
from sqlalchemy import Connection

from shared.deployments import deployments, logs, revision_events
from shared.infra.postgres import connection
from shared.infra.replica import read
from shared.records import TEXT_OR_NULL, listed, record
from web.control_plane.revisions import MAX_WAIT_SECONDS, find_revision
from web.gate.context import caller
from web.schemas import fields
from web.schemas.operations import RouteGroup
from web.schemas.validation import load

bp = RouteGroup("logs", section="Logs")

LOG_LINES = record("LogLines", logs=listed(logs.RECORD.schema), next_offset=TEXT_OR_NULL)

DEFAULT_LINES = 100
MAX_LINES = 1000

# Many runners write one deployment's log, each with a short delay, so a line may be stored after lines with a later
# time. A reader that continues from the newest line it has seen would miss it, so younger lines are not returned.
SETTLED_SECONDS = 1.0


class LogRead(fields.Schema):
    # A longer wait ends at the maximum, since clients repeat the request anyway.
    wait = fields.QueryInteger(minimum=0, load_default=0)


class LogSearch(fields.Schema):
    order = fields.OneOf("asc", "desc", allow_none=True)
    # A larger limit returns a page of the maximum size, since clients send what their user typed.
    limit = fields.StrictInteger(minimum=1, allow_none=True)
    offset = fields.StrictString(max_length=1024, allow_none=True)
    level = fields.OneOf(*logs.LEVELS, allow_none=True)
    query = fields.StrictString(max_length=1024, allow_none=True)
    text = fields.StrictString(max_length=1024, allow_none=True)  # another name of `query`
    run_id = fields.UuidField(allow_none=True)
    start_time = fields.TimeField(allow_none=True)
    end_time = fields.TimeField(allow_none=True)


@bp.operation(
    "POST /v1/projects/<deployment_id>/revisions/<revision_id>/build_logs",
    "Read a revision's build log",
    role="read",
    slow=True,
    answer=LOG_LINES,
    body=LogSearch,
    errors=(404,),
)
def search_build_logs(deployment_id: UUID, revision_id: UUID) -> Response:
    """Return lines of a build log. `level` means that level and above; `start_time` and `end_time` are inclusive.

    `next_offset` continues after the last line. With the order `asc` it is also returned at the current end of the log.
    """
    return _of_revision(deployment_id, revision_id, logs.BUILD)


@bp.operation(
    "POST /v1/projects/<deployment_id>/revisions/<revision_id>/deploy_logs",
    "Read the log of one revision of a deployment",
    role="read",
    slow=True,
    answer=LOG_LINES,
    body=LogSearch,
    errors=(404,),
)
def search_revision_logs(deployment_id: UUID, revision_id: UUID) -> Response:
    return _of_revision(deployment_id, revision_id, logs.DEPLOY)


@bp.operation(
    "POST /v1/projects/<deployment_id>/deploy_logs",
    "Read a deployment's log, optionally after a wait for new lines",
    role="read",
    slow=True,
    long="wait",
    answer=LOG_LINES,
    query=LogRead,
    body=LogSearch,
    errors=(404,),
)
def search_deployment_logs(deployment_id: UUID, query: dict[str, Any]) -> Response:
    """Return lines of a deployment's log. `level` means that level and above.

    `text` (or `query`) is a part of a line, `run_id` the run that logged it. `wait` delays the answer by up to that
    many seconds, until a line matches.
    """
    wait_seconds = min(query["wait"], MAX_WAIT_SECONDS)
    with connection() as conn:
        deployments.require(conn, caller().organization_id, deployment_id)
    return _lines(deployment_id, None, logs.DEPLOY, wait_seconds=wait_seconds)


def _of_revision(deployment_id: UUID, revision_id: UUID, kind: str) -> Response:
    with connection() as conn:
        row = find_revision(conn, deployment_id, revision_id)
    return _lines(row["deployment_id"], row["id"], kind)


def _lines(deployment_id: UUID, revision_id: UUID | None, kind: str, *, wait_seconds: int = 0) -> Response:
    """Return the lines that the request's body selects. The body is read last: a missing deployment is a 404 first."""
    criteria = {name: value for name, value in load(LogSearch).items() if value is not None}
    criteria["query"] = criteria.pop("text", None) or criteria.get("query")
    criteria["limit"] = min(criteria.get("limit", DEFAULT_LINES), MAX_LINES)
    if kind == logs.DEPLOY:
        criteria["settled_seconds"] = SETTLED_SECONDS

    def find(conn: Connection) -> tuple[list[dict[str, Any]], str | None]:
        return logs.lines(conn, deployment_id, kind, revision_id=revision_id, **criteria)

    def find_on_primary() -> tuple[list[dict[str, Any]], str | None]:
        with connection() as conn:
            return find(conn)

    # A replica may lag, and a reader that follows the log would skip lines.
    is_search = criteria.get("order", "desc") == "desc" and not wait_seconds
    rows, next_offset = read(find) if is_search else find_on_primary()
    if wait_seconds and not rows:
        for _ in revision_events.changes(deployment_id, seconds=wait_seconds, at=logs.channel(deployment_id)):
            sleep(SETTLED_SECONDS)
            rows, next_offset = find_on_primary()
            if rows:
                break
    return jsonify(logs=[logs.RECORD.show(row) for row in rows], next_offset=next_offset)
