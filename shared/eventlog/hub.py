"""The process's one subscriber connection to Redis, shared by all who follow an event log.

Each reader has a queue of its own, with a bound: who reads too slowly reads the log instead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from redis import Redis
from redis.exceptions import RedisError

from shared.eventlog.events import Event, channel, parse_message
from shared.infra.redis import client

log = logging.getLogger(__name__)

QUEUE_EVENTS, QUEUE_BYTES = 1_000, 4 * 1024 * 1024  # a slow reader's queue before it must read the log
SILENCE_SECONDS = 6.0  # no answer to a PING for this long: the connection is dead


class Stopping(Exception):
    """This process stops: whoever follows continues at another one."""


class Reader:
    """One follower's queue, filled by the hub. `stale` means: the log knows more than the queue."""

    def __init__(self, channel: bytes, *, unseen: bool) -> None:
        self.channel = channel
        self.is_new = unseen  # follows something that was not there when it came
        self.unseen = unseen  # nothing can have been published before the first confirmation
        self.confirmed = False
        self.stale = not unseen
        self.is_closed = False
        self._is_woken = False
        self._events: deque[Event] = deque()
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
        if not self.unseen:
            self.mark_stale()
        self.unseen = False
        self.confirmed = True
        self._ready.set()

    def close(self) -> None:
        """The process stops: nothing is waited for any more."""
        self.is_closed = True
        self._ready.set()

    def wake(self) -> None:
        """Let the follower look after something else: its next wait ends with nothing."""
        self._is_woken = True
        self._ready.set()

    def take(self, timeout_seconds: float) -> tuple[list[Event], bool]:
        """What has arrived, waiting for something if there is nothing; and whether to read the log.

        Raises Stopping where it would have to wait and the hub has been closed.
        """
        deadline = time.monotonic() + timeout_seconds
        while not self._has_something() and (left := deadline - time.monotonic()) > 0:
            if self.is_closed:
                raise Stopping
            self._ready.wait(left)
            self._ready.clear()
        with self._lock:
            self._ready.clear()
            events, self._events, self._bytes = list(self._events), deque(), 0
            stale, self.stale = self.stale, False
            if not events and not stale:  # else the next call says so
                self._is_woken = False
        return events, stale

    def _has_something(self) -> bool:
        return bool(self._events) or self.stale or self._is_woken

    def wait_confirmed(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not self.confirmed and not self._is_woken and time.monotonic() < deadline:
            self._ready.wait(deadline - time.monotonic())
            if not self.confirmed:
                self._ready.clear()
        return self.confirmed


class Hub:
    """The process's one subscriber connection, shared by all its readers."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._readers: dict[bytes, set[Reader]] = {}
        self._lock = threading.Lock()  # commands must be sent in the order in which readers come and go
        self._connection: Any = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def close(self) -> None:
        """End every follower: the process stops."""
        self._is_closed = True
        for reader in self._all():
            reader.close()

    @contextmanager
    def reader(self, id: UUID, *, unseen: bool = False, at: bytes | None = None) -> Iterator[Reader]:
        """A reader subscribed to the log's channel; it need not be confirmed yet.

        `unseen` says that nothing can be published before the subscription is confirmed (the row is
        not there yet), so that the log need not be read first. `at` is another channel, of wake-ups alone.
        """
        reader = Reader(at or channel(id), unseen=unseen)
        self._add(reader)
        if self._is_closed:
            reader.close()
        try:
            yield reader
        finally:
            self._remove(reader)

    def _add(self, reader: Reader) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen_forever, name="events-hub", daemon=True)
            self._thread.start()
        with self._lock:
            readers = self._readers.setdefault(reader.channel, set())
            if any(other.confirmed for other in readers):
                reader.confirm()
            readers.add(reader)
            if self._connection is None:
                reader.unseen = False  # subscribed some time later: events may come before
            elif len(readers) == 1:
                self._send("SUBSCRIBE", reader.channel)

    def _remove(self, reader: Reader) -> None:
        with self._lock:
            readers = self._readers.get(reader.channel, set())
            readers.discard(reader)
            if not readers and self._readers.pop(reader.channel, None) is not None:
                self._send("UNSUBSCRIBE", reader.channel)

    def _send(self, *command: object) -> None:
        """Send a command if there is a connection; the caller holds the lock."""
        connection = self._connection
        if connection is None:
            return  # the listener subscribes to everything when it has connected
        try:
            connection.send_command(*command)
        except (RedisError, OSError):
            self._connection = None  # the listener's read fails too, and it reconnects
            connection.disconnect()

    def _listen_forever(self) -> None:
        pause = 0.05
        while True:
            try:
                self._connect()
                pause = 0.05
                self._listen()
            except (RedisError, OSError) as error:
                log.warning("lost the event bus, reconnecting: %s", error)
            except Exception:  # the outermost loop: a bug here must not end every stream of the process
                log.exception("the event hub failed, reconnecting")
            self._hang_up()
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _hang_up(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.disconnect()
            for reader in self._all():
                reader.confirmed = reader.unseen = False

    def _connect(self) -> None:
        pool = self._redis.connection_pool
        connection = pool.connection_class(**{**pool.connection_kwargs, "socket_timeout": SILENCE_SECONDS})
        connection.connect()
        with self._lock:
            self._connection = connection
            channels = list(self._readers)
            if channels:
                connection.send_command("SUBSCRIBE", *channels)

    def _listen(self) -> None:
        connection = self._connection
        asked_at = 0.0
        while connection is self._connection:
            try:
                message = connection.read_response(
                    disable_decoding=True, timeout=SILENCE_SECONDS / 2, disconnect_on_error=False
                )
            except RedisError as error:
                if type(error).__name__ != "TimeoutError" or asked_at:
                    raise
                asked_at = time.monotonic()
                with self._lock:
                    self._send("PING")
                continue
            asked_at = 0.0
            self._dispatch(message)

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

    def _all(self) -> list[Reader]:
        return [reader for readers in tuple(self._readers.values()) for reader in tuple(readers)]


_hub: Hub | None = None


def hub() -> Hub:
    """The process's hub."""
    global _hub
    if _hub is None:
        _hub = Hub(client())
    return _hub
