"""Streams of a thread's events in the protocol, from a position on, for as long as the reader stays.

Readers without a position must not be shown old runs: clients take the first end of a run that they see for the end of
the run that they have just started. If no run is live, a content reader therefore gets the newest run only. A reader
that waits only for ends gets that run if the thread is interrupted, or if a command created the run and no other such
reader was given its end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from redis.exceptions import RedisError
from sqlalchemy import Connection

from shared.errors import Unavailable
from shared.eventlog import events as logs
from shared.eventlog import follow
from shared.eventlog.events import END, Event
from shared.eventlog.hub import Reader, Stopping, hub
from shared.infra import redis
from shared.infra.postgres import connection
from shared.models import LIVE_RUN_STATUSES, RunStatus, ThreadStatus
from shared.protocol import events, lifecycle, watching
from shared.protocol.events import EXPIRED, Failure, Item, Note
from shared.runs import end_event
from shared.sql import statement
from shared.thread_runs import Look, ThreadReader
from shared.threads import records
from shared.user_code import filters
from shared.user_code.filters import Filter

log = logging.getLogger(__name__)

KEPT_RUNS = 100  # older runs are not replayed
PAUSE_SECONDS = 1.0  # pause before another attempt to reach the database
SETTLED_SECONDS = 5  # longer than the owner takes to end the log after it has ended the row

_BEGIN = statement("protocol.begin")
_NEXT = statement("protocol.next")
_NEWEST = statement("protocol.newest")


def newest(conn: Connection, deployment_id: UUID, thread_id: UUID) -> int:
    """Return the number of a thread's newest event, or 0 if it has none."""
    row = _NEWEST.row(conn, deployment_id=deployment_id, thread_id=thread_id)
    if row is None or not row["last_seq"]:
        return 0
    has_ended = row["status"] not in LIVE_RUN_STATUSES
    return events.event_number(
        row["last_seq"], events.LAST_EVENT if has_ended else end_event.extent(row["run_id"])[0]
    )


Place = tuple[int, int]  # the number of a run, and the number of an event in its log


@dataclass(frozen=True, slots=True)
class Begin:
    """The position at which a reader begins: after all of run `after` and after event `event` of the next run."""

    after: int
    event: int = events.NO_EVENT
    is_expired: bool = False

    @property
    def seq(self) -> int:
        """The number that all events of the reader are above."""
        return events.event_number(self.after + 1, self.event)


def begin(row: Any, since: Place | None, *, waits: bool) -> Begin:
    """Return the position at which a reader begins. `row` is the thread's row, `waits` marks a reader of ends only."""
    if since is not None:
        return _after(row, *since)
    if row["oldest_live"] is not None:
        return Begin(row["oldest_live"] - 1)
    if row["newest"] is None:
        return Begin(row["last_seq"])
    gets_newest = not waits or (row["by_protocol"] and row["newest"] > row["protocol_end_given"])
    return Begin(
        row["newest"] - 1 if gets_newest or row["status"] == ThreadStatus.INTERRUPTED else row["last_seq"]
    )


def _after(row: Any, run: int, event: int) -> Begin:
    if run > row["last_seq"]:
        return Begin(row["last_seq"])  # the position is that of another or a deleted thread
    if row["forgotten"] is not None and run <= row["forgotten"]:
        return Begin(row["forgotten"], is_expired=True)
    return Begin(run) if event == events.LAST_EVENT else Begin(run - 1, event)


@dataclass(frozen=True, slots=True)
class Joined:
    """A stream that the same reader also serves: its position, and whether it waits for the ends of runs only."""

    seq: int
    waits: bool


class ProtocolStream(ThreadReader[Item]):
    """A reader of one thread. `since` is the number of an event of the thread; None selects a default (see `begin`).

    `waits`: the reader needs only starts, ends and interrupts of runs. `may_be_missing`: the thread may
    be created later. `joined`: another stream, at another position, that this reader also serves. `filter`: a thread
    that the filter hides counts as missing, also if it is created later.
    """

    def __init__(
        self,
        deployment_id: UUID,
        thread_id: UUID,
        *,
        since: int | None,
        waits: bool,
        may_be_missing: bool,
        joined: Joined | None = None,
        filter: Filter | None = None,
    ) -> None:
        super().__init__(deployment_id, thread_id)
        self._since = None if since is None else events.split_number(max(since, 0))
        self._waits, self._is_awaited, self._joined = waits, may_be_missing, joined
        self._gives_ends = waits or (joined is not None and joined.waits)
        self._filter = filter
        self._begin = Begin(0)
        self._renew_at = 0.0
        self._reader: Reader | None = None  # reader of the log of the current run
        # All events from `since` on are above this number. Events for `joined` alone are not.
        self.begins_after = events.event_number(1)

    def open(self) -> None:
        """Determine where the stream begins, and mark the thread as watched. Raises NotFound if it does not exist."""
        with connection() as conn:
            if self._is_hidden(conn):
                raise records.missing(self._thread_id)
            watching.watch(conn, self._keys)
            widened = watching.widen(conn, self._keys)
            row = _BEGIN.row(conn, **self._keys, kept=KEPT_RUNS)
        for run in widened:
            run.publish()
        self._renew_at = time.monotonic() + watching.RENEW_SECONDS
        if row is not None:
            self._is_awaited = False
            self._begin = begin(row, self._since, waits=self._waits)
            self.begins_after = self._begin.seq
            if self._joined is not None:
                others = _after(row, *events.split_number(self._joined.seq))
                self._begin = min(self._begin, others, key=lambda one: one.seq)
        elif not self._is_awaited:
            raise records.missing(self._thread_id)
        self._after = self._begin.after

    def _is_hidden(self, conn: Connection) -> bool:
        return filters.is_thread_hidden(conn, self._deployment_id, self._thread_id, self._filter)

    def batches(self, wake_ups: Reader, quiet_seconds: Callable[[], float]) -> Iterator[list[Item]]:
        """Yield batches of items. Ends only if the thread is deleted; the last item is then a Failure."""
        if self._begin.is_expired:
            yield [EXPIRED]
        for batch in super().batches(wake_ups, quiet_seconds):
            self._renew()
            yield batch
        yield [Failure("no_such_run", f"Thread {self._thread_id} was deleted")]

    def wake(self) -> None:
        """End the current wait for events of a run at once."""
        if self._reader is not None:
            self._reader.wake()

    def _renew(self) -> None:
        """Mark the thread as watched again, and widen runs that were created before a mark."""
        if time.monotonic() < self._renew_at or (self._is_awaited and self._filter):
            return
        self._renew_at = time.monotonic() + watching.RENEW_SECONDS
        try:
            watching.note(self._keys)
        except Unavailable as error:
            log.warning("thread %s: could not record that it is watched: %s", self._thread_id, error)

    def _look(self) -> Look | None:
        with connection() as conn:
            row = _NEXT.row(conn, **self._keys, after=self._after, settled=SETTLED_SECONDS)
            if row is not None and self._is_awaited and self._is_hidden(conn):
                return None
        if row is None:
            return None
        if self._is_awaited:
            self._renew_at = 0.0
        return Look(row["last_seq"], None if row["run_id"] is None else row)

    def _run(self, run: Any, quiet_seconds: Callable[[], float]) -> Iterator[list[Item]]:
        first = run["created_seq"] == self._begin.after + 1
        after = self._begin.event if first else events.NO_EVENT
        view = _RunView(run, after)
        if not run["has_protocol"] and not self._waits:
            yield [Note(f"the content of run {run['run_id']} was not stored")]
        with hub().reader(run["run_id"]) as reader:
            self._reader = reader
            newest, is_whole = end_event.extent(run["run_id"])
            if run["has_settled"] and not newest and _is_lost(run["run_id"]):
                row = yield from self._row(run, reader)
                yield from self._shown(run, view.lost(row), is_over=True)
                return
            if newest:  # an empty log was lost, so its numbers were in use
                after = min(after, newest - is_whole)
            for batch in follow.follow(
                reader,
                run["run_id"],
                after=after,
                ended=partial(end_event.end_of_lost, self._deployment_id, run["run_id"]),
                quiet_seconds=quiet_seconds,
            ):
                is_over = bool(batch) and batch[-1].is_last
                row = (yield from self._row(run, reader)) if is_over or view.begins_in(batch) else None
                yield from self._shown(run, view.shown(batch, row), is_over=is_over)

    def _row(self, run: Any, reader: Reader) -> Generator[list[Item], None, Any]:
        """Return the run's current row. Waits while the database is away."""
        while True:
            try:
                with connection() as conn:
                    return lifecycle.row(conn, self._deployment_id, run["run_id"])
            except Unavailable as error:
                log.warning("run %s: cannot be read now: %s", run["run_id"], error)
            if reader.is_closed:
                raise Stopping
            time.sleep(PAUSE_SECONDS)
            yield []

    def _shown(self, run: Any, items: list[Item], *, is_over: bool) -> Iterator[list[Item]]:
        """Yield a batch. Records beforehand that an end is given, because clients often disconnect after the end."""
        if is_over and self._gives_ends:
            try:
                with connection() as conn:
                    watching.record_end(conn, self._keys, run["created_seq"])
            except Unavailable as error:
                log.warning("run %s: could not record that its end was sent: %s", run["run_id"], error)
        yield items


def _is_lost(run_id: UUID) -> bool:
    """Return whether Redis answers and has no log of this run."""
    try:
        return not logs.position(redis.events(run_id), run_id)
    except RedisError:
        return False


class _RunView:
    """The protocol's view of one run, after an event of its log."""

    def __init__(self, run: Any, after: int) -> None:
        self._run, self._after = run, after
        self._has_begun = after >= events.FIRST_EVENT

    def begins_in(self, batch: Sequence[Event]) -> bool:
        """Return whether this batch is the first to show that the run has started."""
        return not self._has_begun and any(map(_shows_beginning, batch))

    def shown(self, batch: Sequence[Event], row: Any) -> list[Item]:
        """Return the items for a batch of the log's events.

        `row` is the run's row, read after the last of these events, or None if the run is deleted.
        """
        items: list[Item] = []
        for event in batch:
            if event is logs.EXPIRED:
                items.append(EXPIRED)
            elif event.name == END:
                items += self._ending(event, row)
            elif _shows_beginning(event):
                items += self._beginning(row)
                if events.is_stored(event.name):
                    items.append(events.stored(event, self._run["run_id"], self._run["created_seq"]))
        return items

    def lost(self, row: Any) -> list[Item]:
        """Return the items for a run whose log is lost."""
        lacks = row is not None and row["attempt"] > 0
        return [*([EXPIRED] if lacks else []), *self._ending(end_event.END_OF_LOG, row)]

    def _beginning(self, row: Any) -> list[Item]:
        if self._has_begun:
            return []
        self._has_begun = True
        return [lifecycle.running(self._run, None if row is None else row["started_at"])]

    def _ending(self, end: Event, row: Any) -> list[Item]:
        """Return the items for the end of a run, with its start and its open interrupts if the log lacks them.

        A run that was cancelled or deleted before its start gets no end event. Clients would otherwise take the thread
        for interrupted, although the run that they watch continues or has completed.
        """
        if row is None:
            has_begun = self._has_begun or end is end_event.END_OF_LOG
            return [lifecycle.ended_without_row(self._run, end)] if has_begun else []
        if not row["attempt"] and row["status"] == RunStatus.INTERRUPTED:
            return []
        begun = self._beginning(row) if row["attempt"] else []
        requests = lifecycle.requested(row) if end is end_event.END_OF_LOG else []
        return [
            *begun,
            *(one for one in requests if events.split_number(one.seq)[1] > self._after),
            lifecycle.ended(row, end),
        ]


def _shows_beginning(event: Event) -> bool:
    return event.name == "metadata" or events.is_stored(event.name)
