"""Calls of MCP clients on threads of their own: a call that may ask its client, or that the client follows as a task.

A call's newest run gives its state. While the thread is interrupted, the call waits for answers. Callers that change a
call lock its thread first, so that an answer, a second answer and a cancellation follow one another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from shared.infra.arrays import bigints, texts, uuids
from shared.infra.postgres import Row, dumps
from shared.models import RunStatus, ThreadStatus
from shared.sql import Conn, statement

KEPT = timedelta(hours=1)  # time for which a task can be read after its end
WAITING = timedelta(days=1)  # time for which a task waits for an answer
METADATA = {"mcp": True}  # in the metadata of runs that MCP clients create, and of these runs' new threads

_INSERT = statement("mcp.insert")
_GET = statement("mcp.get")
_STATES = statement("mcp.states")
_MAKE_TASK = statement("mcp.make_task")
_STORE_ANSWERS = statement("mcp.store_answers")
_RESUMED = statement("mcp.resumed")
_FINISH = statement("mcp.finish")
_KEEP_WAITING = statement("mcp.keep_waiting")


class CallEnd(StrEnum):
    """Ends of calls that waited for an answer."""

    DECLINED = "declined"
    CANCELLED = "cancelled"


def insert(conn: Conn, deployment_id: UUID, thread_id: UUID, *, caller: str, is_task: bool) -> None:
    """Insert a call in the transaction that creates its thread, which is not listed."""
    _INSERT.count(conn, deployment_id=deployment_id, thread_id=thread_id, caller=caller, is_task=is_task)


def get(conn: Conn, deployment_id: UUID, thread_id: UUID, *, caller: str) -> Row | None:
    """Return a call with its thread and its newest run. Returns None if it is missing or another caller's."""
    return _GET.row(conn, deployment_id=deployment_id, thread_id=thread_id, caller=caller)


@dataclass(frozen=True, slots=True)
class FollowedCalls:
    """Calls that a caller follows."""

    deployment_id: UUID
    thread_ids: Sequence[UUID]
    caller: str


def states(conn: Conn, followed: Sequence[FollowedCalls]) -> list[dict[UUID, str]]:
    """Return for each caller a text for each of its calls. It changes whenever the state of the call changes."""
    calls = [
        (number, one.deployment_id, thread_id, one.caller)
        for number, one in enumerate(followed)
        for thread_id in one.thread_ids
    ]
    found: list[dict[UUID, str]] = [{} for _ in followed]
    rows = _STATES.rows(
        conn,
        numbers=bigints([number for number, *_ in calls]),
        deployment_ids=uuids([deployment_id for _, deployment_id, *_ in calls]),
        thread_ids=uuids([thread_id for *_, thread_id, _ in calls]),
        callers=texts([caller for *_, caller in calls]),
    )
    for row in rows:
        found[row["number"]][row["thread_id"]] = row["state"]
    return found


def waits(call: Row) -> bool:
    """Return whether a graph waits for an answer of the call's client."""
    return (
        call["end"] is None
        and call["run_status"] == RunStatus.SUCCESS
        and call["thread_status"] == ThreadStatus.INTERRUPTED
        and any((call["interrupts"] or {}).values())
    )


def make_task(conn: Conn, deployment_id: UUID, thread_id: UUID) -> bool:
    """Record that the client will know the call as a task. Returns False if its thread is deleted."""
    return _MAKE_TASK.count(conn, deployment_id=deployment_id, thread_id=thread_id) > 0


def store_answers(conn: Conn, deployment_id: UUID, thread_id: UUID, answers: Mapping[str, Any]) -> None:
    """Store the responses to some of the open questions. The caller holds the lock of the thread."""
    _STORE_ANSWERS.count(conn, deployment_id=deployment_id, thread_id=thread_id, answers=dumps(answers))


def record_resumption(conn: Conn, deployment_id: UUID, thread_id: UUID, uses: Mapping[str, int]) -> None:
    """Count the answered questions, in the transaction that creates the run which answers them."""
    _RESUMED.count(conn, deployment_id=deployment_id, thread_id=thread_id, uses=dumps(uses))


def finish(conn: Conn, deployment_id: UUID, thread_id: UUID, end: CallEnd) -> None:
    """End a call that waits. The caller holds the lock of the thread."""
    minutes = KEPT / timedelta(minutes=1)
    _FINISH.count(conn, deployment_id=deployment_id, thread_id=thread_id, end=end, minutes=minutes)


def keep_waiting(conn: Conn, deployment_id: UUID, thread_id: UUID) -> bool:
    """Extend the time to live of the thread of a task that waits for an answer. The caller holds the lock of the thread.

    Returns False if the call is no task, does not wait, or has waited for WAITING.
    """
    minutes = WAITING / timedelta(minutes=1)
    return _KEEP_WAITING.count(conn, deployment_id=deployment_id, thread_id=thread_id, minutes=minutes) > 0
