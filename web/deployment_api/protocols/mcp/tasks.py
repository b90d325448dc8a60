"""Tasks of MCP clients: the shape of a call that its client follows by polling.

A task is the thread of one call, and its newest run gives the state. An error of the graph is a result. A task has failed
only if the platform could not execute its run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from shared.infra.postgres import Row, dumps
from shared.models import LIVE_RUN_STATUSES, RunStatus
from shared.runs import mcp_calls
from shared.runs.end_event import FAILED
from shared.runs.mcp_calls import KEPT, WAITING, CallEnd
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.mcp import questions, results
from web.deployment_api.protocols.mcp.questions import Declined, Question
from web.deployment_api.runs.follower import output_of_thread

INTERNAL_ERROR = -32603
POLL_MS, SLOW_POLL_MS = 1000, 5000
SLOW_AFTER = timedelta(minutes=1)
ABANDONED = "RunAbandoned"  # error of a run whose workers were lost


class TaskStatus(StrEnum):
    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


def open_of(call: Row) -> list[Question]:
    """Return the questions that a call waits with, without those that were answered in part."""
    if not mcp_calls.waits(call):
        return []
    asked = questions.open_questions(call["interrupts"], call["uses"])
    return [question for question in asked if question.key not in call["answers"]]


def status_of(call: Row, *, asks: bool) -> TaskStatus:
    """Return the status of a task. `asks`: the client can be asked; else a question is the end of its task."""
    if call["end"] == CallEnd.CANCELLED:
        return TaskStatus.CANCELLED
    if call["end"] == CallEnd.DECLINED:
        return TaskStatus.COMPLETED
    if call["run_status"] in LIVE_RUN_STATUSES:
        return TaskStatus.WORKING
    if call["run_status"] == RunStatus.INTERRUPTED:
        return TaskStatus.CANCELLED
    if call["run_status"] in FAILED:
        return TaskStatus.FAILED if _error_of(call).get("error") == ABANDONED else TaskStatus.COMPLETED
    return TaskStatus.INPUT_REQUIRED if asks and open_of(call) else TaskStatus.COMPLETED


def is_expired(call: Row) -> bool:
    """Return whether the task ended so long ago that clients cannot read it any more."""
    ended_at = _ended_at(call)
    return ended_at is not None and call["read_at"] > ended_at + KEPT


def summary(call: Row, status: TaskStatus, message: str | None = None) -> dict[str, Any]:
    """Return a task without its result. `message`: what the task does now."""
    age = call["read_at"] - call["created_at"]
    shown: dict[str, Any] = {
        "taskId": str(call["thread_id"]),
        "status": status,
        "createdAt": json_rpc.timestamp(call["created_at"]),
        "lastUpdatedAt": json_rpc.timestamp(max(call["updated_at"], _ended_at(call) or call["updated_at"])),
        "ttlMs": _ttl_ms(call),
        "pollIntervalMs": POLL_MS if age < SLOW_AFTER else SLOW_POLL_MS,
    }
    return shown if message is None else {**shown, "statusMessage": message}


def created(call: Row) -> dict[str, Any]:
    """Return the result of a tool call that has become a task. It is working until the client reads it."""
    return {"resultType": "task", **summary(call, TaskStatus.WORKING), "ttlMs": None}


def detailed(call: Row, tool: Row, *, asks: bool, message: str | None = None) -> dict[str, Any]:
    """Return a task with its result, its error or its open questions."""
    status = status_of(call, asks=asks)
    shown = summary(call, status, message if status == TaskStatus.WORKING else None)
    if status == TaskStatus.INPUT_REQUIRED:
        shown["inputRequests"] = questions.requests(open_of(call))
    elif status == TaskStatus.COMPLETED:
        shown["result"] = _result(call, tool)
    elif status == TaskStatus.FAILED:
        shown["error"] = {"code": INTERNAL_ERROR, "message": str(_error_of(call).get("message"))}
    return shown


def _result(call: Row, tool: Row) -> dict[str, Any]:
    if call["end"] == CallEnd.DECLINED:
        return results.failed(Declined().message)
    failed = call["run_status"] in FAILED
    output = {"__error__": _error_of(call)} if failed else output_of_thread(call)
    return results.tool_result(tool, dumps(output).encode())


def _error_of(call: Row) -> Mapping[str, Any]:
    return call["error"] or {}


def _ended_at(call: Row) -> datetime | None:
    """Return when the task ended, or None while it works or waits."""
    if call["ended_at"] is not None:
        return call["ended_at"]
    return None if mcp_calls.waits(call) else call["run_ended_at"]


def _ttl_ms(call: Row) -> int | None:
    """Return how long the task can be read from its creation on. None while its run is live."""
    ended_at = _ended_at(call)
    if ended_at is not None:
        until = ended_at + KEPT
    elif mcp_calls.waits(call):
        until = call["updated_at"] + WAITING
    else:
        return None
    return int((until - call["created_at"]).total_seconds() * 1000)
