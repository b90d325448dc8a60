"""The methods of A2A: each creates, follows, finds or cancels runs of one assistant.

Both protocol versions have the same methods under different names. The name determines the shape of the answer.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from flask import Response, request
from uuid_utils.compat import uuid7

from shared.errors import Conflict, TooMany, Unavailable
from shared.inbox import answers
from shared.infra.postgres import Row, connection
from shared.models import LIVE_RUN_STATUSES
from shared.runs import a2a_tasks, backlog, cancel
from shared.runs.a2a_tasks import INPUT_REQUIRED, TERMINAL
from shared.runs.cancel import Displaced
from shared.runs.create import Created
from shared.runs.signals import notify_next, publish_cancels
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.a2a import tasks
from web.deployment_api.protocols.a2a.card import SCOPE_HEADER, active_extensions, card
from web.deployment_api.protocols.a2a.errors import TASK_NOT_CANCELABLE, UNSUPPORTED_OPERATION
from web.deployment_api.protocols.a2a.follow import AgentCall, Follower, short_stream
from web.deployment_api.protocols.a2a.incoming import Send, run_request
from web.deployment_api.protocols.a2a.shapes import CONTEXT, SCOPES, STATES, Version03
from web.deployment_api.protocols.a2a.tasks import TaskId, View
from web.deployment_api.protocols.access import require_readable
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, RpcError
from web.deployment_api.runs.creation import create_run
from web.gate.addresses import client_address
from web.gate.context import allow, caller, deployment, metadata_of, settings, user_document
from web.gate.observation import take_slot
from web.schemas import fields

PAGE, MAX_PAGE = 50, 100
TRIES = 3  # of a cancel whose task changes meanwhile
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
    """Send a message and answer with its task when it has ended or asks, or at once if the call requests that."""
    body = agent_call.call.read(Send)
    sent = body["configuration"] or {}
    view = _view(agent_call, sent)
    if sent.get("returnImmediately") or sent.get("blocking") is False:
        follower, _ = _create(agent_call, body, view)
        return agent_call.answer(agent_call.shapes.sent(follower.submitted()))
    take_slot()
    with ExitStack() as stack:
        follower, created = _create(agent_call, body, view)
        after = created.row["created_seq"] - 1
        return follower.answer(stack.pop_all(), after, agent_call.shapes.sent)


def send_streaming(agent_call: AgentCall) -> Response:
    body = agent_call.call.read(Send)
    view = _view(agent_call, body["configuration"] or {})
    take_slot()
    with ExitStack() as stack:
        follower, created = _create(agent_call, body, view)
        return follower.stream(stack.pop_all(), follower.submitted(), after=created.row["created_seq"] - 1)


def _create(agent_call: AgentCall, body: dict[str, Any], view: View) -> tuple[Follower, Created]:
    """Create the run that a message requests. Returns a follower of its task. Raises RpcError."""
    try:
        created = create_run(run_request(agent_call.agent, body, uuid7()), assistant_read=agent_call.read)
    except Conflict as error:  # other clients changed the thread during every attempt
        raise RpcError(UNSUPPORTED_OPERATION, error.message) from error
    task_id = a2a_tasks.id_of_run(created.row)
    return Follower(agent_call, TaskId.parse(task_id), view), created


def _readable_task(agent_call: AgentCall, named: dict[str, Any]) -> Follower:
    """Authorize reading a task and return its follower. Raises Denied."""
    id = TaskId.parse(named["id"])
    visible = allow("threads", "read", thread_id=id.thread_id).filter
    return Follower(agent_call, id, _view(agent_call, named), visible=visible)


def get_task(agent_call: AgentCall) -> Response:
    follower = _readable_task(agent_call, agent_call.call.read(Named))
    return agent_call.answer(agent_call.shapes.task(follower.now()))


def subscribe(agent_call: AgentCall) -> Response:
    """Stream a task as it is now, then its updates until it has ended, also while it waits for an answer."""
    follower = _readable_task(agent_call, agent_call.call.read(Named))
    take_slot()
    row = follower.row()
    if row["state"] not in TERMINAL:
        after = row["created_seq"] - (row["status"] in LIVE_RUN_STATUSES)
        with ExitStack() as stack:
            task = tasks.of_row(row, follower.view)
            return follower.stream(stack.pop_all(), task, after=after, waits=True)
    if not isinstance(agent_call.shapes, Version03):
        raise RpcError(UNSUPPORTED_OPERATION, f"The task has ended: it is {row['state']}")
    whole = agent_call.shapes.first(tasks.of_row(row, follower.view))
    return short_stream(json_rpc.result(agent_call.call.id, whole))


def cancel_task(agent_call: AgentCall) -> Response:
    """Cancel a task and answer with it when it has ended, or at once if no stream slot is free to wait in.

    The question of a task that waits for an answer is dropped: its thread ends, and the next message is a new task.
    """
    named = agent_call.call.read(Named)
    id = TaskId.parse(named["id"])
    runs = {"run_ids": [str(id.run_id)], "status": None}
    granted = allow("threads", "update", thread_id=id.thread_id, action="interrupt", metadata=runs)
    follower = Follower(agent_call, id, _view(agent_call, named), visible=granted.filter)
    has_slot, refusal = False, "The task changed during every attempt to cancel it. Try again"
    for _ in range(TRIES):
        with connection() as conn:
            state = follower.state(conn)
        if state["state"] in TERMINAL:
            raise RpcError(TASK_NOT_CANCELABLE, f"The task has ended already: it is {state['state']}")
        has_slot = has_slot or _take_slot_if_free()
        if state["state"] == INPUT_REQUIRED:
            try:
                _drop_question(follower)
            except Conflict as error:  # another client answered or cancelled, or no revision is served
                refusal = error.message
                continue
            return agent_call.answer(agent_call.shapes.task(follower.now()))
        stopped = _cancel_runs(follower)
        if not stopped:
            continue  # the run ended meanwhile
        if has_slot and not all(run.is_over for run in stopped):
            with ExitStack() as stack:
                return follower.answer(stack.pop_all(), state["created_seq"] - 1, agent_call.shapes.task)
        return agent_call.answer(agent_call.shapes.task(follower.now()))
    raise RpcError(TASK_NOT_CANCELABLE, refusal)


def _cancel_runs(follower: Follower) -> list[Displaced]:
    """Cancel the live runs of a task and return them."""
    key = follower.key
    with connection() as conn:
        live = a2a_tasks.live_runs(conn, key)
        reason = "cancelled by its A2A client"
        stopped = cancel.cancel_runs(conn, key.deployment_id, key.thread_id, live, reason=reason)
        next_run = backlog.next_of(conn, key.deployment_id, key.thread_id)
    publish_cancels(stopped, settings().event_retention_seconds)
    notify_next(next_run)
    return stopped


def _drop_question(follower: Follower) -> None:
    """End the thread of a task that waits for an answer. Raises Conflict if it waits no more."""
    with connection() as conn:
        question_id = a2a_tasks.question(conn, follower.key)
    if question_id is None:
        raise Conflict("The question of this task is not stored: answer it, or delete its thread")
    address, key_id, user = client_address(settings()), caller().key_id, user_document()
    answers.cancel(deployment(), question_id, key_id=key_id, address=address, user=user)


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
    """Answer with a page of an assistant's tasks, those that changed last first."""
    sent = agent_call.call.read(TaskListing)
    size = min(sent.get("pageSize") or PAGE, MAX_PAGE)
    with_artifacts, length = bool(sent.get("includeArtifacts")), sent.get("historyLength") or 0
    before, before_run = _page_after(sent.get("pageToken"))
    task_filter = a2a_tasks.TaskFilter(
        thread_id=_thread_id(sent.get("contextId")),
        state=_state(sent.get("status")),
        since=sent.get("statusTimestampAfter"),
        before=before,
        before_run=before_run,
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
    view = _view(agent_call, {**sent, "historyLength": length})
    shown = [
        agent_call.shapes.task(tasks.of_row(row, view), with_artifacts=with_artifacts) for row in rows[:size]
    ]
    following = _page_token(rows[size - 1]) if len(rows) > size else ""
    return agent_call.answer(
        {"tasks": shown, "nextPageToken": following, "pageSize": size, "totalSize": total}
    )


def _page_token(row: Row) -> str:
    """Return the token of the page after a task: the time of its last change in microseconds, and its newest run."""
    return f"{(row['updated_at'] - EPOCH) // timedelta(microseconds=1)}.{row['run_id']}"


def _page_after(token: str | None) -> tuple[datetime | None, UUID | None]:
    """Return the position that a page token names. Raises RpcError."""
    if not token:
        return None, None
    microseconds, _, run_id = token.partition(".")
    try:
        return EPOCH + timedelta(microseconds=int(microseconds)), UUID(run_id)
    except (ValueError, OverflowError):
        raise RpcError(INVALID_PARAMS, "pageToken: must be a nextPageToken of this server") from None


def extended_card(agent_call: AgentCall) -> Response:
    if agent_call.read is None:
        require_readable(agent_call.agent["assistant_id"])
    return agent_call.answer(card(agent_call.agent))


def _view(agent_call: AgentCall, sent: dict[str, Any]) -> View:
    """Return what the call shows of a task. Its parameters take precedence over the header."""
    scope = sent.get("historyScope") or request.headers.get(SCOPE_HEADER, CONTEXT)
    if scope not in SCOPES:
        raise RpcError(INVALID_PARAMS, f"{SCOPE_HEADER}: must be {' or '.join(SCOPES)}")
    return View(scope, sent.get("historyLength"), bool(active_extensions(agent_call.agent)))


def _thread_id(context_id: str | None) -> UUID | None:
    """Return the thread of a context, None for no context. A text that names no context stands for one without tasks."""
    try:
        return UUID(context_id) if context_id else None
    except ValueError:
        return UUID(int=0)


def _state(word: str | None) -> str | None:
    """Return the state that a listing selects, from its name in either protocol version. Raises RpcError."""
    if not word or word == "TASK_STATE_UNSPECIFIED":
        return None
    state = word.removeprefix("TASK_STATE_").lower().replace("_", "-")
    if state not in (*STATES, "rejected", "auth-required"):
        raise RpcError(INVALID_PARAMS, f"status: must be one of {', '.join(STATES)}")
    return state
