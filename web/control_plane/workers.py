"""Workers: the runner and builder processes that are up, and the load of each pool."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify

from shared import fleet
from shared.access.api_keys import OPERATOR
from shared.infra.postgres import connection
from web.control_plane import schemas
from web.gate.context import caller
from web.schemas.operations import operation

bp = Blueprint("workers", __name__)


@bp.get("/v2/workers")
@operation(
    "List the workers, their graph hosts, and the backlog of each pool", role="read", answer=schemas.WORKERS
)
def list_workers() -> Response:
    """List workers and pools. An organization sees the graph hosts of its own deployments, an operator all hosts."""
    who = caller()
    with connection() as conn:
        found = fleet.all_of(conn, organization_id=None if who.may(OPERATOR) else who.organization_id)
        pools = fleet.pools(conn)
    return jsonify(workers=[_record(row) for row in found], pools=pools)


@bp.post("/v2/workers/<worker_id>/drain")
@operation("Drain a worker", role="operator", status=202, errors=(404,))
def drain_worker(worker_id: str) -> tuple[str, int]:
    """Drain a worker: it takes no new runs or builds, and finishes those that it has.

    It is listed as draining at once, notices within five seconds, and stays drained until it is resumed or exits.
    """
    with connection() as conn:
        fleet.request_drain(conn, worker_id)
    return "", 202


@bp.post("/v2/workers/<worker_id>/resume")
@operation("End the drain of a worker", role="operator", status=202, errors=(404, 409))
def resume_worker(worker_id: str) -> tuple[str, int]:
    """The worker takes new runs or builds again within five seconds. A worker that shuts down cannot be resumed."""
    with connection() as conn:
        fleet.resume(conn, worker_id)
    return "", 202


def _record(row: dict[str, Any]) -> dict[str, Any]:
    fields = schemas.WORKER["properties"]
    return {name: row[name] for name in fields}
