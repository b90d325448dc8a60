"""The methods of tasks: read, answer and cancel a call that has become a task.

A task of another caller is answered like one that does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from flask import Response
from redis.exceptions import RedisError
from sqlalchemy import Connection

from shared import agents
from shared.deployments.deployments import DeploymentRef
from shared.errors import NotFound
from shared.eventlog import events
from shared.infra import redis
from shared.infra.postgres import Row, connection
from shared.models import LIVE_RUN_STATUSES
from shared.runs import backlog, cancel, mcp_calls
from shared.runs.drafts import RunRequest
from shared.runs.mcp_calls import CallEnd
from shared.runs.signals import notify_next, publish_cancels
from shared.user_code import filters
from shared.user_code.filters import Filter
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, RpcError
from web.deployment_api.protocols.mcp import progress, questions, tasks, thread_calls
from web.deployment_api.protocols.mcp.envelope import TASKS_EXTENSION, McpRequest, missing_capability
from web.deployment_api.protocols.mcp.questions import Declined, InvalidResponse
from web.deployment_api.protocols.mcp.request_state import InvalidState
from web.deployment_api.protocols.mcp.thread_calls import (
    TASKS_REQUIRED,
    AnswersMissing,
    ResumeCall,
    Resumption,
    Terms,
)
from web.deployment_api.runs.creation import create_run
from web.gate.context import allow, deployment, run_headers, settings
from web.schemas import fields

NO_TOOL: Row = {"input_schema": {}, "output_schema": None, "options": {}}


class NamedTask(fields.Schema):
    taskId = fields.StrictString(required=True)


class TaskUpdate(NamedTask):
    inputResponses = fields.JsonObject(required=True)


def require_extension(mcp: McpRequest) -> None:
    if not mcp.has_extension(TASKS_EXTENSION):
        raise missing_capability(TASKS_REQUIRED)


def get_task(mcp: McpRequest) -> Response:
    """Answer with a task, its result or its questions. Raises RpcError and Denied."""
    require_extension(mcp)
    task_id = _task_id(mcp.call.read(NamedTask))
    visible = allow("threads", "read", thread_id=task_id).filter
    with connection() as conn:
        call = _visible(conn, task_id, visible)
        return mcp.answer(details(conn, deployment(), mcp, call))


def details(conn: Connection, serving: DeploymentRef, mcp: McpRequest, call: Row) -> dict[str, Any]:
    """Return a task with its result, its error or its open questions."""
    asks = thread_calls.takes_forms(mcp)
    if call["run_status"] in LIVE_RUN_STATUSES:  # most polls: the tool matters only for the result
        return tasks.detailed(call, NO_TOOL, asks=asks, message=_node_of(call["run_id"]))
    rows = agents.tools(conn, serving, assistant_id=call["assistant_id"])
    return tasks.detailed(call, rows[0] if rows else NO_TOOL, asks=asks)


def update_task(mcp: McpRequest) -> Response:
    """Store answers to the questions of a task. The last missing one resumes it. Raises RpcError and Denied."""
    require_extension(mcp)
    sent = mcp.call.read(TaskUpdate)
    task_id, responses = _task_id(sent), sent["inputResponses"]
    visible = allow("threads", "update", thread_id=task_id, metadata={}).filter
    with connection() as conn:
        call = _visible(conn, task_id, visible)
    request = RunRequest(
        assistant_id=str(call["assistant_id"]),
        thread_id=task_id,
        service_metadata=dict(mcp_calls.METADATA),
        stream_mode=thread_calls.STEPS,
        extras=run_headers(),
    )
    try:
        while not _resume(request, responses) and not _store(task_id, responses):
            pass  # another update came between the two: these answers are the last ones now
    except InvalidResponse as error:
        raise RpcError(INVALID_PARAMS, error.message) from error
    except NotFound as error:
        raise RpcError(INVALID_PARAMS, "The assistant of this task is deleted") from error
    return mcp.answer({})


def _resume(request: RunRequest, responses: Mapping[str, Any]) -> bool:
    """Resume a task if no answer is missing. Returns False if answers are missing, or a question was declined."""
    rule = ResumeCall(thread_calls.name_of_caller(), responses)
    request = replace(request, rule=rule)
    try:
        create_run(request, part=Resumption(rule, Terms(asks=True, task_after=0)))
    except (AnswersMissing, Declined):
        return False
    except InvalidState:
        pass  # the task does not wait, so no key is open
    return True


def _store(task_id: UUID, responses: Mapping[str, Any]) -> bool:
    """Store answers of which some are missing, or the end of a task whose question was declined.

    Returns False if no answer is missing any more.
    """
    with connection() as conn:
        call = thread_calls.lock(conn, deployment().id, task_id, thread_calls.name_of_caller())
        if call is None or not mcp_calls.waits(call):
            return True
        asked = questions.open_questions(call["interrupts"], call["uses"])
        try:
            answers = questions.answers_to(asked, responses, call["answers"])
        except Declined:
            mcp_calls.finish(conn, deployment().id, task_id, CallEnd.DECLINED)
            return True
        if not answers.missing:
            return False
        mcp_calls.store_answers(conn, deployment().id, task_id, answers.responses)
        return True


def cancel_task(mcp: McpRequest) -> Response:
    """Cancel a task, whether it works or waits. A task that has ended stays as it is. Raises RpcError and Denied."""
    require_extension(mcp)
    task_id = _task_id(mcp.call.read(NamedTask))
    runs = {"run_ids": None, "status": None}  # the newest run is determined under the thread's lock
    visible = allow("threads", "update", thread_id=task_id, action="interrupt", metadata=runs).filter
    stopped, next_run = [], None
    with connection() as conn:
        _visible(conn, task_id, visible)
        call = thread_calls.lock(conn, deployment().id, task_id, thread_calls.name_of_caller())
        if call is None:
            raise _unknown()
        if call["run_status"] in LIVE_RUN_STATUSES:
            reason = "cancelled by its MCP client"
            stopped = [cancel.cancel_run(conn, deployment().id, task_id, call["run_id"], reason=reason)]
            next_run = backlog.next_of(conn, deployment().id, task_id)
        elif mcp_calls.waits(call):
            mcp_calls.finish(conn, deployment().id, task_id, CallEnd.CANCELLED)
    publish_cancels(stopped, settings().event_retention_seconds)
    notify_next(next_run)
    return mcp.answer({})


def _task_id(sent: Mapping[str, Any]) -> UUID:
    try:
        return UUID(sent["taskId"])
    except ValueError:
        raise _unknown() from None


def _unknown() -> RpcError:
    return RpcError(INVALID_PARAMS, "params.taskId: unknown task")


def _visible(conn: Connection, task_id: UUID, visible: Filter | None) -> Row:
    """Return a task of the caller. Raises RpcError if it is missing, hidden, another caller's, or expired."""
    call = mcp_calls.get(conn, deployment().id, task_id, caller=thread_calls.name_of_caller())
    if call is None or not call["is_task"] or tasks.is_expired(call):
        raise _unknown()
    if filters.is_thread_hidden(conn, deployment().id, task_id, visible):
        raise _unknown()
    return call


def _node_of(run_id: UUID) -> str | None:
    """Return the name of the node of a live run that ended last, if its newest event tells it."""
    try:
        newest = events.newest(redis.events(run_id), run_id)
    except RedisError:
        return None
    return None if newest is None else progress.node_of(newest) or None
