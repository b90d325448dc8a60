"""Workers: the runner and builder processes that are up, and the load of each pool."""

from __future__ import annotations

from flask import Response, jsonify

from shared import fleet
from shared.access.api_keys import OPERATOR
from shared.audit import Action
from shared.infra.postgres import connection
from shared.records import COUNT, TEXT, listed, record
from web.gate.audit import record_action
from web.gate.context import caller
from web.schemas.operations import RouteGroup

bp = RouteGroup("workers", section="Workers")

WORKER_POOL = record(
    "Pool",
    name=TEXT,
    runners=COUNT,
    draining=COUNT,
    silent=COUNT,
    slots=COUNT,
    hosts=COUNT,
    running=COUNT,
    pending=COUNT,
    oldest_wait_seconds=fleet.SECONDS,
    ended_a_minute=COUNT,
)
WORKERS = record("Workers", workers=listed(fleet.RECORD.schema), pools=listed(WORKER_POOL))


@bp.operation(
    "GET /v2/workers",
    "List the workers, their graph hosts, and the backlog of each pool",
    role="read",
    answer=WORKERS,
)
def list_workers() -> Response:
    """List workers and pools. An organization sees the graph hosts of its own deployments, an operator all hosts."""
    only = None if caller().may(OPERATOR) else caller().organization_id
    with connection() as conn:
        rows = fleet.all_of(conn, organization_id=only)
        pools = fleet.pools(conn)
    return jsonify(workers=[fleet.RECORD.show(row) for row in rows], pools=pools)


@bp.operation(
    "POST /v2/workers/<worker_id>/drain", "Drain a worker", role="operator", status=202, errors=(404,)
)
def drain_worker(worker_id: str) -> None:
    """Drain a worker: it takes no new runs or builds, and finishes those that it has.

    It is listed as draining at once, notices within five seconds, and stays drained until it is resumed or exits.
    """
    with connection() as conn:
        fleet.request_drain(conn, worker_id)
        record_action(conn, Action.WORKER_DRAINED, worker_id)


@bp.operation(
    "POST /v2/workers/<worker_id>/resume",
    "End the drain of a worker",
    role="operator",
    status=202,
    errors=(404, 409),
)
def resume_worker(worker_id: str) -> None:
    """End the drain. The worker takes new runs or builds within five seconds. One that shuts down cannot be resumed."""
    with connection() as conn:
        fleet.resume(conn, worker_id)
        record_action(conn, Action.WORKER_RESUMED, worker_id)
