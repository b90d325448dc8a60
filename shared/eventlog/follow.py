"""Following an event log live, without loss.

Pub/sub may lose a message and Redis may lose the log; the row knows how a thing ended. `follow()` puts the
three together.
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

SELF_CHECK_SECONDS = 6.0  # a quiet reader looks whether it missed the very last message
ROW_CHECK_SECONDS = 15.0  # … and whether the row has ended, which its owner could not publish any more
AWAY_CHECK_SECONDS = 5.0  # … and while Redis is away, where the row says all that is wanted
PAUSE_SECONDS = 0.2
SETTLE_SECONDS = 1.5  # between the row's end and a log without one: longer than a writer pauses
HELD_SECONDS = 30.0  # … and than it takes one to notice that it has been cut off from Redis for a while


class RowEnd(NamedTuple):
    """The last events of a log, by the row.

    `is_held`: its writer lives, and may have some that it could not send. `is_settled`: the row ended a while ago, and
    no writer has any.
    """

    events: Sequence[Event]
    is_held: bool = False
    is_settled: bool = False


Ended = Callable[[int], RowEnd | None]


def follow(
    reader: Reader,
    id: UUID,
    *,
    after: int | None,
    ended: Ended,
    quiet_seconds: Callable[[], float],
    ended_by_row: Callable[[], Sequence[Event] | None] | None = None,
) -> Iterator[list[Event]]:
    """A log's events in order from number `after`, in batches, to its last; [] on each quiet spell.

    `after` None means from now on. `ended(last)` answers from the row, for a log that was lost: the end for who
    has the events up to number `last`, or None while the thing lives. `quiet_seconds()` is how long to wait for
    something new.
    `ended_by_row` is for callers who need the end alone, not what led to it: it is asked while Redis is away.
    Raises Stopping when the process stops first.

    The log is the truth. A message that is next in line is relayed as it is; on anything else (the
    subscription's confirmation, a gap, a quiet spell) what is missing is read from the log.
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
    row = _Row(ended_by_row)
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
        yield []  # a heartbeat, and the caller's chance to notice a closed socket
        if not checks.seconds_left and (final := _look(position, checks, row, ended)):
            yield list(final)
            return


class _Position:
    """How far a follower has come: to event `last`. `is_stale`: it must read on from the log."""

    def __init__(self, redis: Redis, id: UUID, last: int, *, is_from_start: bool) -> None:
        self._redis = redis
        self._id = id
        self._is_from_start = is_from_start
        self.last = last
        self.is_stale = False

    def catch_up(self) -> Iterator[list[Event]]:
        """Pages of what the log holds beyond `last`; raises RedisError."""
        for page in _catch_up(self._redis, self._id, self.last, from_start=self._is_from_start):
            self.last = page[-1].seq or self.last
            yield page

    def advance(self, events: Sequence[Event]) -> list[Event]:
        """Those of the published events that come next, up to a gap, which makes the position stale."""
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
        """The number of the log's newest event, None when Redis does not answer."""
        return _newest(self._redis, self._id)


def _look(position: _Position, checks: _Checks, row: _Row, ended: Ended) -> Sequence[Event] | None:
    """The last events of what ended in silence; else None, and the position is stale if the log has gone on."""
    newest = position.newest()
    final = None
    if newest is None:
        final = row.ask()
    elif newest > position.last:
        position.is_stale = True
    else:
        final = checks.ask(ended, position.last)
        if final and (position.newest() or 0) > position.last:  # sent while the row was read
            position.is_stale, final = True, None
    if not final:
        checks.again()
    return final


class _Checks:
    """When a quiet reader looks for itself: at the log often, at the row seldom.

    The row is believed when it has said for a while that all is over, and nothing was added meanwhile: the row
    ends first, its log a moment later, and a writer that has just got Redis back may still hold the last events.
    """

    def __init__(self, is_new: bool) -> None:
        now = time.monotonic()
        self._next = now + (SELF_CHECK_SECONDS if is_new else 0)
        self._row_at = now + (ROW_CHECK_SECONDS if is_new else 0)
        self._ended_with: int | None = None  # the row had ended when this was the log's last event …
        self._ended_at = 0.0  # … and that was seen first

    @property
    def seconds_left(self) -> float:
        return max(self._next - time.monotonic(), 0.0)

    def ask(self, ended: Ended, last: int) -> Sequence[Event] | None:
        """The last events of what has ended by its row and adds nothing to its log; None otherwise."""
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
        """Look again in a while, sooner when the row has ended already."""
        pause = SELF_CHECK_SECONDS if self._ended_with is None else SETTLE_SECONDS
        self._next = time.monotonic() + pause


class _Row:
    """What the row alone says, asked now and then while Redis does not answer."""

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
    """The newest event's number, None when Redis does not answer."""
    try:
        return position(redis, id)
    except RedisError:
        return None


def _catch_up(redis: Redis, id: UUID, last: int, *, from_start: bool) -> Iterator[list[Event]]:
    """Pages of what the log holds after `last`, with EXPIRED where something is missing; raises RedisError.

    A log that begins beyond 1 was lost, or an attempt was killed before it wrote anything: nothing tells which.
    """
    page: list[Event] = []
    for event in logged(redis, id, last):
        lost = event.seq != last + 1 and (event.after != last or (from_start and last == 0))
        if lost:
            page.append(EXPIRED)
        page.append(event)
        last = event.seq
        if len(page) >= PAGE:
            yield page
            page = []
    if page:
        yield page
