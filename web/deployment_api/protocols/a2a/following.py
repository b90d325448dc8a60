"""Calls to an assistant, and clients that follow the task of a call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from flask import Response

from shared.errors import NotFound
from shared.eventlog.events import Event
from shared.eventlog.hub import Reader
from shared.infra.postgres import Row, connection
from shared.runs.a2a_tasks import SUBMITTED
from shared.user_code import filters
from shared.user_code.authorization import Granted
from shared.user_code.filters import Filter
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.a2a import tasks
from web.deployment_api.protocols.a2a.ids import TASK_NOT_FOUND, TaskId, unknown_task
from web.deployment_api.protocols.a2a.shapes import Task, Version1
from web.deployment_api.protocols.a2a.streams import UpdateTimer, updates
from web.deployment_api.protocols.a2a.tasks import ShownHistory
from web.deployment_api.protocols.json_rpc import RpcError
from web.deployment_api.runs.follower import RunFollower
from web.gate.context import deployment
from web.http import sse


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
        asked: AgentCall,
        id: TaskId,
        history: ShownHistory | None = None,
        *,
        visible: Filter | None = None,
    ) -> None:
        self.asked, self.id, self._visible = asked, id, visible
        self.history = history or tasks.WHOLE
        self.run = RunFollower(id.run_id, id.thread_id, cancels=False)
        self._deployment_id, self._assistant_id = deployment().id, asked.agent["assistant_id"]

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

        def says(last: Event | None) -> bytes:
            try:
                return json_rpc.result(self.asked.call.id, shown(self.ended(last)))
            except NotFound as error:
                return json_rpc.failure(self.asked.call.id, RpcError(TASK_NOT_FOUND, error.message))

        batches = self.run.batches(reader, after=after, end_alone=True)
        body = sse.waiting(batches, self.run.heartbeat, says)
        return sse.late_json(self.run.stream(body, holds, may_end_early=False), {})

    def stream(self, reader: Reader, holds: ExitStack, task: Task) -> Response:
        """Return a stream of the task and its updates."""
        timer = self.run.heartbeat = UpdateTimer(self.run.settings.heartbeat_seconds)
        body = updates(
            task,
            self.run.batches(reader, after=0, end_alone=True),
            timer,
            shapes=self.asked.shapes,
            call_id=self.asked.call.id,
            ended=self.ended,
        )
        return sse.event_stream(self.run.stream(body, holds), {})
