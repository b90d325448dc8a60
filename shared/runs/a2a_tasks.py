"""A2A tasks: runs in the terms of the A2A protocol, read by id or listed newest first.

A task is a run whose metadata has the key `a2a`. A task requires input as long as its thread is interrupted and no
later run was created on the thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared.errors import NotFound
from shared.infra.postgres import Row, dumps, query
from shared.runs.read import IS_FOLLOWED
from shared.user_code import filters
from shared.user_code.filters import Filter

KEY = "a2a"  # key in a run's metadata

SUBMITTED, WORKING, COMPLETED = "submitted", "working", "completed"
FAILED, CANCELED, INPUT_REQUIRED = "failed", "canceled", "input-required"

_STATE = f"""
CASE r.status WHEN 'pending' THEN '{SUBMITTED}' WHEN 'running' THEN '{WORKING}'
              WHEN 'interrupted' THEN '{CANCELED}'
              WHEN 'success' THEN CASE WHEN l.later OR t.rest_status IS DISTINCT FROM 'interrupted'
                                       THEN '{COMPLETED}' ELSE '{INPUT_REQUIRED}' END
              ELSE '{FAILED}' END"""

_FROM = f"""
FROM run r
JOIN thread t ON t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
CROSS JOIN LATERAL (SELECT {IS_FOLLOWED} AS later) l
CROSS JOIN LATERAL (SELECT {_STATE} AS state) s
WHERE r.deployment_id = %(deployment_id)s AND r.assistant_id = %(assistant_id)s AND r.metadata ? '{KEY}'"""

_COLUMNS = """
r.run_id, r.thread_id, r.status, r.error, r.metadata -> 'a2a' AS a2a, r.updated_at, NOT l.later AS is_newest,
s.state, CASE WHEN %(with_values)s THEN r.input END AS input, CASE WHEN %(with_values)s THEN t.values END AS values,
CASE WHEN s.state = 'input-required' THEN t.interrupts END AS interrupts"""

GET = f"SELECT {_COLUMNS} {_FROM} AND r.run_id = %(run_id)s AND r.thread_id = %(thread_id)s"

_MATCHING = f"""
{_FROM}
  AND (CAST(%(thread_id)s AS uuid) IS NULL OR r.thread_id = %(thread_id)s)
  AND (CAST(%(since)s AS timestamptz) IS NULL OR r.updated_at >= %(since)s)
  AND (CAST(%(state)s AS text) IS NULL OR s.state = %(state)s)"""

_PAGE = """
  AND (CAST(%(before)s AS uuid) IS NULL OR r.run_id < %(before)s)
ORDER BY r.run_id DESC LIMIT %(limit)s"""


def get(conn: Connection, deployment_id: UUID, assistant_id: UUID, *, thread_id: UUID, run_id: UUID) -> Row:
    """Return a task with its thread's values. Raises NotFound if it is missing or belongs to another assistant."""
    wanted = {"deployment_id": deployment_id, "assistant_id": assistant_id, "with_values": True}
    row = query(conn, GET, {**wanted, "thread_id": thread_id, "run_id": run_id}).fetchone()
    if row is None:
        raise NotFound("Task not found")
    return row


EXISTS = f"""
SELECT 1 FROM run WHERE deployment_id = %(deployment_id)s AND assistant_id = %(assistant_id)s
    AND thread_id = %(thread_id)s AND run_id = %(run_id)s AND metadata ? '{KEY}'"""


def require(
    conn: Connection, deployment_id: UUID, assistant_id: UUID, *, thread_id: UUID, run_id: UUID
) -> None:
    """Raise NotFound if the task is missing or belongs to another assistant."""
    key = {"deployment_id": deployment_id, "assistant_id": assistant_id}
    if query(conn, EXISTS, {**key, "thread_id": thread_id, "run_id": run_id}).fetchone() is None:
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
    wanted: TaskFilter,
    filter: Filter | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> tuple[list[Row], int]:
    """Return a page of tasks and the number of all matching tasks.

    Covers only threads that the filter lets through and that have `metadata`.
    """
    visible, values = filters.for_driver(filter, "t.metadata")
    if metadata:
        visible += " AND t.metadata @> CAST(%(metadata)s AS jsonb)"
        values["metadata"] = dumps(metadata)
    parameters: dict[str, Any] = {
        "deployment_id": deployment_id,
        "assistant_id": assistant_id,
        **vars(wanted),
        **values,
    }
    matching = f"{_MATCHING} AND {visible}"
    counted = query(conn, f"SELECT count(*) AS n {matching}", parameters).fetchone()
    return list(
        query(conn, f"SELECT {_COLUMNS} {matching} {_PAGE}", parameters)
    ), 0 if counted is None else counted["n"]
