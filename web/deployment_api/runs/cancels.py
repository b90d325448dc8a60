"""Cancelling runs, one or several at once, and deleting one."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, ClassVar
from uuid import UUID

from flask import Response

from shared.errors import Invalid, NotFound
from shared.eventlog.hub import hub
from shared.infra.postgres import connection
from shared.models import LIVE_RUN_STATUSES, RunStatus
from shared.records import JsonSchema
from shared.runs import backlog, cancel
from shared.runs.signals import notify_next, publish_cancels
from shared.user_code import filters
from shared.user_code.authorization import Granted
from shared.user_code.filters import Filter
from web.deployment_api.runs.follower import RunFollower, run_path
from web.gate.context import allow, deployment, settings
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("cancels", section="Runs", switches=("disable_runs",))

NOTHING: JsonSchema = {"type": "object", "maxProperties": 0}

STATUSES = {
    "pending": (RunStatus.PENDING,),
    "running": (RunStatus.RUNNING,),
    "all": LIVE_RUN_STATUSES,
}


class CancelQuery(fields.Schema):
    wait = fields.QueryBoolean(load_default=False)
    action = fields.OneOf("interrupt", "rollback", load_default="interrupt")
    reason = fields.StrictString(
        max_length=1024, metadata={"description": "Allowed only with the action `interrupt`"}
    )


class CancelManyQuery(fields.Schema):
    action = fields.OneOf("interrupt", "rollback", load_default="interrupt")


class CancelMany(fields.Schema):
    """Either `status`, or `thread_id` with `run_ids`."""

    example: ClassVar[dict[str, Any]] = {"status": "pending"}

    status = fields.OneOf(
        *STATUSES,
        allow_none=True,
        metadata={"description": "Required without `thread_id` and `run_ids`, not allowed with them"},
    )
    thread_id = fields.UuidField(allow_none=True)
    run_ids = fields.ListOf(fields.UuidField(), max_items=1000, allow_none=True)


@bp.operation(
    "POST /threads/<thread_id>/runs/<run_id>/cancel",
    "Cancel a run",
    role="run",
    long="wait",
    query=CancelQuery,
    answer=NOTHING,
    empty=(202,),
    errors=(404,),
)
def cancel_run(thread_id: UUID, run_id: UUID, query: dict[str, Any]) -> Response | tuple[str, int]:
    reason = _reason(query, run_path(thread_id, run_id, "/cancel"))
    granted = _allow(thread_id, query["action"], run_ids=[str(run_id)])
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(run_id))
        follower = RunFollower(run_id, thread_id, cancels=False)
        before, _ = follower.extent()
        with connection() as conn:
            filters.require_thread(
                conn, deployment().id, thread_id, granted.filter, lock=True, error=_nothing()
            )
            stopped = cancel.cancel_run(
                conn, deployment().id, thread_id, run_id, action=query["action"], reason=reason
            )
            next_run = backlog.next_of(conn, deployment().id, thread_id)
        publish_cancels([stopped], settings().event_retention_seconds)
        notify_next(next_run)
        if not query["wait"]:
            return "", 202
        if stopped.is_over:
            return follower.answer_at_once({})
        return follower.answer(reader, stack.pop_all(), after=before, render=lambda last: b"{}")


def _allow(thread_id: UUID | None, action: str, **which: Any) -> Granted:
    """Authorize the cancellation of runs, which `which` selects by id or by status. Raises Denied."""
    metadata = {"run_ids": None, "status": None, **which}
    return allow("threads", "update", thread_id=thread_id, action=action, metadata=metadata)


def _nothing() -> NotFound:
    return NotFound("No runs found to cancel.")


def _reason(query: dict[str, Any], path: str) -> str:
    reason = f"{query['action']} requested via POST {path}"
    if "reason" not in query:
        return reason
    if query["action"] == "rollback":
        raise Invalid("reason: allowed only with the action interrupt", loc=("query", "reason"))
    return f"{query['reason']}: {reason}"


@bp.operation(
    "POST /runs/cancel",
    "Cancel several runs",
    role="run",
    slow=True,
    body=CancelMany,
    query=CancelManyQuery,
    status=204,
    errors=(404,),
)
def cancel_many(body: dict[str, Any], query: dict[str, Any]) -> None:
    """Cancel the named runs of a thread, or all runs of the deployment that have a status."""
    action = query["action"]
    body = {name: value for name, value in body.items() if value is not None}
    if "status" in body and len(body) == 1:
        statuses = STATUSES[body["status"]]
        visible = _allow(None, action, status=body["status"]).filter
        with connection() as conn:
            run_ids_by_thread = cancel.live_by_thread(conn, deployment().id, statuses, visible)
    elif body.keys() == {"thread_id", "run_ids"}:
        statuses, run_ids_by_thread = LIVE_RUN_STATUSES, {body["thread_id"]: body["run_ids"]}
        visible = _allow(body["thread_id"], action, run_ids=list(map(str, body["run_ids"]))).filter
    else:
        raise Invalid("either status, or thread_id with run_ids, must be given")
    stopped = [
        _cancel_of_thread(*item, statuses, action, visible) for item in sorted(run_ids_by_thread.items())
    ]
    if not any(stopped):
        raise _nothing()


def _cancel_of_thread(
    thread_id: UUID,
    run_ids: list[UUID],
    statuses: tuple[RunStatus, ...],
    action: str,
    visible: Filter | None,
) -> bool:
    reason = f"{action} requested via POST /runs/cancel"
    with connection() as conn:
        if filters.is_thread_hidden(conn, deployment().id, thread_id, visible, lock=True):
            return False
        stopped = cancel.cancel_runs(
            conn, deployment().id, thread_id, run_ids, statuses=statuses, action=action, reason=reason
        )
        next_run = backlog.next_of(conn, deployment().id, thread_id)
    publish_cancels(stopped, settings().event_retention_seconds)
    if stopped:
        notify_next(next_run)
    return bool(stopped)


@bp.operation(
    "DELETE /threads/<thread_id>/runs/<run_id>", "Delete a run", role="run", status=204, errors=(404,)
)
def delete_run(thread_id: UUID, run_id: UUID) -> None:
    """Delete a run. A pending or running run is cancelled first."""
    granted = allow("threads", "delete", run_id=run_id, thread_id=thread_id)
    with connection() as conn:
        error = NotFound("Run not found")
        filters.require_thread(conn, deployment().id, thread_id, granted.filter, lock=True, error=error)
        stopped = cancel.delete_run(conn, deployment().id, thread_id, run_id)
        next_run = backlog.next_of(conn, deployment().id, thread_id) if stopped else None
    if stopped is not None:
        publish_cancels([stopped], settings().event_retention_seconds)
    notify_next(next_run)
