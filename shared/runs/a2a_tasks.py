"""A2A tasks: runs in the terms of the A2A protocol, read by id or listed newest first.

A task is a run whose metadata has the key `a2a`. The view `a2a_task` computes its state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared.errors import NotFound
from shared.infra.postgres import Row
from shared.sql import statement
from shared.user_code import filters
from shared.user_code.filters import Filter

KEY = "a2a"  # key in a run's metadata

SUBMITTED, WORKING, COMPLETED = "submitted", "working", "completed"
FAILED, CANCELED, INPUT_REQUIRED = "failed", "canceled", "input-required"

_TASK = statement("runs.task")
_EXISTS = statement("runs.task_exists")
_MATCHING = """
deployment_id = :deployment_id AND assistant_id = :assistant_id
AND (CAST(:thread_id AS uuid) IS NULL OR thread_id = :thread_id)
AND (CAST(:since AS timestamptz) IS NULL OR updated_at >= :since)
AND (CAST(:state AS text) IS NULL OR state = :state)"""


def get(conn: Connection, deployment_id: UUID, assistant_id: UUID, *, thread_id: UUID, run_id: UUID) -> Row:
    """Return a task with its thread's values. Raises NotFound if it is missing or belongs to another assistant."""
    row = _TASK.row(
        conn, deployment_id=deployment_id, assistant_id=assistant_id, thread_id=thread_id, run_id=run_id
    )
    if row is None:
        raise NotFound("Task not found")
    return row


def require(
    conn: Connection, deployment_id: UUID, assistant_id: UUID, *, thread_id: UUID, run_id: UUID
) -> None:
    """Raise NotFound if the task is missing or belongs to another assistant."""
    key = {"deployment_id": deployment_id, "assistant_id": assistant_id}
    if not _EXISTS.count(conn, **key, thread_id=thread_id, run_id=run_id):
        raise NotFound("Task not found")


@dataclass(frozen=True, kw_only=True)
class TaskFilter:
    """The conditions, page and columns of a list of tasks."""

    thread_id: UUID | None = None
    state: str | None = None
    since: datetime | None = None
    before: UUID | None = None  # id of the last task of the previous page
    limit: int = 50
    with_values: bool = False


def search(
    conn: Connection,
    deployment_id: UUID,
    assistant_id: UUID,
    task_filter: TaskFilter,
    filter: Filter | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> tuple[Sequence[Row], int]:
    """Return a page of tasks and the number of all matching tasks.

    Covers only threads that the filter lets through and that have `metadata`.
    """
    visible, values = filters.with_metadata(filter, metadata or {}, "thread_metadata")
    values |= {"deployment_id": deployment_id, "assistant_id": assistant_id, **vars(task_filter)}
    condition = f"{_MATCHING} AND {visible}"
    rows = statement("runs.tasks", condition=condition).rows(conn, **values)
    counted = statement("runs.count_tasks", condition=condition).rows(conn, **values)
    return rows, counted[0]["n"]
