"""A run's or a build's event log: numbered and append-only; `shared/eventlog/follow.py` follows it live.

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
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple
from uuid import UUID

from redis import Redis
from redis.exceptions import NoScriptError, RedisError

from shared.infra import packed
from shared.infra import redis as servers
from shared.infra.packed import OwnConnection, command, pack
from shared.infra.redis import PREFIX

log = logging.getLogger(__name__)

RESERVED = 500  # numbers an owner reserves in the row at a time
KEPT_EVENTS = 20_000  # of one log, about; twice as many of one that has events of the protocol, too
RUNNING_EXPIRY_SECONDS = 24 * 3600
PAGE = 500

END = "end"  # the name of a log's last event
MARK = "~"  # what the names of the protocol's events begin with: a reader sees either these or all others
WAKE_UP = b"0 0 8\nwake-up\n"  # a message that says no more than: look


@dataclass(frozen=True, slots=True)
class Event:
    """One event: `data` is one line of JSON; `after` the number of the event before it in the log.

    All readers of a process are given the same one as it is published: what one makes of it to send, the others
    find in `made`.
    """

    seq: int
    after: int
    name: str
    data: bytes
    made: dict[Hashable, Any] | None = field(
        default=None, compare=False, repr=False
    )  # most are sent as they are

    @property
    def is_last(self) -> bool:
        return self.name == END

    def once(self, kind: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` makes of this event alone, the same each time it is asked for."""
        if self.made is None:
            object.__setattr__(self, "made", {})
        made: dict[Hashable, Any] = self.made  # type: ignore[assignment]
        if kind not in made:
            made[kind] = make()
        return made[kind]


EXPIRED = Event(0, 0, "expired", b"")  # yielded where history is missing


def log_key(id: UUID) -> str:
    return f"{PREFIX}{{{id}}}:log"


def meta_key(id: UUID) -> str:
    return f"{PREFIX}{{{id}}}:meta"


def channel(id: UUID) -> bytes:
    return f"{PREFIX}{{{id}}}:ch".encode()


# KEYS log, meta. ARGV channel, attempt, owner, floor ('' = already open), first seq, final, expiry, kept,
# then one payload an event (name, line feed, JSON). Answers OK, LOST, FENCED, DONE or GAP.
# An attempt that opens its own log again beyond what the log holds leaves a hole: the next entry must not
# name the last one held as the one before it, or readers would not learn that history is missing.
# What somebody watches by the protocol is in its log twice, in the words of either kind of reader.
# To put off the expiry is a quarter of an append's work: every hundredth event does, and the ends of a log.
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
    marked = marked or string.byte(ARGV[i]) == MARK
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
""".replace("MARK", str(ord(MARK)))

OK, LOST, FENCED, DONE, GAP = "OK", "LOST", "FENCED", "DONE", "GAP"


class WakeChannel(NamedTuple):
    """A channel of wake-ups, and the id by which its server is found."""

    id: UUID
    name: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Events to append in one call. `floor` opens the attempt; `final` says the last one ends the log.

    `wake_channel`: a channel whose readers are woken when an attempt is opened.
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
        """The channel whose readers are to be woken."""
        return None if self.floor is None else self.wake_channel


def payload(name: str, data: bytes) -> bytes:
    """An event as it is stored."""
    return name.encode() + b"\n" + data


SCRIPT_SHA = hashlib.sha1(APPEND.encode(), usedforsecurity=False).hexdigest()
PACKED_HEADS = 2_048  # of logs that are written


def append(
    redis: Redis, batches: Sequence[Batch], *, retention_seconds: int, connection: OwnConnection | None = None
) -> list[str]:
    """Append batches of any number of logs in one round-trip; one answer each. Raises RedisError.

    Repeating a call is harmless: events already in the log are skipped. `connection` is the caller's own.
    """
    commands = [_command(batch, retention_seconds) for batch in batches]
    for batch in batches:
        if (woken := batch.wakes) is not None and not is_elsewhere(woken, redis):
            commands.append(command(3, pack(b"PUBLISH", woken.name, WAKE_UP)))
    send = partial(packed.send, redis) if connection is None else connection.send
    try:
        answers = send(commands)
    except NoScriptError:  # a server that has just started does not know it yet
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
    """What all appends of an attempt begin with."""
    script, keys = SCRIPT_SHA.encode(), (log_key(id).encode(), meta_key(id).encode())
    return pack(b"EVALSHA", script, b"2", *keys, channel(id), b"%d" % attempt, owner.encode())


def is_elsewhere(channel: WakeChannel, redis: Redis) -> bool:
    """Whether the channel is another server's."""
    return servers.has_several() and servers.events(channel.id) is not redis


def wake(channel: WakeChannel) -> None:
    """Wake the readers of a channel; they look for themselves when that fails."""
    try:
        servers.events(channel.id).publish(channel.name, WAKE_UP)
    except RedisError as error:
        log.warning("readers of a channel look a little later: %s", error)


def append_all(batches: Sequence[Batch], *, retention_seconds: int) -> None:
    """Append batches, each at its server. Raises RedisError when one was away, after all others have theirs."""
    by_server: dict[Redis, list[Batch]] = {}
    for batch in batches:
        by_server.setdefault(servers.events(batch.id), []).append(batch)
    failure: RedisError | None = None
    for redis, own in by_server.items():
        try:
            append(redis, own, retention_seconds=retention_seconds)
        except RedisError as error:
            failure = error
    if failure is not None:
        raise failure


def close(
    id: UUID, *, attempt: int, owner: str, floor: int, payloads: Sequence[bytes], retention_seconds: int
) -> None:
    """End the log of something nobody executes any more; readers learn of it at once.

    A failure is logged only: readers also find out from the row (see `following.follow`).
    """
    batch = Batch(id, attempt, owner, floor + 1, payloads, floor=floor, final=True)
    try:
        append(servers.events(id), [batch], retention_seconds=retention_seconds)
    except RedisError as error:
        log.warning("could not end the event log of %s: %s", id, error)


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


# KEYS log. ARGV first id, how many, how a name begins. Answers the last id looked at, and the names that begin so.
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
    """The names of the log's events that begin so, without their data, which stays there; raises RedisError."""
    after = 0
    while True:
        answer: Any = redis.eval(NAMES, 1, log_key(id), f"0-{after + 1}", PAGE, beginning)
        last, found = answer
        yield from (name.decode() for name in found)
        if not last:
            return
        after = int(last.partition(b"-")[2])


def newest(redis: Redis, id: UUID) -> Event | None:
    """The newest event the log holds; raises RedisError."""
    entries: Any = redis.xrevrange(log_key(id), count=1)
    for entry_id, fields in entries:
        return _event(int(entry_id.partition(b"-")[2]), int(fields[b"a"]), fields[b"e"])
    return None


def position(redis: Redis, id: UUID) -> int:
    """The number of the newest event, 0 when there is none; raises RedisError."""
    return int(redis.hget(meta_key(id), "seq") or 0)  # type: ignore[arg-type]
