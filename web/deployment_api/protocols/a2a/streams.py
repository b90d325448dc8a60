"""A task's stream: the task, the assistant's text so far while it works, the artifacts, and the final state."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from shared.errors import NotFound
from shared.eventlog.events import Event
from shared.infra.postgres import loads
from shared.runs.a2a_tasks import WORKING
from web.deployment_api.protocols import json_rpc, messages
from web.deployment_api.protocols.a2a.ids import TASK_NOT_FOUND
from web.deployment_api.protocols.a2a.shapes import AGENT, Message, Task, Version1
from web.deployment_api.protocols.json_rpc import Id, RpcError
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
        return (
            min(quiet, max(self._sent_at + UPDATE_SECONDS - time.monotonic(), 0.0)) if self.is_owed else quiet
        )

    def take_update(self) -> bool:
        """Whether an update of the text is due now; restarts the timer if it is."""
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
        if not isinstance(message, dict) or not messages.is_agents(message):
            return False
        text, id = messages.text_of(message), str(message.get("id") or "")
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
