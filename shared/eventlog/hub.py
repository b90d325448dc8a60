"""The process's single subscriber connection to Redis, shared by all readers of event logs.

Each reader has a bounded queue. A reader whose queue overflows reads the log instead.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from redis import Redis
from redis.exceptions import RedisError

from shared.eventlog.events import Event, channel, parse_message
from shared.infra import redis as servers
from shared.infra.loops import forever
from shared.infra.redis_connections import PerProcess, command, keep_subscribed, messages, pack

QUEUE_EVENTS, QUEUE_BYTES = 1_000, 4 * 1024 * 1024  # capacity of a reader's queue
# Waits of at least this length have no timer: a periodic sweep ends them. A timer for each event would account for a
# fifth of the event's cost.
LONG_SECONDS = 2.0
SWEEP_SECONDS = 0.5


class Stopping(Exception):
    """Raised to a reader because this process shuts down. The client continues at another process."""


class Reader:
    """A reader's queue, filled by the hub. `stale`: the log has events that the queue lacks."""

    __slots__ = (
        "_bytes", "_events", "_is_woken", "_lock", "_ready", "_waits_until",
        "channel", "confirmed", "is_closed", "is_new", "is_swept", "missed_nothing", "stale",
    )  # fmt: skip

    def __init__(self, channel: bytes, *, before_creation: bool) -> None:
        self.channel = channel
        self.is_new = before_creation  # the run or build did not exist when the reader was created
        self.missed_nothing = before_creation  # until the first confirmation
        self.confirmed = False
        self.stale = not before_creation
        self.is_closed = False
        self.is_swept = False  # the hub's sweep calls `end_wait`
        self._waits_until = math.inf
        self._is_woken = False
        self._events: list[Event] = []
        self._bytes = 0
        self._lock = threading.Lock()
        self._ready = threading.Event()

    def push(self, events: Sequence[Event], size: int) -> None:
        with self._lock:
            if self.stale:
                return
            if len(self._events) + len(events) > QUEUE_EVENTS or self._bytes + size > QUEUE_BYTES:
                self._drop()
            else:
                self._events.extend(events)
                self._bytes += size
        self._ready.set()

    def mark_stale(self) -> None:
        with self._lock:
            self._drop()
        self._ready.set()

    def _drop(self) -> None:
        self.stale = True
        self._events.clear()
        self._bytes = 0

    def confirm(self) -> None:
        if not self.missed_nothing:
            self.mark_stale()
        self.missed_nothing = False
        self.confirmed = True
        self._ready.set()

    def close(self) -> None:
        """End all waits, because the process shuts down."""
        self.is_closed = True
        self._ready.set()

    def wake(self) -> None:
        """End the reader's current or next wait without events."""
        self._is_woken = True
        self._ready.set()

    def take(self, timeout_seconds: float) -> tuple[list[Event], bool]:
        """Return the queued events, and whether to read the log. Waits up to `timeout_seconds` if there is neither.

        Raises Stopping if it would have to wait and the hub is closed.
        """
        deadline = time.monotonic() + timeout_seconds
        while not self._has_something() and (left := deadline - time.monotonic()) > 0:
            if self.is_closed:
                raise Stopping
            self._wait(left)
            self._ready.clear()
        with self._lock:
            self._ready.clear()
            events, self._events, self._bytes = self._events, [], 0
            stale, self.stale = self.stale, False
            if not events and not stale:  # otherwise the wake-up is kept for the next call
                self._is_woken = False
        return events, stale

    def _wait(self, seconds: float) -> None:
        if seconds < LONG_SECONDS or not self.is_swept:
            self._ready.wait(seconds)
            return
        self._waits_until = time.monotonic() + seconds
        self._ready.wait()
        self._waits_until = math.inf

    def end_wait(self, now: float) -> None:
        """End a long wait whose timeout has passed."""
        if self._waits_until <= now:
            self._ready.set()

    def _has_something(self) -> bool:
        return bool(self._events) or self.stale or self._is_woken

    def wait_confirmed(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not self.confirmed and not self._is_woken and time.monotonic() < deadline:
            self._wait(deadline - time.monotonic())
            if not self.confirmed:
                self._ready.clear()
        return self.confirmed


class Hub:
    """The process's single subscriber connection, shared by all its readers."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._readers: dict[bytes, set[Reader]] = {}
        self._unread: set[bytes] = set()  # channels without readers, before their subscription is ended
        self._lock = threading.Lock()  # keeps commands in the order in which readers are added and removed
        self._connection: Any = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def close(self) -> None:
        """End all readers, because the process shuts down."""
        self._is_closed = True
        for reader in self._all():
            reader.close()

    @contextmanager
    def reader(self, id: UUID, *, before_creation: bool = False, at: bytes | None = None) -> Iterator[Reader]:
        """Yield a reader subscribed to the log's channel. The subscription may not be confirmed yet.

        `before_creation`: the row does not exist yet. The reader then does not read the log when its subscription is
        confirmed; a gap in the numbers would show an event that was published before. `at` is another channel on the
        same server, with wake-ups only.
        """
        reader = Reader(at or channel(id), before_creation=before_creation)
        self._add(reader)
        if self._is_closed:
            reader.close()
        try:
            yield reader
        finally:
            self._remove(reader)

    def _add(self, reader: Reader) -> None:
        with self._lock:
            if self._thread is None:  # under the lock: a start switches greenlets, which could start another
                self._thread = keep_subscribed(
                    self._redis, self._follow, name="events-hub", until=lambda: self._is_closed
                )
                threading.Thread(
                    target=forever,
                    args=(self._sweep, SWEEP_SECONDS),
                    kwargs={"what": "ending waits and subscriptions", "until": lambda: self._is_closed},
                    name="events-hub-waits",
                    daemon=True,
                ).start()
            reader.is_swept = True
            readers = self._readers.setdefault(reader.channel, set())
            if any(other.confirmed for other in readers):
                reader.confirm()
            readers.add(reader)
            if self._connection is None:
                reader.missed_nothing = (
                    False  # the subscription comes later: events may be published before it
                )
            elif len(readers) == 1:
                self._unread.discard(reader.channel)
                self._send(*self._unsubscribe(), (b"SUBSCRIBE", reader.channel))

    def _remove(self, reader: Reader) -> None:
        with self._lock:
            readers = self._readers.get(reader.channel, set())
            readers.discard(reader)
            if not readers and self._readers.pop(reader.channel, None) is not None:
                self._unread.add(reader.channel)

    def _unsubscribe(self) -> list[tuple[bytes, ...]]:
        """Return the command that ends the subscriptions without readers. It is sent with the next one, or by the sweep."""
        channels, self._unread = self._unread, set()
        return [(b"UNSUBSCRIBE", *channels)] if channels else []

    def _send(self, *commands: tuple[bytes, ...]) -> None:
        """Send commands in one packet if there is a connection; the caller holds the lock."""
        connection = self._connection
        if connection is None or not commands:
            return  # the listener subscribes to all channels when it connects
        packed = b"".join(command(len(each), pack(*each)) for each in commands)
        try:
            connection.send_packed_command((packed,), check_health=False)
        except (RedisError, OSError):
            self._connection = None  # the listener's read fails as well, and it reconnects
            connection.disconnect()

    def _follow(self, connection: Any) -> None:
        """Subscribe to all channels with readers, and dispatch messages until the connection is lost."""
        try:
            with self._lock:
                self._connection = connection
                self._unread.clear()
                if self._readers:
                    self._send((b"SUBSCRIBE", *self._readers))
            for message in messages(connection, self._ping):
                self._dispatch(message)
                if connection is not self._connection:
                    return
        finally:
            self._hang_up()

    def _ping(self) -> None:
        with self._lock:
            self._send((b"PING",))

    def _hang_up(self) -> None:
        with self._lock:
            self._connection = None
            for reader in self._all():
                reader.confirmed = reader.missed_nothing = False

    def _dispatch(self, message: list[Any]) -> None:
        kind = message[0]
        if kind == b"message":
            data = message[2]
            readers = self._readers.get(message[1])
            if readers:
                events = parse_message(data)
                for reader in tuple(readers):
                    reader.push(events, len(data))
        elif kind == b"subscribe":
            for reader in tuple(self._readers.get(message[1], ())):
                if not reader.confirmed:
                    reader.confirm()

    def _sweep(self) -> None:
        with self._lock:
            self._send(*self._unsubscribe())
        now = time.monotonic()
        for reader in self._all():
            reader.end_wait(now)

    def _all(self) -> list[Reader]:
        return [reader for readers in tuple(self._readers.values()) for reader in tuple(readers)]


class Hubs(Hub):
    """A hub for each Redis server with event logs. A server that is away affects only its own readers."""

    def __init__(self, redises: Sequence[Redis]) -> None:
        super().__init__(redises[0])
        self._hubs = {redis: Hub(redis) for redis in redises}

    def close(self) -> None:
        for one in self._hubs.values():
            one.close()

    @contextmanager
    def reader(self, id: UUID, *, before_creation: bool = False, at: bytes | None = None) -> Iterator[Reader]:
        with self._hubs[servers.events(id)].reader(id, before_creation=before_creation, at=at) as reader:
            yield reader

    def _all(self) -> list[Reader]:
        return [reader for one in self._hubs.values() for reader in one._all()]


def _make() -> Hub:
    redises = servers.event_servers()
    return Hub(redises[0]) if len(redises) == 1 else Hubs(redises)


hub = PerProcess(_make)
