"""The runner's part, played by a test: claim a run, write its events, end it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson

from shared import thread_stream
from shared.eventlog import events
from shared.infra import redis
from shared.infra.postgres import driver
from shared.models import RunStatus, ThreadStatus
from shared.runs import claims, end_event, finish
from shared.runs.claims import Claimed, Terms
from shared.runs.finish import Finish

RETENTION_SECONDS = 900


class Actor:
    """A runner that executes one run: claims it on creation and publishes its `metadata` event."""

    def __init__(self, run_id: str | UUID, owner: str = "actor") -> None:
        with driver() as conn:
            claimed = claims.claim(conn, [UUID(str(run_id))], Terms(owner, 30, 3600))
        self.run: Claimed = claimed[0][0]
        self._next = self.run.floor + 1
        self._floor: int | None = self.run.floor
        self._outputs_state = False  # the output is the whole state of the thread
        self.emit("metadata", {"run_id": str(self.run.run_id), "attempt": self.run.attempt})

    def emit(self, name: str, data: Any) -> None:
        """Append one event to the run's log."""
        self._append(events.payload(name, data if isinstance(data, bytes) else orjson.dumps(data)))

    def _append(self, payload: bytes, *, final: bool = False) -> None:
        batch = events.Batch(
            self.run.run_id,
            self.run.attempt,
            self.run.owner,
            self._next,
            [payload],
            self._floor,
            final,
            events.WakeChannel(self.run.thread_id, thread_stream.channel(self.run.thread_id)),
        )
        answers = events.append(redis.client(), [batch], retention_seconds=RETENTION_SECONDS)
        assert answers == [events.OK], answers
        self._next, self._floor = self._next + 1, None

    def finish(
        self,
        values: Any = None,
        *,
        status: RunStatus = RunStatus.SUCCESS,
        thread_status: ThreadStatus = ThreadStatus.IDLE,
        error: dict[str, str] | None = None,
        interrupts: dict[str, Any] | None = None,
        state: dict[str, Any] | None = None,
        output: Any = None,
        usage: dict[str, Any] | None = None,
        node_usage: dict[str, Any] | None = None,
        spans: dict[str, Any] | None = None,
        dies: bool = False,
        unsent: int = 0,
    ) -> None:
        """End the run: first its row, then its log. With `dies`, the owner dies in between and the log stays open.

        `unsent` is the number of events before the last one that the owner could not write.
        """
        if error is not None and status is not RunStatus.INTERRUPTED:
            self.emit("error", error)
        end = Finish(
            self.run,
            status,
            thread_status,
            error,
            None if values is None else orjson.dumps(values).decode(),
            None if state is None else orjson.dumps(state).decode(),
            orjson.dumps(interrupts or {}).decode(),
            None if usage is None else orjson.dumps(usage).decode(),
            None if node_usage is None else orjson.dumps(node_usage).decode(),
            spans=None if spans is None else orjson.dumps(spans).decode(),
            end_seq=self._next + unsent,
        )
        with driver() as conn, conn.transaction():
            assert self.run.run_id in finish.finish_runs(conn, [end], owner=self.run.owner)
        if not dies:
            self._outputs_state = values is not None and values == output
            self.end(status, output)

    def end(self, status: str, output: Any = None) -> None:
        """Append the end event without touching the run's row."""
        last = end_event.last_event(self.run, status, orjson.dumps(output), is_state=self._outputs_state)
        self._append(last, final=True)


def act(run_id: str | UUID, values: Any, **more: Any) -> None:
    """Claim a run, stream these values and end the run with them."""
    actor = Actor(run_id)
    actor.emit("values", values)
    actor.finish(values, output=values, **more)
