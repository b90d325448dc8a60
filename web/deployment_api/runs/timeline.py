"""Timelines of runs and of threads."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flask import Response, jsonify

from shared.errors import NotFound
from shared.infra.postgres import connection
from shared.runs import timeline
from shared.user_code import filters
from web.gate.context import allow, deployment
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("timelines", section="Runs", switches=("disable_runs",))


class TimelineQuery(fields.Schema):
    limit = fields.QueryInteger(minimum=1, maximum=timeline.MAX_RUNS, load_default=20)


@bp.operation(
    "GET /threads/<thread_id>/runs/<run_id>/timeline",
    "Get the timeline of a run",
    role="read",
    slow=True,
    answer=timeline.TIMELINE,
    errors=(404,),
)
def get_run_timeline(thread_id: UUID, run_id: UUID) -> Response:
    """Get what a run did at which time: `bands` from its creation to its end (`until`; null while it is live).

    A band is a wait in the queue, an attempt, or within an attempt the claim, the start of the graph host, a node, a
    model call or a tool call. `parent` is the band around it. A person's band lasts from a question to its answer and
    lies before or after the run. Earlier attempts have the status `lost` and the reason as `detail`. `checkpoint_id` and
    `checkpoint_ns` address the state before a node. Model and tool calls, and times within a step, are known after the
    end of the run; until then nodes are derived from checkpoints.
    """
    granted = allow("threads", "read", thread_id=thread_id)
    with connection() as conn:
        filters.require_thread(conn, deployment().id, thread_id, granted.filter, error=NotFound("Not Found"))
        return jsonify(timeline.of_run(conn, deployment().id, thread_id, run_id))


@bp.operation(
    "GET /threads/<thread_id>/timeline",
    "Get the timeline of a thread",
    role="read",
    slow=True,
    query=TimelineQuery,
    answer=timeline.TIMELINE,
    errors=(404,),
)
def get_thread_timeline(thread_id: UUID, query: dict[str, Any]) -> Response:
    """Get the timelines of a thread's newest `limit` runs on one axis, with the waits for a person between them."""
    granted = allow("threads", "read", thread_id=thread_id)
    with connection() as conn:
        filters.require_thread(conn, deployment().id, thread_id, granted.filter)
        return jsonify(timeline.of_thread(conn, deployment().id, thread_id, limit=query["limit"]))
