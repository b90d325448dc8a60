"""Following an event log live, without loss.

Pub/sub may lose a message, and Redis may lose the log. The database row of the run or build records how it ended.
`follow()` combines the three.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from redis import Redis
from redis.exceptions import RedisError

from shared.eventlog.events import EXPIRED, PAGE, Event, logged, position
from shared.eventlog.hub import Reader
from shared.infra.redis import events as server_of

log = logging.getLogger(__name__)

# An idle reader checks the log for a missed last message, and the row for an end that its owner could not publish.
SELF_CHECK_SECONDS = 6.0
ROW_CHECK_SECONDS = 15.0
AWAY_CHECK_SECONDS = 5.0  # interval of checks of the row while Redis is away
PAUSE_SECONDS = 0.2
# After the row has ended, a reader waits this long for the end of the log: longer than a writer pauses, and if the
# writer lives, longer than it takes to notice that it was cut off from Redis.
SETTLE_SECONDS = 1.5
HELD_SECONDS = 30.0


class RowEnd(NamedTuple):
    """The last events of a log, built from the row.

    `is_held`: the writer lives and may have unsent events. `is_settled`: the row ended a while ago, and no writer has
    unsent events.
    """

    events: Sequence[Event]
    is_held: bool = False
    is_settled: bool = False


Ended = Callable[[int], RowEnd | None]  # reads the row for a reader that has the events up to this number


def follow(
    reader: Reader,
    id: UUID,
    *,
    after: int | None,
    ended: Ended,
    quiet_seconds: Callable[[], float],
    ended_by_row: Callable[[], Sequence[Event] | None] | None = None,
) -> Iterator[list[Event]]:
    """Yield a log's events after number `after`, in order and in batches, to the end. Yields [] when nothing happens.

    `after` None means from now on. `ended(last)` reads the row, for a log that was lost: it returns the end for a
    reader that has the events up to number `last`, or None while the run or build is live. `quiet_seconds()` returns
    the longest wait before an empty batch. `ended_by_row` is for callers that need only the end: it is called while
    Redis is away. Raises Stopping if the process shuts down first.

    The log is the source of truth. A published event that directly follows the last one is passed on. In all other
    cases (confirmation of the subscription, a gap, a timeout), the reader reads the missing events from the log.
    """
    redis = server_of(id)
    reader.wait_confirmed(quiet_seconds())
    last = after
    while last is None:
        last = _newest(redis, id)
        if last is None:
            reader.take(quiet_seconds())
            yield []
    position = _Position(redis, id, last, is_from_start=after == 0)
    checks = _Checks(reader.is_new)
    row = _RowAlone(ended_by_row)
    while True:
        if position.is_stale:
            try:
                for page in position.catch_up():
                    yield page
                    if page[-1].is_last:
                        return
            except RedisError as error:
                log.warning("cannot read the event log of %s now: %s", id, error)
                reader.mark_stale()
                time.sleep(PAUSE_SECONDS)
                yield []
                if final := row.ask():
                    yield list(final)
                    return
        events, position.is_stale = reader.take(min(quiet_seconds(), checks.seconds_left))
        if events or position.is_stale:
            if fresh := position.advance(events):
                yield fresh
                if fresh[-1].is_last:
                    return
            continue
        yield []  # lets the caller send a heartbeat, and notice a closed socket
        if not checks.seconds_left and (final := _look(position, checks, row, ended)):
            yield list(final)
            return


class _Position:
    """The position of a follower, after event `last`. `is_stale`: it must continue from the log."""

    def __init__(self, redis: Redis, id: UUID, last: int, *, is_from_start: bool) -> None:
        self._redis = redis
        self._id = id
        self._is_from_start = is_from_start
        self.last = last
        self.is_stale = False

    def catch_up(self) -> Iterator[list[Event]]:
        """Yield pages of the log's events after `last`, with EXPIRED in place of missing events. Raises RedisError.

        A log that starts at a number above 1 was lost, or an attempt was killed before it wrote anything. The two cases
        cannot be told apart.
        """
        page: list[Event] = []
        last = self.last
        for event in logged(self._redis, self._id, last):
            if event.seq != last + 1 and (event.after != last or (self._is_from_start and last == 0)):
                page.append(EXPIRED)
            page.append(event)
            last = event.seq
            if len(page) >= PAGE:
                self.last = last
                yield page
                page = []
        if page:
            self.last = last
            yield page

    def advance(self, events: Sequence[Event]) -> list[Event]:
        """Return the published events that follow `last` without a gap. A gap makes the position stale."""
        fresh: list[Event] = []
        last = self.last
        for event in events:
            if event.seq <= last:
                continue
            if event.seq != last + 1 and (event.after != last or last == 0):
                self.is_stale = True
                break
            fresh.append(event)
            last = event.seq
        self.last = last
        return fresh

    def newest(self) -> int | None:
        """Return the number of the log's newest event, or None if Redis does not answer."""
        return _newest(self._redis, self._id)


def _look(position: _Position, checks: _Checks, row: _RowAlone, ended: Ended) -> Sequence[Event] | None:
    """Return the last events if the end was not published, else None. Marks the position stale if the log has more."""
    newest = position.newest()
    final = None
    if newest is None:
        final = row.ask()
    elif newest > position.last:
        position.is_stale = True
    else:
        final = checks.ask(ended, position.last)
        if final and (position.newest() or 0) > position.last:  # written while the row was read
            position.is_stale, final = True, None
    if not final:
        checks.again()
    return final


class _Checks:
    """The schedule on which an idle reader checks the log (often) and the row (seldom).

    The end in the row counts only after it has been there for a while without additions to the log. The row ends first
    and its log a moment later, and a writer that has just reconnected to Redis may still have the last events.
    """

    def __init__(self, is_new: bool) -> None:
        now = time.monotonic()
        self._next = now + (SELF_CHECK_SECONDS if is_new else 0)
        self._row_at = now + (ROW_CHECK_SECONDS if is_new else 0)
        self._ended_with: int | None = None  # the log's last event when the row was found ended
        self._ended_at = 0.0  # time at which this was first seen

    @property
    def seconds_left(self) -> float:
        return max(self._next - time.monotonic(), 0.0)

    def ask(self, ended: Ended, last: int) -> Sequence[Event] | None:
        """Return the last events if the row has ended and the log does not grow any more, else None."""
        now = time.monotonic()
        if now < self._row_at:
            return None
        end = ended(last)
        if end is not None and end.is_settled:
            return end.events
        if end is None:
            self._ended_with = None
        elif self._ended_with != last:
            self._ended_with, self._ended_at = last, now
        elif now - self._ended_at >= (HELD_SECONDS if end.is_held else SETTLE_SECONDS):
            return end.events
        self._row_at = now + (SETTLE_SECONDS if end else ROW_CHECK_SECONDS)
        return None

    def again(self) -> None:
        """Schedule the next check, earlier if the row has ended already."""
        pause = SELF_CHECK_SECONDS if self._ended_with is None else SETTLE_SECONDS
        self._next = time.monotonic() + pause


class _RowAlone:
    """The end by the row alone, for readers that need only the end. Checked at intervals while Redis does not answer."""

    def __init__(self, ended: Callable[[], Sequence[Event] | None] | None) -> None:
        self._ended = ended
        self._ask_at = time.monotonic() + AWAY_CHECK_SECONDS

    def ask(self) -> Sequence[Event] | None:
        now = time.monotonic()
        if self._ended is None or now < self._ask_at:
            return None
        self._ask_at = now + AWAY_CHECK_SECONDS
        return self._ended()


def _newest(redis: Redis, id: UUID) -> int | None:
    """Return the newest event's number, or None if Redis does not answer."""
    try:
        return position(redis, id)
    except RedisError:
        return None
