"""Bulk operations: retry or cancel all runs that match a search, at a limited rate."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from flask import Response, jsonify
from sqlalchemy import Connection

from shared.access.api_keys import USER_PREFIX
from shared.audit import Action
from shared.deployments import traffic
from shared.deployments.deployments import DeploymentRef
from shared.errors import Forbidden, Invalid
from shared.infra.postgres import connection
from shared.records import BOOLEAN, COUNT, listed, record
from shared.runs import bulk, read
from shared.runs.bulk import BulkAction, Outcome
from shared.user_code import filters
from shared.user_code.authorization import Granted
from web.deployment_api.runs.read import RunFilters
from web.gate.audit import actor, record_action
from web.gate.context import allow, caller, deployment, metadata_of
from web.gate.idempotency import once
from web.http.responses import resource_page, resource_page_schema
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("bulk", section="Runs", switches=("disable_runs",))

DEFAULT_RATE, MOST_RATE = 10, 100  # runs per second
RETRY_ONLY = ("revision_id", "force")  # fields of the body
PREVIEW = record("BulkPreview", count=COUNT, is_more=BOOLEAN, examples=listed(read.RUN.schema))


class Where(RunFilters, fields.StrictSchema):
    """The filters of `POST /runs/search`. An unknown filter is refused, because it would select too many runs."""


class BulkBody(fields.StrictSchema):
    example: ClassVar[dict[str, Any]] = {
        "action": "retry",
        "where": {"error": "TimeoutError"},
        "dry_run": True,
    }

    action = fields.OneOf(*BulkAction, required=True)
    where = fields.Nested(Where, required=True)
    dry_run = fields.StrictBoolean(load_default=False)
    rate = fields.StrictNumber(
        minimum=1, maximum=MOST_RATE, load_default=DEFAULT_RATE, metadata={"description": "Runs per second"}
    )
    revision_id = fields.UuidField(
        allow_none=True, metadata={"description": "Of the new runs. Null: the one that serves"}
    )
    force = fields.StrictBoolean(
        load_default=False,
        metadata={"description": "Also retry runs whose threads have moved on: they are forked"},
    )


class BulkRuns(fields.Page):
    outcome = fields.OneOf(*Outcome)


@bp.operation(
    "POST /runs/bulk",
    "Retry or cancel all runs that match a search",
    role="run",
    slow=True,
    body=BulkBody,
    answer={"anyOf": [bulk.OPERATION.schema, PREVIEW]},
    status=201,
    also=(200,),
    errors=(400, 403, 409),
    idempotent=True,
)
def start_bulk(body: dict[str, Any]) -> Response:
    """Select runs and begin to retry or cancel them, oldest first, at `rate` runs per second.

    `dry_run` only returns how many runs match, with examples. By default, a retry selects all unsuccessful runs, and a
    cancellation all pending and running runs. A retry selects runs of MCP calls only by `thread_id`, because their
    clients have the result already. A run that cannot be retried or cancelled any more is skipped. Only for API keys
    and for people who have signed in, not for users of the deployment's own authorization. At most 100,000 runs are
    selected, and at most 20 operations of a deployment are open.
    """
    criteria = _criteria(body["where"])
    for name in RETRY_ONLY:
        if body["action"] != BulkAction.RETRY and body.get(name):
            raise Invalid(f"{name}: only for the action retry", loc=("body", name))
    granted = _require_operator()
    serving = deployment()
    visible = filters.of_visible_threads(granted.filter, "run", metadata_of(granted))
    selection = bulk.select(serving.id, BulkAction(body["action"]), criteria, visible=visible)
    with connection() as conn:
        if body["dry_run"]:
            count, examples = bulk.preview(conn, selection)
            shown = [read.RUN.show(row) for row in examples]
            return jsonify(count=min(count, bulk.MOST_RUNS), is_more=count > bulk.MOST_RUNS, examples=shown)
        keep = once(conn)
        if (revision_id := body.get("revision_id")) is not None:
            _require_deployed(conn, serving, revision_id)
        elif serving.is_pinned:  # the address of a preview
            revision_id = serving.active_revision_id
        operation_id = bulk.create(
            conn,
            serving.id,
            selection,
            by=actor(conn),
            rate=body["rate"],
            revision_id=revision_id,
            force=body["force"],
        )
        row = bulk.get(conn, serving.id, operation_id)
        record_action(
            conn,
            Action.BULK_STARTED,
            serving.name,
            deployment_id=serving.id,
            operation_id=operation_id,
            operation=row["action"],
            runs=row["total"],
        )
        return keep(jsonify(bulk.OPERATION.show(row)), 201)


def _criteria(where: dict[str, Any]) -> dict[str, Any]:
    """Return the filters. Raises Invalid for an empty one: it would select all runs, like an unknown one."""
    for name, value in where.items():
        if value in (None, []):
            raise Invalid(
                f"where.{name}: must not be empty: leave it out to select all", loc=("body", "where", name)
            )
    return {name: value for name, value in where.items() if value != {}}


def _require_deployed(conn: Connection, serving: DeploymentRef, revision_id: UUID) -> None:
    try:
        traffic.require_deployed(conn, serving.organization_id, serving.id, revision_id, "revision_id")
    except Invalid as error:
        raise Invalid(f"revision_id: {error.message}", loc=error.loc) from error


def _require_operator() -> Granted:
    """Authorize the request. Raises Denied, and Forbidden for users of the deployment's own authorization."""
    granted = allow("threads", "search", metadata={})
    if deployment().user_code.auth is not None and caller().key_id.startswith(USER_PREFIX):
        raise Forbidden("Bulk operations need an API key of the service.")
    return granted


@bp.operation(
    "GET /runs/bulk",
    "List bulk operations, newest first",
    role="read",
    answer=resource_page_schema(bulk.OPERATION.schema),
    query=fields.Page,
    errors=(403,),
)
def list_bulk(query: dict[str, Any]) -> Response:
    _require_operator()
    with connection() as conn:
        rows = bulk.search(conn, deployment().id, **query)
    return resource_page([bulk.OPERATION.show(row) for row in rows], offset=query["offset"])


@bp.operation(
    "GET /runs/bulk/<operation_id>",
    "Get a bulk operation",
    role="read",
    answer=bulk.OPERATION.schema,
    errors=(403, 404),
)
def get_bulk(operation_id: UUID) -> Response:
    _require_operator()
    with connection() as conn:
        return jsonify(bulk.OPERATION.show(bulk.get(conn, deployment().id, operation_id)))


@bp.operation(
    "GET /runs/bulk/<operation_id>/runs",
    "List the runs of a bulk operation",
    role="read",
    answer=resource_page_schema(bulk.RUN.schema),
    query=BulkRuns,
    errors=(403, 404),
)
def list_bulk_runs(operation_id: UUID, query: dict[str, Any]) -> Response:
    """List the runs of an operation in the order in which they are handled, with what was done to each."""
    _require_operator()
    with connection() as conn:
        bulk.get(conn, deployment().id, operation_id)
        rows = bulk.runs(
            conn, operation_id, outcome=query.get("outcome"), limit=query["limit"], offset=query["offset"]
        )
    return resource_page([bulk.RUN.show(row) for row in rows], offset=query["offset"])


@bp.operation(
    "POST /runs/bulk/<operation_id>/cancel",
    "Stop a bulk operation",
    role="run",
    answer=bulk.OPERATION.schema,
    errors=(403, 404),
)
def stop_bulk(operation_id: UUID) -> Response:
    """Stop an operation. What it has done to runs stays. An operation that has ended is unchanged."""
    _require_operator()
    serving = deployment()
    with connection() as conn:
        is_stopped = bulk.stop(conn, serving.id, operation_id)
        row = bulk.get(conn, serving.id, operation_id)
        if is_stopped:
            record_action(
                conn,
                Action.BULK_CANCELLED,
                serving.name,
                deployment_id=serving.id,
                operation_id=operation_id,
                operation=row["action"],
            )
    return jsonify(bulk.OPERATION.show(row))
