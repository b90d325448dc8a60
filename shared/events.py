"""A run's or a build's event log: numbered, append-only, followed live without loss.

The owner numbers events 1, 2, 3 … across attempts; numbers rise and may jump where an attempt begins.
Each batch goes into a Redis stream and out on a channel in one script call that checks who writes and
what came last, so that a call whose answer was lost can be repeated. Pub/sub may lose a message; a
reader that misses a number reads the log.

Why numbers are reserved ahead: an attempt starts at a number no client can have seen (`floor`, a block
reserved in the row before use), even when Redis lost everything and the previous owner is dead. A reader
that remembers a higher number would otherwise drop the new attempt's events as repeats.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from redis import Redis
from redis.exceptions import NoScriptError, RedisError

from shared import bus

log = logging.getLogger(__name__)

RESERVED = 500  # numbers an owner reserves in the row at a time
KEPT_EVENTS = 20_000  # of one log, about
RUNNING_EXPIRY_SECONDS = 24 * 3600
MAX_EVENT_BYTES = 1024 * 1024
QUEUE_EVENTS, QUEUE_BYTES = 1_000, 4 * 1024 * 1024  # a slow reader's queue before it must read the log
PAGE = 500
SELF_CHECK_SECONDS = 4.5  # a quiet reader looks whether it missed the very last message
SETTLE_SECONDS = 1.5  # between the row's end and a log without one: longer than a writer pauses
SILENCE_SECONDS = 6.0  # no answer to a PING for this long: the connection is dead

END = "end"  # the name of a log's last event


@dataclass(frozen=True, slots=True)
class Event:
    """One event: `data` is one line of JSON; `after` the number of the event before it in the log."""

    seq: int
    after: int
    name: str
    data: bytes

    @property
    def is_last(self) -> bool:
        return self.name == END


EXPIRED = Event(0, 0, "expired", b"")  # yielded where history is missing


def log_key(id: UUID) -> str:
    return f"{bus.PREFIX}{{{id}}}:log"


def meta_key(id: UUID) -> str:
    return f"{bus.PREFIX}{{{id}}}:meta"


def channel(id: UUID) -> bytes:
    return f"{bus.PREFIX}{{{id}}}:ch".encode()


# --- writing -------------------------------------------------------------------------------------

# KEYS log, meta. ARGV channel, attempt, owner, floor ('' = already open), first seq, final, expiry, kept,
# then one payload an event (name, line feed, JSON). Answers OK, LOST, FENCED, DONE or GAP.
# An attempt that opens its own log again beyond what the log holds leaves a hole: the next entry must not
# name the last one held as the one before it, or readers would not learn that history is missing.
APPEND = """
local meta = redis.call('HMGET', KEYS[2], 'attempt', 'owner', 'seq', 'tail', 'end')
local attempt, seq, tail = tonumber(meta[1]), tonumber(meta[3] or 0), tonumber(meta[4] or 0)
local mine = tonumber(ARGV[2])
if ARGV[4] ~= '' then
  if attempt and (attempt > mine or (attempt == mine and meta[2] ~= ARGV[3])) then return 'FENCED' end
  local floor = tonumber(ARGV[4])
  if floor > seq then
    seq = floor
    if attempt == mine then tail = floor end
  end
  redis.call('HSET', KEYS[2], 'attempt', ARGV[2], 'owner', ARGV[3], 'seq', seq, 'tail', tail)
else
  if not attempt then return 'LOST' end
  if attempt ~= mine or meta[2] ~= ARGV[3] then return 'FENCED' end
end
if meta[5] then return 'DONE' end
local first = tonumber(ARGV[5])
if first > seq + 1 then return 'GAP' end
local out = {}
for i = 9, #ARGV do
  local n = first + i - 9
  if n > seq then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[8], '0-' .. n, 'a', tail, 'e', ARGV[i])
    out[#out + 1] = n .. ' ' .. tail .. ' ' .. #ARGV[i] .. '\\n' .. ARGV[i]
    tail = n
  end
end
if #out > 0 then
  redis.call('HSET', KEYS[2], 'seq', tail, 'tail', tail)
  if ARGV[6] == '1' then redis.call('HSET', KEYS[2], 'end', tail) end
  redis.call('EXPIRE', KEYS[1], ARGV[7])
  redis.call('EXPIRE', KEYS[2], ARGV[7])
  redis.call('PUBLISH', ARGV[1], table.concat(out))
end
return 'OK'
"""

OK, LOST, FENCED, DONE, GAP = "OK", "LOST", "FENCED", "DONE", "GAP"


@dataclass(frozen=True, slots=True)
class Batch:
    """Events to append in one call. `floor` opens the attempt; `final` says the last one ends the log."""

    id: UUID
    attempt: int
    owner: str
    first_seq: int
    payloads: Sequence[bytes]
    floor: int | None = None
    final: bool = False


def payload(name: str, data: bytes) -> bytes:
    """An event as it is stored."""
    return name.encode() + b"\n" + data


SCRIPT_SHA = hashlib.sha1(APPEND.encode(), usedforsecurity=False).hexdigest()


def append(redis: Redis, batches: Sequence[Batch], *, retention_seconds: int) -> list[str]:
    """Append batches of any number of logs in one round-trip; one answer each. Raises RedisError.

    Repeating a call is harmless: events already in the log are skipped.
    """
    try:
        answers = _call(redis, batches, retention_seconds)
    except NoScriptError:  # a server that has just started does not know it yet
        redis.script_load(APPEND)
        answers = _call(redis, batches, retention_seconds)
    return [answer.decode() if isinstance(answer, bytes) else answer for answer in answers]


def _call(redis: Redis, batches: Sequence[Batch], retention_seconds: int) -> list[bytes | str]:
    pipe = redis.pipeline(transaction=False)
    for batch in batches:
        pipe.evalsha(
            SCRIPT_SHA,
            2,
            log_key(batch.id),
            meta_key(batch.id),
            channel(batch.id),
            batch.attempt,
            batch.owner,
            "" if batch.floor is None else batch.floor,
            batch.first_seq,
            int(batch.final),
            retention_seconds if batch.final else RUNNING_EXPIRY_SECONDS,
            KEPT_EVENTS,
            *batch.payloads,
        )
    return pipe.execute()


def close(
    id: UUID, *, attempt: int, owner: str, floor: int, payloads: Sequence[bytes], retention_seconds: int
) -> None:
    """End the log of something nobody executes any more; readers learn of it at once.

    A failure is logged only: readers also find out from the row (see `follow`).
    """
    batch = Batch(id, attempt, owner, floor + 1, payloads, floor=floor, final=True)
    try:
        append(bus.client(), [batch], retention_seconds=retention_seconds)
    except RedisError as error:
        log.warning("could not end the event log of %s: %s", id, error)


# --- reading -------------------------------------------------------------------------------------


def parse_message(data: bytes) -> list[Event]:
    """The events of one published message."""
    events, at, end = [], 0, len(data)
    while at < end:
        start = data.index(b"\n", at) + 1
        seq, after, size = data[at : start - 1].split(b" ")
        at = start + int(size)
        events.append(_event(int(seq), int(after), data[start:at]))
    return events


def _event(seq: int, after: int, stored: bytes) -> Event:
    name, _, data = stored.partition(b"\n")
    return Event(seq, after, name.decode(), data)


def logged(redis: Redis, id: UUID, after: int) -> Iterator[Event]:
    """The events the log holds after number `after`; raises RedisError."""
    key = log_key(id)
    while True:
        entries: Any = redis.xrange(key, min=f"0-{after + 1}", count=PAGE)
        for entry_id, fields in entries:
            after = int(entry_id.partition(b"-")[2])
            yield _event(after, int(fields[b"a"]), fields[b"e"])
        if len(entries) < PAGE:
            return


def position(redis: Redis, id: UUID) -> int:
    """The number of the newest event, 0 when there is none; raises RedisError."""
    return int(redis.hget(meta_key(id), "seq") or 0)  # type: ignore[arg-type]


class Reader:
    """One follower's queue, filled by the hub. `stale` means: the log knows more than the queue."""

    def __init__(self, channel: bytes, *, unseen: bool) -> None:
        self.channel = channel
        self.unseen = unseen  # nothing can have been published before the first confirmation
        self.confirmed = False
        self.stale = not unseen
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

    def take(self, timeout_seconds: float) -> tuple[list[Event], bool]:
        """What has arrived, waiting for something if there is nothing; and whether to read the log."""
        deadline = time.monotonic() + timeout_seconds
        while not self._events and not self.stale and (left := deadline - time.monotonic()) > 0:
            self._ready.wait(left)
            self._ready.clear()
        with self._lock:
            self._ready.clear()
            events, self._events, self._bytes = list(self._events), deque(), 0
            stale, self.stale = self.stale, False
        return events, stale

    def wait_confirmed(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not self.confirmed and time.monotonic() < deadline:
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

    @contextmanager
    def reader(self, id: UUID, *, unseen: bool = False) -> Iterator[Reader]:
        """A reader subscribed to the log's channel; it need not be confirmed yet.

        `unseen` says that nothing can be published before the subscription is confirmed (the row is
        not there yet), so that the log need not be read first.
        """
        reader = Reader(channel(id), unseen=unseen)
        self._add(reader)
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
        _hub = Hub(bus.client())
    return _hub


def follow(
    reader: Reader,
    id: UUID,
    *,
    after: int | None,
    ended: Callable[[], Sequence[Event] | None],
    quiet_seconds: Callable[[], float],
) -> Iterator[list[Event]]:
    """A log's events in order from number `after`, in batches, to its last; [] on each quiet spell.

    `after` None means from now on. `ended()` answers from the row, for a log that was lost: the last
    events to send, or None while the thing lives. `quiet_seconds()` is how long to wait for something new.

    The log is the truth. A message that is next in line is relayed as it is; on anything else (the
    subscription's confirmation, a gap, a quiet spell) what is missing is read from the log.
    """
    redis = bus.client()
    is_new = reader.unseen
    reader.wait_confirmed(quiet_seconds())
    last = after
    while last is None:
        last = _newest(redis, id)
        if last is None:
            reader.take(quiet_seconds())
            yield []
    stale = False
    ended_with: int | None = None  # the row had ended when this was the log's last event
    check_at = time.monotonic() + (SELF_CHECK_SECONDS if is_new else 0)
    while True:
        if stale:
            for page in _catch_up(redis, id, last, from_start=after == 0):
                if page[-1].seq:
                    last = page[-1].seq
                yield page
                if page[-1].is_last:
                    return
        events, stale = reader.take(min(quiet_seconds(), max(check_at - time.monotonic(), 0)))
        if not events and not stale:
            yield []  # a heartbeat, and the caller's chance to notice a closed socket
            if time.monotonic() < check_at:
                continue
            final = _end_without_log(redis, id, last, ended)
            if final and ended_with == last:
                yield list(final)
                return
            ended_with = last if final else None
            check_at = time.monotonic() + (SETTLE_SECONDS if final else SELF_CHECK_SECONDS)
            stale = True
            continue
        fresh: list[Event] = []
        for event in events:
            if event.seq <= last:
                continue
            if event.seq != last + 1 and (event.after != last or last == 0):
                stale = True
                break
            fresh.append(event)
            last = event.seq
        if fresh:
            yield fresh
            if fresh[-1].is_last:
                return


def _newest(redis: Redis, id: UUID) -> int | None:
    """The newest event's number, None when Redis does not answer."""
    try:
        return position(redis, id)
    except RedisError:
        return None


def _catch_up(redis: Redis, id: UUID, last: int, *, from_start: bool) -> Iterator[list[Event]]:
    """Pages of what the log holds after `last`, with EXPIRED where something is missing."""
    page: list[Event] = []
    try:
        for event in logged(redis, id, last):
            lost = event.seq != last + 1 and (event.after != last or (from_start and last == 0))
            if lost:
                page.append(EXPIRED)
            page.append(event)
            last = event.seq
            if len(page) >= PAGE:
                yield page
                page = []
    except RedisError as error:
        log.warning("cannot read the event log of %s: %s", id, error)
    if page:
        yield page


def _end_without_log(
    redis: Redis, id: UUID, last: int, ended: Callable[[], Sequence[Event] | None]
) -> Sequence[Event] | None:
    """The last events of what has ended by its row and added nothing to its log; None otherwise.

    Asked twice before it is believed: the row ends first, its log a moment later, and a writer that has
    just got Redis back may still hold the last events.
    """
    newest = _newest(redis, id)
    if newest is None or newest > last:
        return None
    return ended()
