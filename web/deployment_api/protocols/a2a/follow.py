"""Clients that follow a task: an answer when the task has ended or asks, or a stream of its updates.

A stream holds the task, the assistant's text so far while it works, the artifacts, and the final state. A task may have
several runs, which are followed one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from flask import Response
from sqlalchemy import Connection

from shared import thread_stream
from shared.errors import NotFound
from shared.eventlog.events import Event
from shared.eventlog.hub import hub
from shared.infra.postgres import Row, connection, loads
from shared.runs import a2a_tasks
from shared.runs.a2a_tasks import INPUT_REQUIRED, SUBMITTED, TERMINAL, WORKING, TaskKey
from shared.thread_runs import Look, ThreadReader
from shared.user_code import filters
from shared.user_code.authorization import Granted
from shared.user_code.filters import Filter
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.a2a import tasks
from web.deployment_api.protocols.a2a.errors import INVALID_AGENT_RESPONSE, TASK_NOT_FOUND
from web.deployment_api.protocols.a2a.shapes import AGENT, Message, Task, Version1
from web.deployment_api.protocols.a2a.tasks import TaskId, View
from web.deployment_api.protocols.conversation import is_from_agent, text_of
from web.deployment_api.protocols.json_rpc import RpcError
from web.deployment_api.runs.follower import RunFollower
from web.gate.context import deployment
from web.http import sse

UPDATE_SECONDS = 0.1  # between two updates of the text: each repeats all of the text so far
HEARTBEAT = b": heartbeat\n\n"
# Line ends of Unicode, which some clients take for line ends of the stream.
_LINE_ENDS = {
    character.encode(): f"\\u{ord(character):04x}".encode() for character in ("\u0085", "\u2028", "\u2029")
}


def encode(body: bytes) -> bytes:
    """Encode a JSON document as an event of a stream."""
    for character, escaped in _LINE_ENDS.items():
        body = body.replace(character, escaped)
    return b"data: " + body + b"\n\n"


def short_stream(body: bytes) -> Response:
    """Return a stream of one event."""
    return sse.whole_stream(encode(body))


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


@dataclass(frozen=True)
class AgentCall:
    """A call to an assistant, and the protocol version that shapes the answer."""

    agent: Row
    call: json_rpc.Call
    shapes: Version1
    read: Granted | None = None  # for reading the assistant; None: every caller may read it

    def answer(self, value: Any) -> Response:
        return json_rpc.answer(json_rpc.result(self.call.id, value))

    def failure(self, error: RpcError) -> bytes:
        named = self.call.params.get("id")
        task_id = named if isinstance(named, str) else None
        return self.shapes.failure(self.call.id, error, task_id=task_id)

    def not_found(self, error: NotFound) -> bytes:
        return self.failure(RpcError(TASK_NOT_FOUND, error.message))


class Follower:
    """A client that follows a task, if the filter `visible` does not hide the task's thread.

    Holds all that is needed after the request context has ended.
    """

    def __init__(
        self,
        agent_call: AgentCall,
        id: TaskId,
        view: View = tasks.WHOLE,
        *,
        visible: Filter | None = None,
    ) -> None:
        self.agent_call, self.id, self.view, self._visible = agent_call, id, view, visible
        self.key = TaskKey(deployment().id, agent_call.agent["assistant_id"], id.thread_id, id.run_id)
        self.run = RunFollower(id.run_id, id.thread_id, cancels=False)

    def row(self) -> Row:
        """Return the row of the task. Raises NotFound if the task is missing or its thread hidden."""
        with connection() as conn:
            self._require_visible(conn)
            return a2a_tasks.get(conn, self.key)

    def state(self, conn: Connection) -> Row:
        """Return the state of the task and its newest run. Raises NotFound as `row` does."""
        self._require_visible(conn)
        return a2a_tasks.state(conn, self.key)

    def _require_visible(self, conn: Connection) -> None:
        filters.require_thread(
            conn, self.key.deployment_id, self.id.thread_id, self._visible, error=a2a_tasks.missing()
        )

    def submitted(self) -> Task:
        """Return the task in its first state, although its run may have begun already. Raises NotFound."""
        row = self.row()
        is_first = row["run_id"] == self.id.run_id
        return tasks.of_row({**row, "state": SUBMITTED if is_first else WORKING}, self.view)

    def now(self) -> Task:
        """Return the task as it is now. Raises NotFound."""
        return tasks.of_row(self.row(), self.view)

    def answer(self, holds: ExitStack, after: int, shown: Callable[[Task], Any]) -> Response:
        """Return a response that sends line feeds until the task ends or asks, then the task.

        `after` is the number of the last run of the thread that is not followed.
        """
        reader = TaskReader(self, after=after)

        def render(last: Event | None) -> bytes:
            try:
                task = reader.ended(last)
            except NotFound as error:
                return self.agent_call.not_found(error)
            if task.invalid:
                return self.agent_call.failure(RpcError(INVALID_AGENT_RESPONSE, task.invalid))
            return json_rpc.result(self.agent_call.call.id, shown(task))

        body = sse.waiting(reader.events(self.run.heartbeat), self.run.heartbeat, render)
        return sse.late_json(self.run.stream(body, holds, may_end_early=False), {})

    def stream(self, holds: ExitStack, task: Task, *, after: int, waits: bool = False) -> Response:
        """Return a stream of the task and its updates. `waits`: it goes on while the task waits for an answer."""
        timer = self.run.heartbeat = UpdateTimer(self.run.settings.heartbeat_seconds)
        body = self._updates(TaskReader(self, after=after, waits=waits), task, timer)
        return sse.event_stream(self.run.stream(body, holds), {})

    def _updates(self, reader: TaskReader, task: Task, timer: UpdateTimer) -> Generator[bytes]:
        shapes, call = self.agent_call.shapes, self.agent_call.call

        def item(result: Any) -> bytes:
            return encode(json_rpc.result(call.id, result))

        def working(message: Message | None) -> bytes:
            now = replace(task, state=WORKING, message=message, at=datetime.now(UTC))
            return item(shapes.status_update(now, is_last=False))

        def results(task: Task, *, is_last: bool) -> Iterator[bytes]:
            for artifact in task.artifacts:
                yield item(shapes.artifact_update(task, artifact))
            yield item(shapes.status_update(task, is_last=is_last))

        yield item(shapes.first(task))
        so_far, last, has_begun = TextSoFar(), None, task.state == WORKING
        for batch in reader.events(timer):
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
                out.append(HEARTBEAT)
            if reader.waits and last is not None and last.is_last:
                try:
                    asked = reader.ended(last)
                except NotFound:
                    continue  # the reader ends
                if asked.state == INPUT_REQUIRED:
                    out += results(asked, is_last=False)
                    timer.is_owed, has_begun, last = False, False, None
            if out:
                yield b"".join(out)
        try:
            done = reader.ended(last)
        except NotFound as error:
            yield encode(self.agent_call.not_found(error))
            return
        yield from results(done, is_last=True)


class TaskReader(ThreadReader[Event]):
    """A reader of the runs of a task, one after the other: those with a number above `after`.

    Ends when the task has ended. If the task waits for an answer, it ends too, unless it `waits` for it.
    """

    def __init__(self, follower: Follower, *, after: int, waits: bool = False) -> None:
        super().__init__(follower.key.deployment_id, follower.key.thread_id)
        self._follower, self.waits = follower, waits
        self._after = after
        self._run_id: UUID | None = None

    def events(self, heartbeat: sse.HeartbeatTimer) -> Iterator[list[Event]]:
        with hub().reader(self._thread_id, at=thread_stream.channel(self._thread_id)) as wake_ups:
            yield from self.batches(wake_ups, heartbeat.quiet_seconds)

    def ended(self, last: Event | None) -> Task:
        """Return the task after the last event of the run that was followed last. Raises NotFound."""
        row = self._follower.row()
        if self._run_id is not None:
            row = tasks.ended(row, self._run_id, last)
        return tasks.of_row(row, self._follower.view)

    def _look(self) -> Look | None:
        try:
            with connection() as conn:
                state = self._follower.state(conn)
                run = a2a_tasks.run_after(conn, self._follower.key, self._after)
        except NotFound:
            return None
        if run is None and (state["state"] in TERMINAL or not self.waits):
            return None
        return Look(state["last_seq"], run, round(state["state_updated_at"].timestamp() * 1_000_000))

    def _run(self, run: Any, quiet_seconds: Callable[[], float]) -> Iterator[list[Event]]:
        self._run_id = run["run_id"]
        follower = self._follower.run.of_run(run["run_id"])
        with hub().reader(run["run_id"]) as reader:
            yield from follower.batches(reader, after=0, end_alone=True)
