"""Bulk operations: retry or cancel all runs of a deployment that match a search.

The runs are selected once, when the operation is created. Upkeep then works through them at the operation's rate
(`workers/upkeep/bulk_operations.py`). The transaction that retries or cancels a run also records what was done, so after
a kill the operation continues with the next run, and no run is handled twice. A run that cannot be retried or cancelled
any more is skipped, and its reason recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from uuid_utils.compat import uuid7

from shared.audit import Actor
from shared.deployments import deployments, traffic
from shared.deployments.deployments import DeploymentRef
from shared.errors import (
    Conflict,
    Denied,
    Invalid,
    NotFound,
    Refused,
    RunyardError,
    TooMany,
    Unavailable,
)
from shared.infra.postgres import Row, connection, dumps
from shared.models import LIVE_RUN_STATUSES, UNSUCCESSFUL_RUN_STATUSES, RunStatus
from shared.records import (
    BOOLEAN,
    COUNT,
    ID,
    ID_OR_NULL,
    OBJECT,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_NULL,
    Record,
    RecordField,
    one_of,
    or_null,
    record,
)
from shared.runs import backlog, cancel, configurable, creation, read
from shared.runs.create import Created
from shared.runs.drafts import Creator, RunRequest
from shared.runs.retry import RetryRun
from shared.runs.signals import notify_next, publish_cancels
from shared.settings import Settings
from shared.sql import part, statement

MOST_RUNS = 100_000  # of an operation
MOST_OPEN = 20  # operations of a deployment that are not complete
EXAMPLES = 5
HANDLED_AT_ONCE = 100  # runs that are read at once
REMOVED_AT_ONCE = 5_000
INTERNAL_ERROR = "an internal error: see the log of the service"
CANCEL_REASON = "a bulk operation cancelled the run"


class BulkAction(StrEnum):
    RETRY = "retry"
    CANCEL = "cancel"


class Outcome(StrEnum):
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


STATUSES: dict[BulkAction, tuple[RunStatus, ...]] = {
    BulkAction.RETRY: tuple(UNSUCCESSFUL_RUN_STATUSES),
    BulkAction.CANCEL: tuple(LIVE_RUN_STATUSES),
}

OUTCOMES = tuple(map(str, Outcome))
OPERATION = Record(
    "BulkOperation",
    {
        "id": RecordField(ID),
        "action": RecordField(one_of(*BulkAction)),
        "where": RecordField(OBJECT, ("criteria",), lambda row: row["criteria"]),
        "revision_id": RecordField(ID_OR_NULL),
        "force": RecordField(BOOLEAN),
        "rate": RecordField({"description": "Runs per second", "type": "number"}),
        "status": RecordField(one_of("running", "done", "cancelled")),
        "created_by": RecordField(or_null(record(key_id=TEXT, name=TEXT))),
        "created_at": RecordField(TIME),
        "ended_at": RecordField(TIME_OR_NULL),
        "total": RecordField(COUNT),
        "waiting": RecordField(
            COUNT, ("total", *OUTCOMES), lambda row: row["total"] - sum(row[name] for name in OUTCOMES)
        ),
        **{name: RecordField(COUNT) for name in OUTCOMES},
    },
    internal=["deployment_id"],
)
RUN = Record(
    "BulkRun",
    {
        "run_id": RecordField(ID),
        "thread_id": RecordField(ID),
        "outcome": RecordField({"description": "Null while the run waits", **or_null(one_of(*Outcome))}),
        "detail": RecordField({"description": "Why the run was skipped or failed", **TEXT_OR_NULL}),
        "new_run_id": RecordField({"description": "The run that the retry created", **ID_OR_NULL}),
        "ended_at": RecordField(TIME_OR_NULL),
    },
)

_GET = statement("bulk.get", columns=OPERATION.select)
_SEARCH = statement("bulk.search", columns=OPERATION.select)
_RUNS = statement("bulk.runs", columns=RUN.select)
_CANCEL = statement("bulk.cancel")
_DUE = statement("bulk.due")
_NEXT = statement("bulk.next")
_LOCK = statement("bulk.lock")
_FINISH_RUN = statement("bulk.finish_run")
_FINISH = statement("bulk.finish")
_REMOVE_OLD = statement("bulk.remove_old")
_IS_OF_NO_CALL = part("runs.is_of_no_call")


@dataclass(frozen=True, slots=True)
class Selection:
    """The runs that an operation is about: the filters of a search, and its condition in SQL with the values."""

    action: BulkAction
    criteria: Mapping[str, Any]
    condition: str
    values: Mapping[str, Any]


def select(
    deployment_id: UUID,
    action: BulkAction,
    criteria: Mapping[str, Any],
    *,
    visible: tuple[str, dict[str, Any]] = read.NO_VISIBILITY,
) -> Selection:
    """Return the selection of a search's filters. Raises Invalid for a status that the action cannot handle.

    A retry selects runs of MCP calls only if the filters name their thread.

    `visible` is an SQL condition with its values that selects the runs visible to the caller.
    """
    fitting = STATUSES[action]
    status = [RunStatus(one) for one in criteria.get("status") or fitting]
    unfit = [one for one in status if one not in fitting]
    if unfit:
        expected = ", ".join(fitting)
        reason = f"where.status: runs of the status {unfit[0]} cannot be selected for `{action}`: choose from {expected}"
        raise Invalid(reason, loc=("body", "where", "status"))
    condition, values = read.condition_of(deployment_id, {**criteria, "status": status}, visible)
    if action is BulkAction.RETRY and criteria.get("thread_id") is None:
        condition += f" AND {_IS_OF_NO_CALL}"
    return Selection(action, {**criteria, "status": status}, condition, values)


def preview(conn: Connection, selection: Selection) -> tuple[int, Sequence[Row]]:
    """Return how many runs are selected, up to MOST_RUNS + 1, and the first of them."""
    count = statement("bulk.count_runs", condition=selection.condition)
    (counted,) = count.rows(conn, **selection.values, most=MOST_RUNS + 1)
    examples = statement("bulk.examples", condition=selection.condition, columns=read.RUN.select)
    return counted["n"], examples.rows(conn, **selection.values, limit=EXAMPLES)


def create(
    conn: Connection,
    deployment_id: UUID,
    selection: Selection,
    *,
    by: Actor,
    rate: float,
    revision_id: UUID | None = None,
    force: bool = False,
) -> UUID:
    """Insert an operation and its runs.

    Raises Invalid if more than MOST_RUNS runs are selected, and Conflict if MOST_OPEN operations are not complete.
    """
    operation_id = uuid7()
    values = {
        **selection.values,
        "id": operation_id,
        "deployment_id": deployment_id,
        "action": selection.action,
        "criteria": dumps(selection.criteria),
        "revision_id": revision_id,
        "force": force,
        "rate": rate,
        "created_by": dumps(by.identity),
        "most": MOST_RUNS + 1,
        "most_open": MOST_OPEN,
    }
    row = statement("bulk.create", condition=selection.condition).row(conn, **values)
    if row is None:
        raise Conflict(f"{MOST_OPEN} bulk operations of this deployment are not complete: stop one, or wait.")
    if row["total"] > MOST_RUNS:
        raise Invalid(f"where: more than {MOST_RUNS:,} runs match: narrow the filters", loc=("body", "where"))
    return operation_id


def get(conn: Connection, deployment_id: UUID, operation_id: UUID) -> Row:
    """Return an operation with its counts. Raises NotFound."""
    row = _GET.row(conn, deployment_id=deployment_id, id=operation_id)
    if row is None:
        raise NotFound(f"Bulk operation {operation_id} not found.")
    return row


def search(conn: Connection, deployment_id: UUID, *, limit: int, offset: int) -> Sequence[Row]:
    """Return the deployment's operations, newest first."""
    return _SEARCH.rows(conn, deployment_id=deployment_id, limit=limit, offset=offset)


def runs(
    conn: Connection, operation_id: UUID, *, outcome: str | None, limit: int, offset: int
) -> Sequence[Row]:
    """Return the runs of an operation in the order in which they are handled."""
    return _RUNS.rows(conn, operation_id=operation_id, outcome=outcome, limit=limit, offset=offset)


def stop(conn: Connection, deployment_id: UUID, operation_id: UUID) -> bool:
    """End an operation early. Runs that it has handled stay as they are. Returns False if it has ended already."""
    return _CANCEL.count(conn, id=operation_id, deployment_id=deployment_id) == 1


def remove_old(conn: Connection, *, days: float) -> int:
    """Remove some operations that ended more than `days` days ago, and their runs. Returns the number of removed rows."""
    return _REMOVE_OLD.count(conn, days=days, limit=REMOVED_AT_ONCE)


# Execution


def due(conn: Connection) -> Sequence[Row]:
    """Return the `id` and `deployment_id` of the operations that are not complete, oldest first."""
    return _DUE.rows(conn)


def next_runs(conn: Connection, operation_id: UUID, *, limit: int) -> Sequence[Row]:
    """Return the next runs of an operation. Completes the operation if there are none."""
    rows = _NEXT.rows(conn, id=operation_id, limit=limit)
    if not rows:
        _FINISH.count(conn, id=operation_id)
    return rows


class _NotNext(RunyardError):
    """Another process handles the run, or the operation has ended."""


@dataclass(frozen=True, slots=True)
class Handling:
    """One run of an operation, and the record of what was done to it."""

    operation_id: UUID
    row: Row  # of `next_runs`

    def begin(self, conn: Connection) -> None:
        """Lock the run's record. Raises _NotNext."""
        if _LOCK.row(conn, operation_id=self.operation_id, position=self.row["position"]) is None:
            raise _NotNext

    def complete(self, conn: Connection, created: Sequence[Created]) -> None:
        """Record the run that a retry created."""
        self.record(conn, Outcome.DONE, new_run_id=created[0].run_id)

    def record(
        self, conn: Connection, outcome: Outcome, detail: str | None = None, new_run_id: UUID | None = None
    ) -> None:
        """Record what was done to the run."""
        _FINISH_RUN.count(
            conn,
            operation_id=self.operation_id,
            position=self.row["position"],
            outcome=outcome,
            detail=detail,
            new_run_id=new_run_id,
        )


def handle(operation_id: UUID, row: Row, settings: Settings) -> None:
    """Retry or cancel one run of an operation, and record the outcome.

    A refusal is recorded as `skipped`, another error as `failed`. Raises Unavailable, and TooMany if the deployment has
    too many pending runs: the run is handled later.
    """
    handling = Handling(operation_id, row)
    try:
        if row["action"] == BulkAction.RETRY:
            _retry(handling, settings)
        else:
            _cancel(handling, settings)
    except _NotNext:
        return
    except (Unavailable, TooMany):
        raise
    except RunyardError as error:
        outcome = Outcome.SKIPPED if isinstance(error, Refused | Denied) else Outcome.FAILED
        with connection() as conn:
            handling.record(conn, outcome, error.message)


def fail(operation_id: UUID, row: Row) -> None:
    """Record that an unexpected error ended the handling of a run."""
    with connection() as conn:
        Handling(operation_id, row).record(conn, Outcome.FAILED, INTERNAL_ERROR)


def _retry(handling: Handling, settings: Settings) -> None:
    row = handling.row
    with connection() as conn:
        deployment = _deployment(conn, row)
        try:
            failed = read.get(conn, deployment.id, row["run_id"], thread_id=row["thread_id"])
        except NotFound as error:
            raise NotFound("The run is deleted.") from error
    creator = Creator(
        deployment,
        user=configurable.user_of(failed),
        max_pending_per_thread=settings.max_pending_per_thread,
        max_pending=settings.max_pending_per_deployment,
        event_retention_seconds=settings.event_retention_seconds,
    )
    rule = RetryRun(row["run_id"], force=row["force"])
    request = RunRequest(assistant_id="", thread_id=row["thread_id"], rule=rule)
    creation.create_runs(creator, [request], part=handling)


def _deployment(conn: Connection, row: Row) -> DeploymentRef:
    deployment = deployments.resolve_by_id(conn, row["deployment_id"])
    if deployment is None:
        raise NotFound("The deployment is deleted.")
    if row["revision_id"] is None:
        return deployment
    traffic.require_deployed(
        conn, deployment.organization_id, deployment.id, row["revision_id"], "revision_id"
    )
    return replace(deployment, active_revision_id=row["revision_id"], is_pinned=True)


def _cancel(handling: Handling, settings: Settings) -> None:
    row = handling.row
    with connection() as conn:
        handling.begin(conn)
        stopped = cancel.cancel_run(
            conn, row["deployment_id"], row["thread_id"], row["run_id"], reason=CANCEL_REASON
        )
        handling.record(conn, Outcome.DONE)
        next_run = backlog.next_of(conn, row["deployment_id"], row["thread_id"])
    publish_cancels([stopped], settings.event_retention_seconds)
    notify_next(next_run)
