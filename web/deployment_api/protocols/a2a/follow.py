"""Clients that follow the task of a call: an answer when the task has ended, or a stream of its updates.

A stream holds the task, the assistant's text so far while it works, the artifacts, and the final state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from flask import Response

from shared.errors import NotFound
from shared.eventlog.events import Event
from shared.eventlog.hub import Reader
from shared.infra.postgres import Row, connection, loads
from shared.runs.a2a_tasks import SUBMITTED, WORKING
from shared.user_code import filters
from shared.user_code.authorization import Granted
from shared.user_code.filters import Filter
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.a2a import tasks
from web.deployment_api.protocols.a2a.shapes import AGENT, Message, Task, Version1
from web.deployment_api.protocols.a2a.tasks import TASK_NOT_FOUND, ShownHistory, TaskId, unknown_task
from web.deployment_api.protocols.conversation import is_from_agent, text_of
from web.deployment_api.protocols.json_rpc import Id, RpcError
from web.deployment_api.runs.follower import RunFollower
from web.gate.context import deployment
from web.http import sse

UPDATE_SECONDS = 0.1  # between two updates of the text: each repeats all of the text so far


class UpdateTimer(sse.HeartbeatTimer):
    """A timer for the next update of the text, and for heartbeats."""

    def __init__(self, heartbeat_seconds: float) -> None:
        super().__init__(heartbeat_seconds)
        self._sent_at = 0.0
        self.is_owed = False  # whether there is text that was not sent

    def quiet_seconds(self) -> float:
        quiet = super().quiet_seconds()
        if not self.is_owed:
            return quiet
        return min(quiet, max(self._sent_at + UPDATE_SECONDS - time.monotonic(), 0.0))

    def take_update(self) -> bool:
        """Return whether an update of the text is due now. If so, restart the timer."""
        now = time.monotonic()
        if not self.is_owed or now < self._sent_at + UPDATE_SECONDS:
            return False
        self._sent_at, self.is_owed = now, False
        return True


class TextSoFar:
    """The message that the assistant is writing, assembled from its tokens."""

    def __init__(self) -> None:
        self._id, self._text = "", ""

    def add(self, data: bytes) -> bool:
        """Add a token. Returns whether it adds text."""
        chunk = loads(data)
        message = chunk[0] if isinstance(chunk, list) and chunk else None
        if not isinstance(message, dict) or not is_from_agent(message):
            return False
        text, id = text_of(message), str(message.get("id") or "")
        if id != self._id:
            self._id, self._text = id, ""
        self._text = self._text + text if message.get("type") == "AIMessageChunk" else text
        return bool(text)

    def message(self) -> Message:
        return Message(id=self._id or "message", role=AGENT, parts=[{"text": self._text}])


def updates(
    task: Task,
    batches: sse.Batches,
    timer: UpdateTimer,
    *,
    shapes: Version1,
    call_id: Id | None,
    ended: Callable[[Event | None], Task],
) -> Generator[bytes]:
    """Yield the bytes of the stream. `ended` returns the task after the last event of its run, or raises NotFound."""

    def item(result: Any) -> bytes:
        return json_rpc.event(json_rpc.result(call_id, result))

    def working(message: Message | None) -> bytes:
        now = replace(task, state=WORKING, message=message, at=datetime.now(UTC))
        return item(shapes.status_update(now, is_last=False))

    yield item(shapes.first(task))
    so_far, last, has_begun = TextSoFar(), None, task.state == WORKING
    for batch in batches:
        out = []
        for event in batch:
            if event.name == "metadata":  # an attempt begins
                out += [] if has_begun else [working(None)]
                so_far, has_begun = TextSoFar(), True
            elif event.name == "messages":
                timer.is_owed |= so_far.add(event.data)
            last = event
        if timer.take_update():
            out.append(working(so_far.message()))
        if timer.take_due():
            out.append(sse.HEARTBEAT)
        if out:
            yield b"".join(out)
    try:
        done = ended(last)
    except NotFound as error:
        yield json_rpc.event(json_rpc.failure(call_id, RpcError(TASK_NOT_FOUND, error.message)))
        return
    for artifact in done.artifacts:
        yield item(shapes.artifact_update(done, artifact))
    yield item(shapes.status_update(done, is_last=True))


@dataclass(frozen=True)
class AgentCall:
    """A call to an assistant, and the protocol version that shapes the answer."""

    agent: Row
    call: json_rpc.Call
    shapes: Version1
    read: Granted | None = None  # for reading the assistant; None: every caller may read it

    def answer(self, value: Any) -> Response:
        return json_rpc.answer(json_rpc.result(self.call.id, value))


class Follower:
    """A client that follows a task, if the filter `visible` does not hide the task's thread.

    Holds all that is needed after the request context has ended.
    """

    def __init__(
        self,
        agent_call: AgentCall,
        id: TaskId,
        history: ShownHistory | None = None,
        *,
        visible: Filter | None = None,
    ) -> None:
        self.agent_call, self.id, self._visible = agent_call, id, visible
        self.history = history or tasks.WHOLE
        self.run = RunFollower(id.run_id, id.thread_id, cancels=False)
        self._deployment_id, self._assistant_id = deployment().id, agent_call.agent["assistant_id"]

    def row(self) -> Row:
        """Return the row of the task. Raises NotFound if the task is missing or its thread hidden."""
        with connection() as conn:
            filters.require_thread(
                conn, self._deployment_id, self.id.thread_id, self._visible, error=unknown_task()
            )
            return tasks.get(conn, self._deployment_id, self._assistant_id, self.id)

    def submitted(self) -> Task:
        """Return the task in its first state, although its run may have begun already. Raises NotFound."""
        return tasks.of_row({**self.row(), "state": SUBMITTED}, self.history)

    def ended(self, last: Event | None) -> Task:
        """Return the task after the last event of its run. Raises NotFound."""
        return tasks.of_row(tasks.ended(self.row(), last), self.history)

    def answer(
        self, reader: Reader, holds: ExitStack, *, after: int, shown: Callable[[Task], Any]
    ) -> Response:
        """Return a response that sends line feeds until the run has ended, then the task."""

        def render(last: Event | None) -> bytes:
            try:
                return json_rpc.result(self.agent_call.call.id, shown(self.ended(last)))
            except NotFound as error:
                return json_rpc.failure(self.agent_call.call.id, RpcError(TASK_NOT_FOUND, error.message))

        batches = self.run.batches(reader, after=after, end_alone=True)
        body = sse.waiting(batches, self.run.heartbeat, render)
        return sse.late_json(self.run.stream(body, holds, may_end_early=False), {})

    def stream(self, reader: Reader, holds: ExitStack, task: Task) -> Response:
        timer = self.run.heartbeat = UpdateTimer(self.run.settings.heartbeat_seconds)
        body = updates(
            task,
            self.run.batches(reader, after=0, end_alone=True),
            timer,
            shapes=self.agent_call.shapes,
            call_id=self.agent_call.call.id,
            ended=self.ended,
        )
        return sse.event_stream(self.run.stream(body, holds), {})
