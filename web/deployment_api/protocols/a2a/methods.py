"""The methods of A2A: each creates, follows, finds or cancels runs of one assistant.

Both protocol versions have the same methods under different names. The name determines the shape of the answer.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from uuid import UUID

from flask import Response, request
from uuid_utils.compat import uuid7

from shared.errors import Conflict, NotFound, TooMany, Unavailable
from shared.eventlog.hub import hub
from shared.infra.postgres import connection
from shared.models import LIVE_RUN_STATUSES
from shared.runs import a2a_tasks
from shared.user_code import filters
from shared.user_code.authorization import Granted
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.a2a import tasks
from web.deployment_api.protocols.a2a.follow import AgentCall, Follower
from web.deployment_api.protocols.a2a.incoming import Send, run_request
from web.deployment_api.protocols.a2a.shapes import CONTEXT, SCOPE_HEADER, SCOPES, STATES, card
from web.deployment_api.protocols.a2a.tasks import (
    TASK_NOT_CANCELABLE,
    UNSUPPORTED_OPERATION,
    ShownHistory,
    TaskId,
)
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, RpcError
from web.deployment_api.runs.creation import create_run
from web.gate.context import allow, deployment, metadata_of
from web.gate.observation import take_slot
from web.schemas import fields

PAGE, MAX_PAGE = 50, 100


class Named(fields.Schema):
    """Parameters that name a task."""

    id = fields.StrictString(required=True, min_length=1)
    historyLength = fields.StrictInteger(minimum=0, allow_none=True)
    historyScope = fields.OneOf(*SCOPES, allow_none=True)


class TaskListing(fields.Schema):
    contextId = fields.StrictString(allow_none=True)
    status = fields.StrictString(allow_none=True)
    pageSize = fields.StrictInteger(minimum=0, allow_none=True)
    pageToken = fields.StrictString(allow_none=True)
    historyLength = fields.StrictInteger(minimum=0, allow_none=True)
    historyScope = fields.OneOf(*SCOPES, allow_none=True)
    includeArtifacts = fields.StrictBoolean(allow_none=True)
    statusTimestampAfter = fields.TimeField(allow_none=True)


def send(agent_call: AgentCall) -> Response:
    """Create a task and answer with it when it has ended, or at once if the call requests that."""
    body = agent_call.call.read(Send)
    sent = body["configuration"] or {}
    history = _history(sent)
    if sent.get("returnImmediately") or sent.get("blocking") is False:
        follower = Follower(agent_call, _create(agent_call, body, uuid7()), history)
        return agent_call.answer(agent_call.shapes.sent(follower.submitted()))
    take_slot()
    run_id = uuid7()
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(run_id, before_creation=True))
        follower = Follower(agent_call, _create(agent_call, body, run_id), history)
        return follower.answer(reader, stack.pop_all(), after=0, shown=agent_call.shapes.sent)


def send_streaming(agent_call: AgentCall) -> Response:
    body = agent_call.call.read(Send)
    take_slot()
    run_id = uuid7()
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(run_id, before_creation=True))
        follower = Follower(agent_call, _create(agent_call, body, run_id))
        return follower.stream(reader, stack.pop_all(), follower.submitted())


def _create(agent_call: AgentCall, body: dict[str, Any], run_id: UUID) -> TaskId:
    """Create the run that a message requests. Returns the id of its task. Raises RpcError."""
    try:
        created = create_run(run_request(agent_call.agent, body, run_id), assistant_read=agent_call.read)
    except Conflict as error:  # another client has answered the question in the meantime
        raise RpcError(UNSUPPORTED_OPERATION, error.message) from error
    return TaskId(created.thread_id, created.run_id)


def _readable_task(agent_call: AgentCall, id: TaskId) -> Follower:
    """Authorize reading a task and return its follower. Raises Denied."""
    return Follower(agent_call, id, visible=allow("threads", "read", thread_id=id.thread_id).filter)


def get_task(agent_call: AgentCall) -> Response:
    named = agent_call.call.read(Named)
    follower = _readable_task(agent_call, TaskId.parse(named["id"]))
    return agent_call.answer(agent_call.shapes.task(tasks.of_row(follower.row(), _history(named))))


def subscribe(agent_call: AgentCall) -> Response:
    """Stream a task as it is now, then its updates. If the task has ended, the stream has no updates."""
    follower = _readable_task(agent_call, TaskId.parse(agent_call.call.read(Named)["id"]))
    take_slot()
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(follower.id.run_id))
        row = follower.row()
        if row["status"] in LIVE_RUN_STATUSES:
            return follower.stream(reader, stack.pop_all(), tasks.of_row(row))
    whole = agent_call.shapes.first(tasks.of_row(row))
    return Response(
        json_rpc.event(json_rpc.result(agent_call.call.id, whole)),
        content_type="text/event-stream; charset=utf-8",
    )


def cancel_task(agent_call: AgentCall) -> Response:
    """Cancel a task and answer with it when it has ended, or at once if no stream slot is free to wait in."""
    id = TaskId.parse(agent_call.call.read(Named)["id"])
    runs = {"run_ids": [str(id.run_id)], "status": None}
    granted = allow("threads", "update", thread_id=id.thread_id, action="interrupt", metadata=runs)
    follower = Follower(agent_call, id, visible=granted.filter)
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(id.run_id))
        follower.row()
        before, _ = follower.run.extent()
        try:
            stopped = follower.run.cancel_now("cancelled by its A2A client")
        except NotFound:
            raise RpcError(TASK_NOT_CANCELABLE, "The task has ended already") from None
        if stopped.is_over:
            return agent_call.answer(agent_call.shapes.task(follower.ended(None)))
        if not _take_slot_if_free():
            return agent_call.answer(agent_call.shapes.task(tasks.of_row(follower.row())))
        return follower.answer(reader, stack.pop_all(), after=before, shown=agent_call.shapes.task)


def _take_slot_if_free() -> bool:
    """Take a stream slot. Returns False if none is free.

    A client that follows the task in its last slot must still be able to cancel it, so a missing slot is no error here.
    """
    try:
        take_slot()
    except (TooMany, Unavailable):
        return False
    return True


def list_tasks(agent_call: AgentCall) -> Response:
    """Answer with a page of an assistant's tasks, newest first."""
    sent = agent_call.call.read(TaskListing)
    size = min(sent.get("pageSize") or PAGE, MAX_PAGE)
    with_artifacts, length = bool(sent.get("includeArtifacts")), sent.get("historyLength") or 0
    task_filter = a2a_tasks.TaskFilter(
        thread_id=_uuid(sent, "contextId"),
        state=_state(sent.get("status")),
        since=sent.get("statusTimestampAfter"),
        before=_uuid(sent, "pageToken"),
        limit=size + 1,
        with_values=with_artifacts or length > 0,
    )
    thread = {} if task_filter.thread_id is None else {"thread_id": task_filter.thread_id}
    granted = allow("threads", "search", metadata={}, values={}, status=None, limit=size, offset=0, **thread)
    with connection() as conn:
        rows, total = a2a_tasks.search(
            conn,
            deployment().id,
            agent_call.agent["assistant_id"],
            task_filter,
            granted.filter,
            metadata_of(granted),
        )
    history = _history({**sent, "historyLength": length})
    shown = [
        agent_call.shapes.task(tasks.of_row(row, history), with_artifacts=with_artifacts)
        for row in rows[:size]
    ]
    following = str(rows[size - 1]["run_id"]) if len(rows) > size else ""
    return agent_call.answer(
        {"tasks": shown, "nextPageToken": following, "pageSize": size, "totalSize": total}
    )


def extended_card(agent_call: AgentCall) -> Response:
    if agent_call.read is None:
        readable(agent_call.agent["assistant_id"])
    return agent_call.answer(card(agent_call.agent))


def readable(assistant_id: UUID) -> Granted:
    """Authorize reading an assistant and return the grant. Raises Denied, and NotFound if a filter hides it."""
    granted = allow("assistants", "read", assistant_id=assistant_id)
    with connection() as conn:
        filters.require_assistant(conn, deployment().id, assistant_id, granted.filter)
    return granted


def _history(sent: dict[str, Any]) -> ShownHistory:
    """Return which part of the history the call requests. Its parameters take precedence over the header."""
    scope = sent.get("historyScope") or request.headers.get(SCOPE_HEADER, CONTEXT)
    if scope not in SCOPES:
        raise RpcError(INVALID_PARAMS, f"{SCOPE_HEADER}: must be {' or '.join(SCOPES)}")
    return ShownHistory(scope, sent.get("historyLength"))


def _uuid(sent: dict[str, Any], name: str) -> UUID | None:
    text = sent.get(name)
    try:
        return UUID(text) if text else None
    except ValueError:
        raise RpcError(INVALID_PARAMS, f"{name}: must be an id from this server") from None


def _state(word: str | None) -> str | None:
    """Return the state that a listing selects, from its name in either protocol version. Raises RpcError."""
    if not word or word == "TASK_STATE_UNSPECIFIED":
        return None
    state = word.removeprefix("TASK_STATE_").lower().replace("_", "-")
    if state not in (*STATES, "rejected", "auth-required"):
        raise RpcError(INVALID_PARAMS, f"status: must be one of {', '.join(STATES)}")
    return state
