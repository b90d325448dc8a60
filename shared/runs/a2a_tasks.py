"""A2A tasks: runs in the terms of the A2A protocol, read by id or listed by their last change.

A run is of a task if its metadata has the key `a2a`. The first run gives the task its id; the runs that answer its
questions and continue it carry the id as `task_id`. The view `a2a_task` has the newest run and the state of each task.
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
from shared.sql import part, statement
from shared.user_code import filters
from shared.user_code.filters import Filter

KEY = "a2a"  # key in a run's metadata
TASK_ID, CANCELED_MARK = "task_id", "canceled"  # keys below it

SUBMITTED, WORKING, COMPLETED = "submitted", "working", "completed"
FAILED, CANCELED, INPUT_REQUIRED = "failed", "canceled", "input-required"
TERMINAL = frozenset({COMPLETED, FAILED, CANCELED})

_RUNS = part("runs.task_runs")
_NEWEST = part("runs.newest_run")
_TASK = statement("runs.task", runs=_RUNS, newest_run=_NEWEST)
_STATE = statement("runs.task_state", newest_run=_NEWEST)
_OPEN = statement("runs.open_task", open_task=part("runs.open_task"))
_AFTER = statement("runs.task_after")
_LIVE = statement("runs.task_live")
_QUESTION = statement("runs.task_question")
_MATCHING = """
deployment_id = :deployment_id AND assistant_id = :assistant_id
AND (CAST(:thread_id AS uuid) IS NULL OR thread_id = :thread_id)
AND (CAST(:since AS timestamptz) IS NULL OR updated_at >= :since)
AND (CAST(:state AS text) IS NULL OR state = :state)"""
# What the columns say about tasks in a state. Reading them is much quicker than computing the state of every task.
_IN_STATE = {
    SUBMITTED: "status = 'pending'",
    WORKING: "is_live(status)",
    COMPLETED: "status = 'success'",
    FAILED: "status NOT IN ('pending', 'running', 'success', 'interrupted')",
    CANCELED: "(status = 'interrupted' OR is_canceled)",
    INPUT_REQUIRED: "status = 'success' AND rest_status = 'interrupted'",
}
MAX_COUNT = 10_000


@dataclass(frozen=True, slots=True)
class TaskKey:
    """A task of an assistant, which is named by its thread and its first run."""

    deployment_id: UUID
    assistant_id: UUID
    thread_id: UUID
    first_run: UUID

    @property
    def on_thread(self) -> dict[str, Any]:
        id = id_of(self.thread_id, self.first_run)
        return {"deployment_id": self.deployment_id, "thread_id": self.thread_id, "task_id": id}

    @property
    def all(self) -> dict[str, Any]:
        return {**self.on_thread, "assistant_id": self.assistant_id, "first_run": self.first_run}


def id_of(thread_id: UUID, first_run: UUID) -> str:
    """Return the id of a task, as the SQL function `a2a_task_id` does."""
    return f"{thread_id}:{first_run}"


def missing() -> NotFound:
    return NotFound("Task not found")


def get(conn: Connection, key: TaskKey) -> Row:
    """Return a task with its thread's values and its runs. Raises NotFound, also for a task of another assistant.

    Does not apply the caller's filter for threads.
    """
    row = _TASK.row(conn, **key.all, with_values=True)
    if row is None:
        raise missing()
    return row


def state(conn: Connection, key: TaskKey) -> Row:
    """Return the state of a task and its newest run. Raises NotFound as `get` does."""
    row = _STATE.row(conn, **key.all)
    if row is None:
        raise missing()
    return row


def of_newest_run(conn: Connection, deployment_id: UUID, thread_id: UUID) -> Row | None:
    """Return the task of a thread's newest run, or None if that run belongs to no task."""
    return _OPEN.row(conn, deployment_id=deployment_id, thread_id=thread_id)


def run_after(conn: Connection, key: TaskKey, created_seq: int) -> Row | None:
    """Return the next run of a task after the run with this number, or None."""
    return _AFTER.row(conn, **key.on_thread, after=created_seq)


def live_runs(conn: Connection, key: TaskKey) -> list[UUID]:
    return [row["run_id"] for row in _LIVE.rows(conn, **key.on_thread)]


def question(conn: Connection, key: TaskKey) -> UUID | None:
    """Return an open question of a task that requires input, or None if its thread has none."""
    row = _QUESTION.row(conn, deployment_id=key.deployment_id, thread_id=key.thread_id)
    return None if row is None else row["question_id"]


def id_of_run(run: Row) -> str:
    """Return the id of the task that a run belongs to."""
    return run["metadata"][KEY].get(TASK_ID) or id_of(run["thread_id"], run["run_id"])


def detached(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's metadata without its place in a task that has ended: a copy of the run begins a new task."""
    origin = metadata.get(KEY)
    if not isinstance(origin, dict):
        return dict(metadata)
    kept = {name: value for name, value in origin.items() if name not in (TASK_ID, CANCELED_MARK)}
    return {**metadata, KEY: kept}


@dataclass(frozen=True, kw_only=True)
class TaskFilter:
    """The conditions, page and columns of a list of tasks."""

    thread_id: UUID | None = None
    state: str | None = None
    since: datetime | None = None
    before: datetime | None = None  # time of the last change of the previous page's last task
    before_run: UUID | None = None  # and that task's newest run
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
    """Return a page of tasks, the last changed first, and the number of all matching tasks, at most MAX_COUNT.

    Covers only threads that the filter lets through and that have `metadata`.
    """
    visible, values = filters.with_metadata(filter, metadata or {}, "thread_metadata")
    values |= {"deployment_id": deployment_id, "assistant_id": assistant_id, **vars(task_filter)}
    in_state = "true" if task_filter.state is None else _IN_STATE.get(task_filter.state, "false")
    condition = f"{_MATCHING} AND {in_state} AND {visible}"
    rows = statement("runs.tasks", condition=condition, runs=_RUNS).rows(conn, **values)
    counted = statement("runs.count_tasks", condition=condition).rows(conn, **values, most=MAX_COUNT)
    return rows, counted[0]["n"]
