"""A thread's events as the protocol shows them, from a place on and for as long as the reader stays.

Where a reader begins who names no place: clients take the first end of a run that they see for the end of the run they
have just started. So nobody is shown a run that is over, but who can only want that one: the newest, for its content;
and its end alone, as long as nobody who waits for it was given it.
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
from sqlalchemy import Connection, text

from shared.errors import Unavailable
from shared.eventlog import events as logs
from shared.eventlog import follow
from shared.eventlog.events import END, Event
from shared.eventlog.hub import Reader, Stopping, hub
from shared.infra import redis
from shared.infra.json_text import readable
from shared.infra.postgres import connection
from shared.models import LIVE_RUN_STATUSES, RunStatus, ThreadStatus, is_live
from shared.protocol import events, lifecycle, position, watching
from shared.protocol.events import EXPIRED, Failure, Item, Note
from shared.runs import end_event, visibility
from shared.runs.read import PROTOCOL
from shared.thread_runs import Look, ThreadReader
from shared.threads import records
from shared.user_code.filters import Filter

log = logging.getLogger(__name__)

KEPT_RUNS = 100  # what is further back is not replayed
PAUSE_SECONDS = 1.0  # between two tries to reach a database that is away
SETTLED_SECONDS = 5  # a log ends a moment after its row: longer than its writer may take

_OF_THREAD = "deployment_id = t.deployment_id AND thread_id = t.thread_id"

# `by_protocol`: made by a command, so that whoever sent it waits for its end.
BEGIN = text(f"""
SELECT t.last_seq, t.status, t.protocol_end_given, newest.created_seq AS newest, newest.by_protocol,
    (SELECT min(created_seq) FROM run WHERE {_OF_THREAD} AND {is_live()}) AS oldest_live,
    (SELECT created_seq FROM run WHERE {_OF_THREAD} ORDER BY created_seq DESC OFFSET :kept LIMIT 1) AS forgotten
FROM thread AS t LEFT JOIN LATERAL (
    SELECT created_seq, CAST({readable("kwargs")} -> 'stream_mode' AS jsonb) @> '["{PROTOCOL}"]' AS by_protocol
    FROM run WHERE {_OF_THREAD} AND attempt > 0 ORDER BY created_seq DESC LIMIT 1
) AS newest ON true
WHERE t.deployment_id = :deployment_id AND t.thread_id = :thread_id
""")

NEXT = text(f"""
SELECT t.last_seq, r.* FROM thread AS t LEFT JOIN LATERAL (
    SELECT run_id, created_seq, graph_id, {watching.HAS_PROTOCOL} AS has_protocol,
        coalesce(ended_at < now() - make_interval(secs => :settled), false) AS has_settled
    FROM run WHERE {_OF_THREAD} AND created_seq > :after ORDER BY created_seq LIMIT 1
) AS r ON true
WHERE t.deployment_id = :deployment_id AND t.thread_id = :thread_id
""")

NEWEST = text("""
SELECT t.last_seq, r.run_id, r.status FROM thread AS t LEFT JOIN run AS r
    ON r.deployment_id = t.deployment_id AND r.thread_id = t.thread_id AND r.created_seq = t.last_seq
WHERE t.deployment_id = :deployment_id AND t.thread_id = :thread_id
""")


def newest(conn: Connection, deployment_id: UUID, thread_id: UUID) -> int:
    """The number of a thread's newest event; 0 where it has never had one."""
    row = conn.execute(NEWEST, {"deployment_id": deployment_id, "thread_id": thread_id}).one_or_none()
    if row is None or not row.last_seq:
        return 0
    has_ended = row.status not in LIVE_RUN_STATUSES
    return position.seq(row.last_seq, position.LAST if has_ended else end_event.extent(row.run_id)[0])


Place = tuple[int, int]  # a run's number, and an event's in its log


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a reader begins: with what comes after all of run `after`, and in the next run after event `event`."""

    after: int
    event: int = position.NONE
    is_expired: bool = False

    @property
    def seq(self) -> int:
        """All that comes has a number above this one."""
        return position.seq(self.after + 1, self.event)


def begin(row: Any, since: Place | None, *, waits: bool) -> Begin:
    """Where a reader of the thread of this row begins; `waits`: one that looks for the ends of runs alone."""
    if since is not None:
        return _after(row, *since)
    if row.oldest_live is not None:
        return Begin(row.oldest_live - 1)
    if row.newest is None:
        return Begin(row.last_seq)
    is_wanted = not waits or (row.by_protocol and row.newest > row.protocol_end_given)
    return Begin(row.newest - 1 if is_wanted or row.status == ThreadStatus.INTERRUPTED else row.last_seq)


def _after(row: Any, run: int, event: int) -> Begin:
    if run > row.last_seq:
        return Begin(row.last_seq)  # it names another thread's, or one's that was deleted
    if row.forgotten is not None and run <= row.forgotten:
        return Begin(row.forgotten, is_expired=True)
    return Begin(run) if event == position.LAST else Begin(run - 1, event)


@dataclass(frozen=True, slots=True)
class Joined:
    """What is read on by the same reader: all after this number, and whether for the ends of runs."""

    seq: int
    waits: bool


class ProtocolStream(ThreadReader[Item]):
    """One reader of one thread. `since` is a number of the thread's events, None to begin where it makes sense.

    `waits`: it looks for beginnings, ends and questions of runs alone. `awaits`: the thread may be made later.
    `joined`: it also reads on for somebody who has come further, or less far. `filter`: a thread that it hides is
    none, also when it is made later.
    """

    def __init__(
        self,
        deployment_id: UUID,
        thread_id: UUID,
        *,
        since: int | None,
        waits: bool,
        awaits: bool,
        joined: Joined | None = None,
        filter: Filter | None = None,
    ) -> None:
        super().__init__(deployment_id, thread_id)
        self._since = None if since is None else position.parts(max(since, 0))
        self._waits, self._is_awaited, self._joined = waits, awaits, joined
        self._gives_ends = waits or (joined is not None and joined.waits)
        self._filter = filter
        self._begin = Begin(0)
        self._renew_at = 0.0
        self._reader: Reader | None = None  # of the run that is followed now
        self.begins_after = position.seq(1)  # the number that all it was opened for are above

    def open(self) -> None:
        """Note where the stream begins, and say that somebody watches; raises NotFound when there is no thread."""
        with connection() as conn:
            if self._is_hidden(conn):
                raise records.missing(self._thread_id)
            watching.watch(conn, self._keys)
            widened = watching.widen(conn, self._keys)
            row = conn.execute(BEGIN, {**self._keys, "kept": KEPT_RUNS}).one_or_none()
        for run in widened:
            run.publish()
        self._renew_at = time.monotonic() + watching.RENEW_SECONDS
        if row is not None:
            self._is_awaited = False
            self._begin = begin(row, self._since, waits=self._waits)
            self.begins_after = self._begin.seq
            if self._joined is not None:
                others = _after(row, *position.parts(self._joined.seq))
                self._begin = min(self._begin, others, key=lambda one: one.seq)
        elif not self._is_awaited:
            raise records.missing(self._thread_id)
        self._after = self._begin.after

    def _is_hidden(self, conn: Connection) -> bool:
        return visibility.is_hidden(conn, self._deployment_id, self._thread_id, self._filter)

    def batches(self, wake_ups: Reader, quiet_seconds: Callable[[], float]) -> Iterator[list[Item]]:
        """Ends with a Failure when the thread is deleted, and never otherwise."""
        if self._begin.is_expired:
            yield [EXPIRED]
        for batch in super().batches(wake_ups, quiet_seconds):
            self._renew()
            yield batch
        yield [Failure("no_such_run", f"Thread {self._thread_id} was deleted")]

    def wake(self) -> None:
        """End the wait for something new of a run: a quiet spell is over at once."""
        if self._reader is not None:
            self._reader.wake()

    def _renew(self) -> None:
        """Say again that somebody watches; what was created before it was said is widened."""
        if time.monotonic() < self._renew_at or (self._is_awaited and self._filter):
            return
        self._renew_at = time.monotonic() + watching.RENEW_SECONDS
        try:
            watching.note(self._keys)
        except Unavailable as error:
            log.warning("thread %s: not noted that it is watched: %s", self._thread_id, error)

    def _look(self) -> Look | None:
        with connection() as conn:
            row = conn.execute(
                NEXT, {**self._keys, "after": self._after, "settled": SETTLED_SECONDS}
            ).one_or_none()
            if row is not None and self._is_awaited and self._is_hidden(conn):
                return None
        if row is None:
            return None
        if self._is_awaited:
            self._renew_at = 0.0
        return Look(row.last_seq, row if row.run_id else None)

    def _run(self, run: Any, quiet_seconds: Callable[[], float]) -> Iterator[list[Item]]:
        first = run.created_seq == self._begin.after + 1
        after = self._begin.event if first else position.NONE
        view = _RunView(run, after)
        if not run.has_protocol and not self._waits:
            yield [Note(f"content of run {run.run_id} was not kept")]
        with hub().reader(run.run_id) as reader:
            self._reader = reader
            newest, is_whole = end_event.extent(run.run_id)
            if run.has_settled and not newest and _is_lost(run.run_id):
                row = yield from self._row(run, reader)
                yield from self._shown(run, view.lost(row), is_over=True)
                return
            if newest:  # a log that holds nothing was lost: its numbers were in use
                after = min(after, newest - is_whole)
            for batch in follow.follow(
                reader,
                run.run_id,
                after=after,
                ended=partial(end_event.end_of_lost, self._deployment_id, run.run_id),
                quiet_seconds=quiet_seconds,
            ):
                is_over = bool(batch) and batch[-1].is_last
                row = (yield from self._row(run, reader)) if is_over or view.begins_in(batch) else None
                yield from self._shown(run, view.shown(batch, row), is_over=is_over)

    def _row(self, run: Any, reader: Reader) -> Generator[list[Item], None, Any]:
        """The run's row as it is now; waits for a database that is away."""
        while True:
            try:
                with connection() as conn:
                    return lifecycle.row(conn, self._deployment_id, run.run_id)
            except Unavailable as error:
                log.warning("run %s: cannot be looked up now: %s", run.run_id, error)
            if reader.is_closed:
                raise Stopping
            time.sleep(PAUSE_SECONDS)
            yield []

    def _shown(self, run: Any, items: list[Item], *, is_over: bool) -> Iterator[list[Item]]:
        """A batch; that an end is given is noted before: who has got it often leaves at once."""
        if is_over and self._gives_ends:
            try:
                with connection() as conn:
                    watching.end_given(conn, self._keys, run.created_seq)
            except Unavailable as error:
                log.warning("run %s: not noted that its end was given: %s", run.run_id, error)
        yield items


def _is_lost(run_id: UUID) -> bool:
    """Whether Redis answers, and has no log of this run."""
    try:
        return not logs.position(redis.events(run_id), run_id)
    except RedisError:
        return False


class _RunView:
    """What the protocol shows of one run after an event of its log."""

    def __init__(self, run: Any, after: int) -> None:
        self._run, self._after = run, after
        self._has_begun = after >= position.FIRST

    def begins_in(self, batch: Sequence[Event]) -> bool:
        """Whether it is first seen here that the run has begun."""
        return not self._has_begun and any(map(_shows_beginning, batch))

    def shown(self, batch: Sequence[Event], row: Any) -> list[Item]:
        """A batch of the log's events; `row` is the run's, as of after the last of them, or None when it is gone."""
        items: list[Item] = []
        for event in batch:
            if event is logs.EXPIRED:
                items.append(EXPIRED)
            elif event.name == END:
                items += self._ending(event, row)
            elif _shows_beginning(event):
                items += self._beginning(row)
                if events.is_stored(event.name):
                    items.append(events.stored(event, self._run.run_id, self._run.created_seq))
        return items

    def lost(self, row: Any) -> list[Item]:
        """All that is left of a run whose log is gone."""
        lacks = row is not None and row.attempt > 0
        return [*([EXPIRED] if lacks else []), *self._ending(end_event.END_OF_LOG, row)]

    def _beginning(self, row: Any) -> list[Item]:
        if self._has_begun:
            return []
        self._has_begun = True
        return [lifecycle.running(self._run, None if row is None else row.started_at)]

    def _ending(self, end: Event, row: Any) -> list[Item]:
        """The end; where the log does not tell them, that the run had begun and what it asks.

        A run that was cancelled or deleted before it began ends without an event: clients would take the thread for
        interrupted, though the run that they watch goes on or has completed.
        """
        if row is None:
            has_begun = self._has_begun or end is end_event.END_OF_LOG
            return [lifecycle.gone(self._run, end)] if has_begun else []
        if not row.attempt and row.status == RunStatus.INTERRUPTED:
            return []
        begun = self._beginning(row) if row.attempt else []
        asked = lifecycle.requested(row) if end is end_event.END_OF_LOG else []
        return [
            *begun,
            *(one for one in asked if position.parts(one.seq)[1] > self._after),
            lifecycle.ended(row, end),
        ]


def _shows_beginning(event: Event) -> bool:
    return event.name == "metadata" or events.is_stored(event.name)
