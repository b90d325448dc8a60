"""A client that follows a run: its events as a stream, or its output at the end. Paths of runs in headers.

Paths begin at the deployment's own root. Clients append them to the base address that they know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from itertools import chain
from typing import Any
from uuid import UUID

from flask import Response, jsonify, request

from shared.errors import NotFound, Unavailable
from shared.eventlog import follow
from shared.eventlog.events import Event
from shared.eventlog.hub import Reader
from shared.infra.postgres import connection, dumps
from shared.models import RunStatus
from shared.records import JsonSchema
from shared.runs import backlog, cancel, create, end_event, read
from shared.runs.cancel import Displaced
from shared.runs.end_event import FAILED, INTERRUPTS
from shared.runs.feedback import FeedbackUrls
from shared.runs.signals import notify_next, publish_cancels
from shared.threads import records
from web.gate.context import base_url, deployment, settings
from web.gate.routing import deployment_url
from web.http import sse
from web.http.client_watch import ClientWatch

log = logging.getLogger(__name__)

RUN_HEADERS = ("Content-Location",)
FEEDBACK = "__feedback__"  # key of the output
FOLLOWED_HEADERS = ("Location", "Content-Location")
OUTPUT: JsonSchema = {
    "description": "The thread's values, with `__interrupt__` if the graph waits for an answer. Only `__error__` if the run"
    " failed. `__feedback__` has the feedback URLs of a successful run by key, if it was created with `feedback_keys`. White"
    " space precedes the JSON if the run takes long."
}


def run_path(thread_id: UUID | None, run_id: UUID, suffix: str = "") -> str:
    root = "" if thread_id is None else f"/threads/{thread_id}"
    return f"{root}/runs/{run_id}{suffix}"


def stream_headers(thread_id: UUID | None, run_id: UUID) -> dict[str, str]:
    """Return the headers of a run's event stream. `Location` is where a client rejoins a stream that it lost."""
    return _headers(thread_id, run_id, "/stream")


def join_headers(thread_id: UUID, run_id: UUID) -> dict[str, str]:
    """Return the headers of an answer with a run's output. `Location` is where a client that lost it waits again."""
    return _headers(thread_id, run_id, "/join")


def _headers(thread_id: UUID | None, run_id: UUID, suffix: str) -> dict[str, str]:
    return {"Location": run_path(thread_id, run_id, suffix), "Content-Location": run_path(thread_id, run_id)}


class RunFollower:
    """A client that follows a run. Holds all that is needed after the request context has ended."""

    def __init__(
        self, run_id: UUID, thread_id: UUID, *, cancels: bool, kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """`kwargs` are those of the run, for a client that gets its feedback URLs."""
        self.run_id, self.thread_id = run_id, thread_id
        self.deployment_id = deployment().id
        self.settings = settings()
        keys = (kwargs or {}).get("feedback_keys")
        self._feedback: FeedbackUrls | None = None
        if keys:
            root = deployment_url(deployment(), base_url())
            self._feedback = FeedbackUrls(root, self.deployment_id, run_id, keys)
        self.cancels = cancels
        self.heartbeat = sse.HeartbeatTimer(self.settings.heartbeat_seconds)

    def of_run(self, run_id: UUID) -> RunFollower:
        """Return the same client as a follower of another run of the thread. It needs no request context."""
        other = copy(self)
        other.run_id = run_id
        return other

    def batches(self, reader: Reader, *, after: int | None, end_alone: bool = False) -> Iterator[list[Event]]:
        """Return the run's events in batches, and watch the client's socket if the run is cancelled on disconnect.

        `end_alone`: the caller needs only the end, which comes from the row while the log is unreachable.
        """
        followed = follow.follow(
            reader,
            self.run_id,
            after=after,
            ended=partial(self.ended, end_alone=end_alone),
            quiet_seconds=self.heartbeat.quiet_seconds,
            ended_by_row=self.ended_by_row if end_alone else None,
        )
        batches = end_event.with_error_of_deleted(followed)
        if self._feedback is not None and not end_alone:
            batches = self._with_feedback_urls(batches)
        if not self.cancels:
            return batches
        return sse.watch(ClientWatch(request.environ.get("gunicorn.socket"), reader.wake), batches)

    def batches_of_new(self, reader: Reader, *, starts_at_once: bool) -> Iterator[list[Event]]:
        """Return a new run's events in batches. If the run starts at once, the first event is known in advance."""
        if not starts_at_once:
            return self.batches(reader, after=0)
        first = Event(1, 0, "metadata", create.attempt_metadata(self.run_id, 1))
        return chain([[first]], _without_first(self.batches(reader, after=0)))

    def stream(
        self, body: Generator[bytes], holds: AbstractContextManager[Any], *, may_end_early: bool = True
    ) -> sse.Stream:
        on_disconnect = self.cancel if self.cancels else None
        return sse.Stream(body, holds=holds, on_disconnect=on_disconnect, may_end_early=may_end_early)

    def answer(
        self,
        reader: Reader,
        holds: AbstractContextManager[Any],
        *,
        after: int | None,
        render: Callable[[Event | None], bytes] | None = None,
    ) -> Response:
        """Return a response that sends line feeds until the run has ended, then its output.

        `render` returns another body for the last event of the log.
        """
        batches = self.batches(reader, after=after, end_alone=True)
        body = sse.waiting(batches, self.heartbeat, render or self.output)
        headers = join_headers(self.thread_id, self.run_id)
        return sse.late_json(self.stream(body, holds, may_end_early=False), headers)

    def answer_at_once(self, output: Any) -> Response:
        """Return the output of a run that has ended already, with the headers of `answer`."""
        response = jsonify(output)
        response.headers.update(join_headers(self.thread_id, self.run_id))
        return response

    def extent(self) -> tuple[int, bool]:
        """Return the number of the log's newest event (0 for an empty log), and whether the log is complete."""
        return end_event.extent(self.run_id)

    def ended(self, last: int, *, end_alone: bool) -> follow.RowEnd | None:
        """Return the end of a run whose log is lost, for a reader that has the events up to `last`; None for a live run."""
        return end_event.end_of_lost(self.deployment_id, self.run_id, last, end_alone=end_alone)

    def ended_by_row(self) -> Sequence[Event] | None:
        """Return the end of a run from its row, while the log cannot be read; None if the row is gone or has no end."""
        return end_event.end_by_row(self.deployment_id, self.run_id)

    def output(self, last: Event | None) -> bytes:
        """Return the output that answers a wait or a join.

        Raises ConnectionResetError, which closes the connection, if neither the log nor the row is left.
        """
        logged = end_event.output_of(last) if last is not None else b""
        if logged and logged != b"null":
            urls = None if last is None else self._feedback_urls(end_event.status_of(last))
            return logged if urls is None else _with_feedback(logged, urls)
        try:
            return dumps(self.stored_output()).encode()
        except NotFound:
            if not logged:
                raise sse.cut_off("the run and its event log were deleted") from None
        return dumps(self._thread_values()).encode()

    def _thread_values(self) -> Any:
        """Return the output of a run that was rolled back before it had values: the values of its thread, if any."""
        try:
            with connection() as conn:
                return output_of_thread(records.get(conn, self.deployment_id, self.thread_id))
        except NotFound:
            return {}

    def stored_output(self) -> Any:
        """Return the output from the rows of the run and its thread, for a log without it. Raises NotFound.

        Never None: clients look for keys in the output.
        """
        with connection() as conn:
            row = read.get(conn, self.deployment_id, self.run_id)
            thread = records.get(conn, self.deployment_id, row["thread_id"])
        if row["status"] in FAILED:
            return {"__error__": row["error"]}
        output = output_of_thread(thread)
        urls = self._feedback_urls(row["status"])
        if urls is None or not isinstance(output, dict):
            return output
        return {**output, FEEDBACK: urls}

    def _with_feedback_urls(self, batches: Iterator[list[Event]]) -> Iterator[list[Event]]:
        """Yield the batches of a log. Inserts the event `feedback` before the end of a successful run.

        It has the number of the last event, which clients do not get.
        """
        for batch in batches:
            if batch and batch[-1].is_last:
                last = batch[-1]
                urls = self._feedback_urls(end_event.status_of(last))
                if urls is not None:
                    batch = [*batch[:-1], Event(last.seq, last.after, "feedback", dumps(urls).encode()), last]
            yield batch

    def _feedback_urls(self, status: str | None) -> dict[str, str] | None:
        """Return the feedback URLs of a run that has ended with this status, by key; None if it has none."""
        if self._feedback is None or status != RunStatus.SUCCESS:
            return None
        try:
            return self._feedback.by_key()
        except Unavailable as error:
            log.warning("run %s: its client gets no feedback URLs: %s", self.run_id, error)
            return None

    def cancel(self) -> None:
        """Cancel the run because its client has disconnected (`on_disconnect=cancel`)."""
        reason = "client disconnected from the run stream (on_disconnect=cancel)"
        try:
            self.cancel_now(reason)
        except NotFound:
            pass  # the run had ended
        except Unavailable as error:
            log.warning("run %s: not cancelled after its client disconnected: %s", self.run_id, error)

    def cancel_now(self, reason: str) -> Displaced:
        """Cancel the run, and notify its owner and the owner of the thread's next run. Raises NotFound if it has ended."""
        with connection() as conn:
            stopped = cancel.cancel_run(conn, self.deployment_id, self.thread_id, self.run_id, reason=reason)
            next_run = backlog.next_of(conn, self.deployment_id, self.thread_id)
        publish_cancels([stopped], self.settings.event_retention_seconds)
        notify_next(next_run)
        return stopped


def output_of_thread(thread: Mapping[Any, Any]) -> Any:
    """Return a thread's values, with the interrupts that wait for an answer as `__interrupt__`."""
    values = {} if thread["values"] is None else thread["values"]
    open_interrupts = [
        {**item, "response_schema": None} for item in records.interrupt_list(thread["interrupts"])
    ]
    if not open_interrupts:
        return values
    return {**(values if isinstance(values, dict) else {}), INTERRUPTS: open_interrupts}


def _with_feedback(output: bytes, urls: Mapping[str, str]) -> bytes:
    """Return an output with its feedback URLs. JSON other than an object is returned unchanged."""
    if not output.startswith(b"{"):
        return output
    between = b"," if output != b"{}" else b""
    return output[:-1] + between + dumps({FEEDBACK: urls}).encode()[1:]


def _without_first(batches: Iterator[list[Event]]) -> Iterator[list[Event]]:
    """Yield the events without the first one, which was sent already.

    Keeps the first event if it is the end of the run: the run was ended before it began.
    """
    for batch in batches:
        if batch:
            yield [event for event in batch if event.seq != 1 or event.is_last]
            break
        yield batch
    yield from batches
