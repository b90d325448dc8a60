"""A client that follows a run: its events as a stream, or its output at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
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
from shared.runs import cancel, create, eligibility, end_event, read
from shared.runs.end_event import FAILED
from shared.runs.signals import notify_next, publish_cancels
from shared.threads import records
from web import sse
from web.client_watch import ClientWatch
from web.context import deployment, settings
from web.deployment_api.locations import join_headers

log = logging.getLogger(__name__)


class RunFollower:
    """A client that follows a run. It holds what is needed after the request's context has ended."""

    def __init__(self, run_id: UUID, thread_id: UUID, *, cancels: bool) -> None:
        self.run_id, self.thread_id = run_id, thread_id
        self.deployment_id = deployment().id
        self.settings = settings()
        self.cancels = cancels
        self.heartbeat = sse.HeartbeatTimer(self.settings.heartbeat_seconds)

    def batches(self, reader: Reader, *, after: int | None, end_alone: bool = False) -> Iterator[list[Event]]:
        """The run's events; with `end_alone` at least its end, which the row tells while the log is unreachable.

        Watches the client's socket where the run is cancelled when the client leaves.
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
        if not self.cancels:
            return batches
        return sse.watch(ClientWatch(request.environ.get("gunicorn.socket"), reader.wake), batches)

    def batches_of_new(self, reader: Reader, *, starts_at_once: bool) -> Iterator[list[Event]]:
        """A new run's events. The first one is known before it happens, unless other runs are ahead."""
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
        says: Callable[[Event | None], bytes] | None = None,
    ) -> Response:
        """Line feeds until the run has ended, then its output or what `says` makes of its last event."""
        batches = self.batches(reader, after=after, end_alone=True)
        body = sse.waiting(batches, self.heartbeat, says or self.output)
        headers = join_headers(self.thread_id, self.run_id)
        return sse.late_json(self.stream(body, holds, may_end_early=False), headers)

    def answer_at_once(self, output: Any) -> Response:
        """The same for a run that has ended."""
        response = jsonify(output)
        response.headers.update(join_headers(self.thread_id, self.run_id))
        return response

    def extent(self) -> tuple[int, bool]:
        """The number of the log's newest event (0: it holds nothing), and whether nothing will be added."""
        return end_event.extent(self.run_id)

    def ended(self, last: int, *, end_alone: bool) -> follow.RowEnd | None:
        """The end of a log that was lost, after event `last`; None while the run lives."""
        return end_event.end_of_lost(self.deployment_id, self.run_id, last, end_alone=end_alone)

    def ended_by_row(self) -> Sequence[Event] | None:
        """The end alone, while the log cannot be read."""
        return end_event.end_by_row(self.deployment_id, self.run_id)

    def output(self, last: Event | None) -> bytes:
        """What a wait or join answers; closes the connection where neither log nor row has it any more."""
        logged = end_event.output_of(last) if last is not None else b""
        if logged and logged != b"null":
            return logged
        try:
            return dumps(self.stored_output()).encode()
        except NotFound:
            if not logged:
                raise sse.cut_off("the run and the end of its log are gone") from None
        return dumps(self._values_left()).encode()

    def _values_left(self) -> Any:
        """What a run that was rolled back before it had values leaves: those of its thread, if that is there."""
        try:
            with connection() as conn:
                return _shown(records.get(conn, self.deployment_id, self.thread_id))
        except NotFound:
            return {}

    def stored_output(self) -> Any:
        """The same from the rows, for a log without it; raises NotFound.

        Never null: a client looks for keys in it.
        """
        with connection() as conn:
            row = read.get(conn, self.deployment_id, self.run_id)
            thread = records.get(conn, self.deployment_id, row["thread_id"])
        if row["status"] in FAILED:
            return {"__error__": row["error"]}
        return _shown(thread)

    def cancel(self) -> None:
        """Cancel the run, as its client asked for the case that it leaves."""
        reason = "client disconnected from the run stream (on_disconnect=cancel)"
        try:
            with connection() as conn:
                stopped = cancel.cancel_run(
                    conn, self.deployment_id, self.thread_id, self.run_id, reason=reason
                )
                next_run = eligibility.next_of(conn, self.deployment_id, self.thread_id)
        except NotFound:
            return  # it had ended
        except Unavailable as error:
            log.warning("run %s: not cancelled when its client left: %s", self.run_id, error)
            return
        publish_cancels([stopped], self.settings.event_retention_seconds)
        notify_next(next_run)


def _shown(thread: Mapping[Any, Any]) -> Any:
    """A thread's values, and the interrupts that wait for an answer."""
    values = {} if thread["values"] is None else thread["values"]
    open_interrupts = [
        {**item, "response_schema": None} for items in (thread["interrupts"] or {}).values() for item in items
    ]
    if not open_interrupts:
        return values
    return {**(values if isinstance(values, dict) else {}), "__interrupt__": open_interrupts}


def _without_first(batches: Iterator[list[Event]]) -> Iterator[list[Event]]:
    """The events after the first one, which was sent already; a run that ended before it began has its end there."""
    for batch in batches:
        if batch:
            yield [event for event in batch if event.seq != 1 or event.is_last]
            break
        yield batch
    yield from batches
