"""The event log of a run or a build: numbered and append-only. `shared/eventlog/follow.py` follows it live.

The owner numbers events 1, 2, 3 … across attempts. Numbers rise, and may jump at the start of an attempt. One script
call appends a batch to a Redis stream and publishes it on a channel. The script checks the writer and the newest
number, so a call whose response was lost can be repeated. Pub/sub may lose a message; a reader that misses a number
reads the log.

Numbers are reserved in advance: an attempt starts at a number that no client can have seen (`floor`, a block reserved
in the row before use), even if Redis lost everything and the previous owner is dead. A reader that remembers a higher
number would otherwise drop the new attempt's events as repeats.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple
from uuid import UUID

from redis import Redis
from redis.exceptions import NoScriptError, RedisError

from shared.infra import redis as servers
from shared.infra import redis_connections
from shared.infra.redis import PREFIX
from shared.infra.redis_connections import SenderConnection, command, pack

log = logging.getLogger(__name__)

RESERVED = 500  # numbers that an owner reserves in the row at a time
KEPT_EVENTS = 20_000  # approximate length of a log; twice as long if it also has events of the protocol
RUNNING_EXPIRY_SECONDS = 24 * 3600
PAGE = 500

END = "end"  # the name of a log's last event
MARK = "~"  # prefix of the names of the protocol's events: a reader gets either these or all others
WAKE_UP = b"0 0 8\nwake-up\n"  # a message without data: readers look at the rows


@dataclass(frozen=True, slots=True)
class Event:
    """An event. `data` is one line of JSON, `after` the number of the preceding event in the log.

    All readers of a process share the object of a published event. `derived` caches values derived from it, such as its
    serialized forms.
    """

    seq: int
    after: int
    name: str
    data: bytes
    # None until the first derived value: most events are sent unchanged
    derived: dict[Hashable, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def is_last(self) -> bool:
        return self.name == END

    def once(self, kind: Hashable, make: Callable[[], Any]) -> Any:
        """Return the derived value of this kind, which `make` creates on the first call."""
        if self.derived is None:
            object.__setattr__(self, "derived", {})
        derived: dict[Hashable, Any] = self.derived  # type: ignore[assignment]
        if kind not in derived:
            derived[kind] = make()
        return derived[kind]


EXPIRED = Event(0, 0, "expired", b"")  # yielded in place of missing events


def log_key(id: UUID) -> str:
    return f"{PREFIX}{{{id}}}:log"


def meta_key(id: UUID) -> str:
    return f"{PREFIX}{{{id}}}:meta"


def channel(id: UUID) -> bytes:
    return f"{PREFIX}{{{id}}}:ch".encode()


# KEYS log, meta. ARGV channel, attempt, owner, floor ('' = already open), first seq, final, expiry, kept,
# then one payload for each event (name, line feed, JSON). Returns OK, LOST, FENCED, DONE or GAP.
# If an attempt reopens its own log with a floor above the newest event, events are missing in between. The next entry
# then names the floor as its predecessor: with the newest stored event, readers would not notice the gap.
# The log of a watched run has two versions of each event, one for each kind of reader, so it keeps twice as many.
# Extending the expiry takes a quarter of an append's time. Only every hundredth event does it, and the first append of
# an attempt and the last of a log. 126 is the byte of MARK.
APPEND = """
local meta = redis.call('HMGET', KEYS[2], 'attempt', 'owner', 'seq', 'tail', 'end', 'marked')
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
local out, marked, kept = {}, meta[6], ARGV[8]
if marked then kept = 2 * kept end
for i = 9, #ARGV do
  local n = first + i - 9
  if n > seq then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', kept, '0-' .. n, 'a', tail, 'e', ARGV[i])
    marked = marked or string.byte(ARGV[i]) == 126
    out[#out + 1] = n .. ' ' .. tail .. ' ' .. #ARGV[i] .. '\\n' .. ARGV[i]
    tail = n
  end
end
if #out > 0 then
  redis.call('HSET', KEYS[2], 'seq', tail, 'tail', tail)
  if marked and not meta[6] then redis.call('HSET', KEYS[2], 'marked', 1) end
  if ARGV[6] == '1' then redis.call('HSET', KEYS[2], 'end', tail) end
  if ARGV[4] ~= '' or ARGV[6] == '1' or math.floor(tail / 100) >= math.ceil(first / 100) then
    redis.call('EXPIRE', KEYS[1], ARGV[7])
    redis.call('EXPIRE', KEYS[2], ARGV[7])
  end
  redis.call('PUBLISH', ARGV[1], table.concat(out))
end
return 'OK'
"""

OK, LOST, FENCED, DONE, GAP = "OK", "LOST", "FENCED", "DONE", "GAP"


class WakeChannel(NamedTuple):
    """A channel of wake-ups, and the id that selects its Redis server."""

    id: UUID
    name: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Events to append in one call. `floor` opens the attempt. `final`: the last event ends the log.

    `wake_channel`: a channel whose readers are woken when the batch opens an attempt.
    """

    id: UUID
    attempt: int
    owner: str
    first_seq: int
    payloads: Sequence[bytes]
    floor: int | None = None
    final: bool = False
    wake_channel: WakeChannel | None = None

    @property
    def wakes(self) -> WakeChannel | None:
        """The channel whose readers this batch wakes."""
        return None if self.floor is None else self.wake_channel


def payload(name: str, data: bytes) -> bytes:
    """Return an event in the format of the log."""
    return name.encode() + b"\n" + data


SCRIPT_SHA = hashlib.sha1(APPEND.encode(), usedforsecurity=False).hexdigest()
PACKED_HEADS = 2_048  # cached command heads of logs that are being written


def append(
    redis: Redis,
    batches: Sequence[Batch],
    *,
    retention_seconds: int,
    connection: SenderConnection | None = None,
) -> list[str]:
    """Append batches of any number of logs in one round trip. Returns an answer for each batch. Raises RedisError.

    Repeating a call is harmless: events already in the log are skipped. `connection` is a connection of the caller, to
    use instead of the pool.
    """
    commands = [_command(batch, retention_seconds) for batch in batches]
    for batch in batches:
        if (woken := batch.wakes) is not None and not is_elsewhere(woken, redis):
            commands.append(command(3, pack(b"PUBLISH", woken.name, WAKE_UP)))
    send = partial(redis_connections.send, redis) if connection is None else connection.send
    try:
        answers = send(commands)
    except NoScriptError:  # the server has restarted and does not have the script yet
        redis.script_load(APPEND)
        answers = send(commands)
    return [answer.decode() for answer in answers[: len(batches)]]


def _command(batch: Batch, retention_seconds: int) -> bytes:
    floor = b"" if batch.floor is None else b"%d" % batch.floor
    expiry = retention_seconds if batch.final else RUNNING_EXPIRY_SECONDS
    return command(
        13 + len(batch.payloads),
        _head(batch.id, batch.attempt, batch.owner),
        pack(floor, b"%d" % batch.first_seq, b"%d" % batch.final, b"%d" % expiry, b"%d" % KEPT_EVENTS),
        pack(*batch.payloads),
    )


@lru_cache(PACKED_HEADS)
def _head(id: UUID, attempt: int, owner: str) -> bytes:
    """Return the start of the command, which is the same for all appends of an attempt."""
    script, keys = SCRIPT_SHA.encode(), (log_key(id).encode(), meta_key(id).encode())
    return pack(b"EVALSHA", script, b"2", *keys, channel(id), b"%d" % attempt, owner.encode())


def is_elsewhere(channel: WakeChannel, redis: Redis) -> bool:
    """Return whether the channel is on another Redis server."""
    return servers.has_several() and servers.events(channel.id) is not redis


def wake(channel: WakeChannel) -> None:
    """Wake the readers of a channel. If this fails, they notice changes by polling."""
    try:
        servers.events(channel.id).publish(channel.name, WAKE_UP)
    except RedisError as error:
        log.warning("could not wake the readers of a channel, they look later: %s", error)


def append_all(batches: Sequence[Batch], *, retention_seconds: int) -> None:
    """Append each batch on its Redis server. If a server is away, raises RedisError after serving all others."""
    by_server: dict[Redis, list[Batch]] = {}
    for batch in batches:
        by_server.setdefault(servers.events(batch.id), []).append(batch)
    failure: RedisError | None = None
    for redis, of_server in by_server.items():
        try:
            append(redis, of_server, retention_seconds=retention_seconds)
        except RedisError as error:
            failure = error
    if failure is not None:
        raise failure


def close(
    id: UUID, *, attempt: int, owner: str, floor: int, payloads: Sequence[bytes], retention_seconds: int
) -> None:
    """End the log of a run or build that has no owner any more. Readers are notified at once.

    A failure is only logged: readers also find the end in the row (see `follow.follow`).
    """
    batch = Batch(id, attempt, owner, floor + 1, payloads, floor=floor, final=True)
    try:
        append(servers.events(id), [batch], retention_seconds=retention_seconds)
    except RedisError as error:
        log.warning("could not end the event log of %s: %s", id, error)


def parse_message(data: bytes) -> list[Event]:
    """Return the events of a published message."""
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
    """Yield the log's events after number `after`. Raises RedisError."""
    key = log_key(id)
    while True:
        entries: Any = redis.xrange(key, min=f"0-{after + 1}", count=PAGE)
        for entry_id, fields in entries:
            after = int(entry_id.partition(b"-")[2])
            yield _event(after, int(fields[b"a"]), fields[b"e"])
        if len(entries) < PAGE:
            return


# KEYS log. ARGV first id, count, prefix. Returns the last id read, and the names with this prefix.
NAMES = """
local found, names = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2]), {}
for _, entry in ipairs(found) do
  local stored = entry[2][4]
  if string.sub(stored, 1, #ARGV[3]) == ARGV[3] then
    names[#names + 1] = string.sub(stored, 1, string.find(stored, '\\n', 1, true) - 1)
  end
end
return {#found > 0 and found[#found][1] or '', names}
"""


def names(redis: Redis, id: UUID, beginning: str) -> Iterator[str]:
    """Yield the names of the log's events that start with `beginning`, without transferring data. Raises RedisError."""
    after = 0
    while True:
        answer: Any = redis.eval(NAMES, 1, log_key(id), f"0-{after + 1}", PAGE, beginning)
        last, page = answer
        yield from (name.decode() for name in page)
        if not last:
            return
        after = int(last.partition(b"-")[2])


def newest(redis: Redis, id: UUID) -> Event | None:
    """Return the log's newest event, or None if the log is empty. Raises RedisError."""
    entries: Any = redis.xrevrange(log_key(id), count=1)
    for entry_id, fields in entries:
        return _event(int(entry_id.partition(b"-")[2]), int(fields[b"a"]), fields[b"e"])
    return None


def position(redis: Redis, id: UUID) -> int:
    """Return the number of the newest event, or 0 if the log is empty. Raises RedisError."""
    return int(redis.hget(meta_key(id), "seq") or 0)  # type: ignore[arg-type]
