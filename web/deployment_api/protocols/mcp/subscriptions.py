"""Subscriptions: a stream of the changes of tasks, for clients that do not poll.

The stream polls the tasks' rows, so it misses no change, whichever process makes it. One statement polls the tasks of all
streams of the process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from flask import Response, request

from shared.errors import Unavailable
from shared.eventlog.hub import Reader, Stopping, hub
from shared.eventlog.polls import Polling, SharedPolls
from shared.infra.postgres import connection, dumps
from shared.runs import mcp_calls
from shared.runs.mcp_calls import FollowedCalls
from shared.user_code import filters
from shared.user_code.authorization import Ask
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, INVALID_REQUEST, RpcError
from web.deployment_api.protocols.mcp import progress, task_methods, tasks, thread_calls, tools
from web.deployment_api.protocols.mcp.envelope import PREFIX, McpRequest
from web.gate.context import deployment, settings, unchecked_deployment
from web.gate.observation import take_slot
from web.http import sse
from web.http.client_watch import ClientWatch
from web.schemas import fields
from web.schemas.operations import SSE

SUBSCRIPTION_ID = f"{PREFIX}subscriptionId"
MAX_TASKS = 100
POLL_SECONDS = 2.0


class Listen(fields.Schema):
    notifications = fields.JsonObject(required=True)


def listen(mcp: McpRequest) -> Response:
    """Stream the caller's tasks that the client names, each as it is now and at each change. Raises RpcError."""
    task_ids = _task_ids(mcp.call.read(Listen)["notifications"])
    if task_ids is not None:
        task_methods.require_extension(mcp)
    if not json_rpc.accepts_stream():
        raise RpcError(INVALID_REQUEST, f"The Accept header must name {SSE}", status=406)
    subscription = Subscription(mcp, _visible(task_ids or []), is_for_tasks=task_ids is not None)
    take_slot()
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(uuid4()))
        body = subscription.body(reader, request.environ.get("gunicorn.socket"))
        return sse.event_stream(sse.Stream(body, holds=stack.pop_all(), on_disconnect=None), {})


def _task_ids(notifications: Mapping[str, Any]) -> list[UUID] | None:
    """Return the ids of the requested tasks, without texts that are no UUIDs. None if the client requests no tasks."""
    sent = notifications.get("taskIds")
    if sent is None:
        return None
    if not isinstance(sent, list) or not all(isinstance(id, str) for id in sent):
        raise RpcError(INVALID_PARAMS, "params.notifications.taskIds: must be a list of strings")
    if len(sent) > MAX_TASKS:
        raise RpcError(INVALID_PARAMS, f"params.notifications.taskIds: must have at most {MAX_TASKS} items")
    ids: dict[UUID, None] = {}
    for text in sent:
        try:
            ids[UUID(text)] = None
        except ValueError:
            continue
    return list(ids)


def _visible(task_ids: Sequence[UUID]) -> list[UUID]:
    """Return the ids of tasks that the caller may read."""
    if not task_ids:
        return []
    granted = tools.grants([Ask("threads", "read", {"thread_id": id}) for id in task_ids])
    found, caller = [], thread_calls.name_of_caller()
    with connection() as conn:
        for id, grant in zip(task_ids, granted, strict=True):
            if grant is None or filters.is_thread_hidden(conn, deployment().id, id, grant.filter):
                continue
            call = mcp_calls.get(conn, deployment().id, id, caller=caller)
            if call is not None and call["is_task"] and not tasks.is_expired(call):
                found.append(id)
    return found


@dataclass(eq=False, slots=True, kw_only=True)
class _Subscriber(Polling):
    """A stream that polls its tasks."""

    calls: FollowedCalls
    states: dict[UUID, str] = field(default_factory=dict)  # of the tasks at the last poll


class _Subscribers(SharedPolls[_Subscriber]):
    """The streams of this process that poll tasks. Each has at most MAX_TASKS."""

    most = 100

    def _changed(self, due: Sequence[_Subscriber]) -> list[_Subscriber]:
        with connection() as conn:
            found = mcp_calls.states(conn, [subscriber.calls for subscriber in due])
        changed = []
        for subscriber, states in zip(due, found, strict=True):
            if subscriber.states != states:
                subscriber.states = states
                changed.append(subscriber)
        return changed


_subscribers = _Subscribers()


class Subscription:
    """A stream of tasks. Holds all that is needed after the request context has ended."""

    def __init__(self, mcp: McpRequest, task_ids: Sequence[UUID], *, is_for_tasks: bool) -> None:
        self._mcp, self._is_for_tasks = mcp, is_for_tasks
        self._deployment = unchecked_deployment()
        self._calls = FollowedCalls(self._deployment.id, task_ids, thread_calls.name_of_caller())
        self._sent: dict[UUID, str] = {}  # states of the tasks that the client has got
        self._heartbeat = sse.HeartbeatTimer(settings().heartbeat_seconds)
        self._meta = {SUBSCRIPTION_ID: mcp.call.id}

    def body(self, reader: Reader, client: Any) -> Generator[bytes]:
        """Yield the acknowledgement, then notifications and heartbeats until the client leaves or the server stops."""
        task_ids = self._calls.thread_ids
        honoured = {"taskIds": list(map(str, task_ids))} if self._is_for_tasks else {}
        yield self._notification("subscriptions/acknowledged", {"notifications": honoured})
        due_at = time.monotonic() if task_ids else math.inf
        subscriber = _Subscriber(wake_ups=reader, seconds=POLL_SECONDS, due_at=due_at, calls=self._calls)
        try:
            with _subscribers.polling(subscriber), ClientWatch(client, reader.wake) as watch:
                while not watch.has_disconnected():
                    if subscriber.seconds_left <= 0:
                        _subscribers.poll()
                    yield from self._changes(subscriber.states)
                    yield b""  # a revoked key ends the stream here, also if there are no changes
                    reader.take(min(self._heartbeat.quiet_seconds(), max(subscriber.seconds_left, 0.0)))
                    if self._heartbeat.take_due():
                        yield sse.HEARTBEAT
        except Stopping:
            yield json_rpc.event(json_rpc.result(self._mcp.call.id, self._end()))

    def _changes(self, states: Mapping[UUID, str]) -> Generator[bytes]:
        """Yield a notification for each task in another state than the client knows. Yields none without the database.

        A slow client holds one notification in memory at a time, and no database connection.
        """
        try:
            for id, state in states.items():
                if self._sent.get(id) != state and (event := self._event(id)):
                    self._sent[id] = state
                    yield event
        except Unavailable:
            return

    def _event(self, task_id: UUID) -> bytes:
        """Return a notification about a task, or nothing if it is deleted."""
        with connection() as conn:
            call = mcp_calls.get(conn, self._deployment.id, task_id, caller=self._calls.caller)
            if call is None:
                return b""
            return self._changed(task_methods.details(conn, self._deployment, self._mcp, call))

    def _changed(self, task: dict[str, Any]) -> bytes:
        if "result" not in task:
            return self._notification("tasks", task)
        return progress.fitted(
            lambda result: self._notification("tasks", {**task, "result": result}),
            task["result"],
            f"The state is left out: {progress.TOO_LARGE}. Call tasks/get to get it.",
        )

    def _notification(self, name: str, params: Mapping[str, Any]) -> bytes:
        message = {
            "jsonrpc": "2.0",
            "method": f"notifications/{name}",
            "params": {**params, "_meta": self._meta},
        }
        return json_rpc.event(dumps(message).encode())

    def _end(self) -> dict[str, Any]:
        shaped = self._mcp.shape({})
        return {**shaped, "_meta": {**shaped["_meta"], **self._meta}}
