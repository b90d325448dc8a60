"""A deployment's queue: how many runs are pending, and for which reasons."""

from __future__ import annotations

from flask import Response, jsonify

from shared.infra.postgres import connection
from shared.records import (
    COUNT,
    COUNT_OR_NULL,
    TEXT,
    listed,
    record,
)
from shared.runs import queue_position
from web.gate.authorization import allow, changed
from web.gate.context import deployment
from web.schemas.operations import RouteGroup

bp = RouteGroup("queue", section="Service", switches=("disable_runs",))

QUEUE = record(
    "Queue",
    pending=COUNT,
    running=COUNT,
    oldest_wait_seconds={"type": "number", "minimum": 0},
    waiting=listed(record(reason=TEXT, runs=COUNT, oldest_wait_seconds={"type": "number", "minimum": 0})),
    max_concurrent_runs=COUNT_OR_NULL,
    pool=record(name=TEXT, runners=COUNT, slots=COUNT, running=COUNT),
)


@bp.operation("GET /queue", "Count waiting runs by the reason they wait", role="read", answer=QUEUE)
def show_queue() -> Response:
    """Show the reasons, longest wait first. A run's own position is in its record while the run is pending."""
    asked = allow("threads", "search", metadata={}, values={}, status=None, limit=0, offset=0)
    with connection() as conn:
        return jsonify(queue_position.of_deployment(conn, deployment(), asked.filter, changed(asked)))
