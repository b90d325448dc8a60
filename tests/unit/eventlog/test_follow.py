"""Readers of event logs lose nothing, whatever faults Redis has."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import UUID, uuid4

import pytest
from redis import Redis

from shared.eventlog import events, follow
from shared.eventlog.events import DONE, END, EXPIRED, GAP, LOST, OK, Batch, Event
from shared.eventlog.follow import RowEnd
from shared.eventlog.hub import Hub, Reader
from shared.infra import redis as shared_redis
from tests.support.event_logs import RETENTION, Log
from tests.support.waiting import wait_until

FROM_THE_ROW = RowEnd([Event(0, 0, END, b"from the row")])


class Follower(threading.Thread):
    """A reader in its own thread."""

    def __init__(
        self,
        hub: Hub,
        id: UUID,
        *,
        after: int | None = 0,
        before_creation: bool = False,
        ended: follow.Ended = lambda _last: None,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(daemon=True)
        self.hub, self.id, self.after, self.before_creation, self.ended, self.pause = (
            hub,
            id,
            after,
            before_creation,
            ended,
            pause,
        )
        self.seen: list[Event] = []
        self.leaves = False
        self.ready = threading.Event()
        self.quiet = 0
        self.start()

    def run(self) -> None:
        with self.hub.reader(self.id, before_creation=self.before_creation) as reader:
            self.ready.set()
            for batch in self._follow(reader):
                self.seen += batch
                self.quiet += not batch
                self.pause()
                if self.leaves:
                    return

    def _follow(self, reader: Reader) -> Iterator[list[Event]]:
        return follow.follow(reader, self.id, after=self.after, ended=self.ended, quiet_seconds=lambda: 0.1)

    @property
    def numbers(self) -> list[int]:
        return [event.seq for event in self.seen if event is not EXPIRED]

    @property
    def is_done(self) -> bool:
        return not self.is_alive()

    def finish(self) -> list[int]:
        """Wait for the end of the log. Returns the numbers of the events read."""
        wait_until(lambda: self.is_done)
        return self.numbers


@pytest.fixture(scope="module")
def one_hub(redis_url: str) -> Hub:
    return Hub(shared_redis.make_client(redis_url))


@pytest.fixture
def hub(one_hub: Hub, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The process's hub, with shorter intervals at which readers check for missed events."""
    monkeypatch.setattr(follow, "SELF_CHECK_SECONDS", 0.5)
    monkeypatch.setattr(follow, "ROW_CHECK_SECONDS", 0.5)
    monkeypatch.setattr(follow, "SETTLE_SECONDS", 0.3)
    return one_hub


@pytest.fixture
def written(redis: Redis) -> Log:
    return Log(redis)


def subscribed(hub: Hub) -> bool:
    return all(reader.confirmed for reader in hub._all())


def test_a_reader_sees_what_was_before_and_what_comes(hub: Hub, written: Log) -> None:
    written.append(1, 3, floor=0)
    reader = Follower(hub, written.id)
    wait_until(lambda: len(reader.seen) == 3)
    written.append(4, 6, final=True)

    assert reader.finish() == [1, 2, 3, 4, 5, 6]
    assert [event.name for event in reader.seen][-1] == END


def test_a_reader_from_before_the_first_event_need_not_read_the_log(hub: Hub, written: Log) -> None:
    with hub.reader(uuid4()):
        wait_until(lambda: hub._connection is not None)
        reader = Follower(hub, written.id, before_creation=True)
        wait_until(lambda: subscribed(hub))
        written.append(1, 2, floor=0, final=True)
        wait_until(lambda: reader.is_done)

    assert reader.numbers == [1, 2]


def test_a_reader_goes_on_after_the_number_it_names_or_from_now_on(hub: Hub, written: Log) -> None:
    written.append(1, 5, floor=0, final=True)
    reader = Follower(hub, written.id, after=3)

    assert reader.finish() == [4, 5]

    another = Log(written.redis)
    another.append(1, 3, floor=0)
    reader = Follower(hub, another.id, after=None)
    wait_until(lambda: reader.quiet)
    another.append(4, 5, final=True)

    assert reader.finish() == [4, 5]


def test_two_readers_of_one_log_share_the_subscription(hub: Hub, written: Log) -> None:
    first = Follower(hub, written.id)
    first.ready.wait()
    wait_until(lambda: subscribed(hub))
    second = Follower(hub, written.id)
    second.ready.wait()
    written.append(1, 9, floor=0, final=True)

    wait_until(lambda: first.is_done and second.is_done)
    assert first.numbers == second.numbers == list(range(1, 10))
    assert hub._readers == {}


def test_a_message_that_was_lost_is_read_from_the_log(hub: Hub, written: Log) -> None:
    reader = Follower(hub, written.id)
    wait_until(lambda: reader.quiet)
    key = events.log_key(written.id)
    written.append(1, floor=0)
    written.redis.xadd(key, {"a": 1, "e": b"values\n{}"}, id="0-2")  # stored but never published
    written.redis.hset(events.meta_key(written.id), mapping={"seq": 2, "tail": 2})
    written.append(3, final=True)

    assert reader.finish() == [1, 2, 3]


def test_a_last_message_that_was_lost_is_found_by_a_quiet_reader(hub: Hub, written: Log) -> None:
    reader = Follower(hub, written.id)
    wait_until(lambda: reader.quiet)
    written.append(1, floor=0)
    written.redis.xadd(events.log_key(written.id), {"a": 1, "e": b"end\n{}"}, id="0-2")
    written.redis.hset(events.meta_key(written.id), mapping={"seq": 2, "tail": 2, "end": 2})

    assert reader.finish() == [1, 2]


def test_a_slow_reader_overflows_into_the_log(hub: Hub, written: Log) -> None:
    gate = threading.Event()
    reader = Follower(hub, written.id, pause=gate.wait)
    wait_until(lambda: reader.ready.is_set() and subscribed(hub))
    written.append(1, floor=0)
    wait_until(lambda: reader.seen or reader.quiet)
    for first in range(2, 2002, 200):
        written.append(first, first + 199)
    (waiting,) = hub._all()
    wait_until(lambda: waiting.stale)
    assert not waiting._events
    written.append(2002, final=True)
    gate.set()

    assert reader.finish() == list(range(1, 2003))


def test_large_events_overflow_by_their_size(hub: Hub) -> None:
    reader = Reader(b"channel", before_creation=True)
    big = Event(1, 0, "values", b"x")
    for _ in range(5):
        reader.push([big], 1 << 20)

    assert reader.stale
    assert reader.take(0) == ([], True)


def test_history_that_expired_is_reported(hub: Hub, written: Log) -> None:
    written.append(1, 10, floor=0)
    written.redis.xtrim(events.log_key(written.id), minid="0-6", approximate=False)
    from_start = Follower(hub, written.id)
    from_three = Follower(hub, written.id, after=3)
    from_five = Follower(hub, written.id, after=5)
    wait_until(lambda: all(10 in reader.numbers for reader in (from_start, from_three, from_five)))
    written.append(11, final=True)

    wait_until(lambda: from_start.is_done and from_three.is_done and from_five.is_done)
    assert from_start.seen[0] is EXPIRED
    assert from_three.seen[0] is EXPIRED
    assert EXPIRED not in from_five.seen
    assert all(reader.numbers == [6, 7, 8, 9, 10, 11] for reader in (from_start, from_three, from_five))


def test_a_join_from_the_start_of_a_second_attempts_log_is_reported_and_a_new_attempt_is_no_hole(
    hub: Hub, written: Log
) -> None:
    """The log of the first attempt is lost, together with the Redis that held it."""
    written.append(501, 502, attempt=2, floor=500, final=True)
    reader = Follower(hub, written.id)

    assert reader.finish() == [501, 502]
    assert reader.seen[0] is EXPIRED

    another = Log(written.redis)
    reader = Follower(hub, another.id)
    wait_until(lambda: reader.quiet)
    another.append(1, 3, floor=0)
    another.append(501, 502, attempt=2, floor=500, final=True)

    assert reader.finish() == [1, 2, 3, 501, 502]
    assert EXPIRED not in reader.seen


def test_the_end_comes_from_the_row_when_the_log_is_gone_at_once_if_it_ended_a_while_ago(
    hub: Hub, written: Log
) -> None:
    last = [Event(0, 0, "error", b"{}"), Event(0, 0, END, b"{}")]
    reader = Follower(hub, written.id, ended=lambda _last: RowEnd(last))

    wait_until(lambda: reader.is_done)
    assert reader.seen == last

    another = Log(written.redis)
    asked: list[int] = []

    def ended(last: int) -> RowEnd:
        asked.append(last)
        return FROM_THE_ROW._replace(is_settled=True)

    reader = Follower(hub, another.id, ended=ended)

    wait_until(lambda: reader.is_done)
    assert asked == [0]
    assert reader.seen[-1].data == b"from the row"


def test_a_row_that_ended_is_not_believed_before_its_log_has_had_time(hub: Hub, written: Log) -> None:
    asked: list[float] = []

    def ended(_last: int) -> RowEnd:
        asked.append(time.monotonic())
        if len(asked) == 1:  # the row has ended, the writer lags slightly
            written.append(1, 2, floor=0, final=True)
        return FROM_THE_ROW

    reader = Follower(hub, written.id, ended=ended)

    assert reader.finish() == [1, 2]
    assert reader.seen[-1].data != b"from the row"


def test_what_was_sent_while_the_row_was_read_is_not_missing(hub: Hub, written: Log) -> None:
    def ended(_last: int) -> RowEnd:
        written.append(1, 2, floor=0, final=True)
        return FROM_THE_ROW._replace(is_settled=True)

    reader = Follower(hub, written.id, ended=ended)

    assert reader.finish() == [1, 2]
    assert reader.seen[-1].data != b"from the row"


def test_a_writer_that_lives_may_be_late(hub: Hub, written: Log) -> None:
    """The writer was disconnected from Redis when it ended the row, and has not reconnected yet."""
    asked: list[int] = []

    def ended(last: int) -> RowEnd:
        asked.append(last)
        return FROM_THE_ROW._replace(is_held=True)

    written.append(1, 2, floor=0)
    reader = Follower(hub, written.id, ended=ended)
    wait_until(lambda: len(asked) == 5)
    written.append(3, 4, final=True)

    assert reader.finish() == [1, 2, 3, 4]


def test_a_writer_that_lives_is_not_waited_for_for_ever(
    hub: Hub, written: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "HELD_SECONDS", 1.0)
    written.append(1, 2, floor=0)
    reader = Follower(hub, written.id, ended=lambda _last: FROM_THE_ROW._replace(is_held=True))

    wait_until(lambda: reader.is_done)
    assert reader.seen[-1].data == b"from the row"


def test_a_reader_waits_while_redis_is_away(hub: Hub, written: Log) -> None:
    """The end of the row is not sufficient, because the log may contain events that the reader lacks."""
    shared_redis.use(shared_redis.make_client("redis://127.0.0.1:1/0", timeout_seconds=0.2))
    reader = Follower(hub, written.id, ended=lambda _last: FROM_THE_ROW)
    wait_until(lambda: reader.quiet > 20)
    assert reader.seen == []

    reader.leaves = True
    wait_until(lambda: reader.is_done)


def test_every_reader_gets_every_event_once_whatever_happens(hub: Hub, written: Log) -> None:
    """Connections are killed, Redis is flushed, and writers and readers restart at random."""
    dice = random.Random(4)
    readers = [Reconnecting(hub, written.id, random.Random(n)) for n in range(6)]
    writer = FaultyWriter(written, dice, readers, total=8_000)
    writer.run()

    wait_until(lambda: all(reader.is_done for reader in readers), timeout=30)
    for reader in readers:
        assert reader.data == writer.data
        assert reader.numbers == sorted(set(reader.numbers))


class FaultyWriter:
    """An owner that works like a runner: resend buffer, reserved number blocks, and a repeat after a lost answer."""

    def __init__(self, log: Log, dice: random.Random, readers: list[Reconnecting], *, total: int) -> None:
        self.log, self.dice, self.readers, self.total = log, dice, readers, total
        self.data: list[bytes] = []
        self.attempt, self.floor, self.sent = 1, 0, 0
        self.resend: list[bytes] = []
        self.opened = False

    def run(self) -> None:
        while len(self.data) < self.total:
            fault = self.dice.random()
            if fault < 0.02:
                self.log.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            elif fault < 0.03:
                self.lose_everything()
            elif fault < 0.04:
                self.next_attempt()
            self.send([b"%d" % (len(self.data) + n) for n in range(self.dice.randint(1, 40))])
            if self.dice.random() < 0.3:
                time.sleep(0.005)
        self.send([b"last"], final=True)

    def lose_everything(self) -> None:
        """Flush Redis. Events of earlier attempts are lost for good, so readers must have seen them first."""
        if self.attempt > 1:
            self.wait_for_readers()
        self.log.redis.flushall()

    def next_attempt(self) -> None:
        """Replace the owner, which has died. The next one starts in an unused block of numbers."""
        self.wait_for_readers()
        self.attempt += 1
        self.floor = self.sent = self.sent + 500
        self.resend, self.opened = [], False

    def wait_for_readers(self) -> None:
        wait_until(lambda: all(len(reader.data) == len(self.data) for reader in self.readers))

    def send(self, data: list[bytes], *, final: bool = False) -> None:
        self.data += data
        name = END if final else "values"
        fresh = [events.payload(name, item) for item in data]
        while not self.call(fresh, final):
            self.sent -= len(self.resend)
            fresh, self.resend, self.opened = self.resend + fresh, [], False
            self.floor = self.sent
        self.sent += len(fresh)
        self.resend += fresh

    def call(self, fresh: list[bytes], final: bool) -> bool:
        floor = None if self.opened else self.floor
        batch = Batch(
            self.log.id, self.attempt, str(self.attempt), self.sent + 1, fresh, floor=floor, final=final
        )
        for _ in range(2 if self.dice.random() < 0.1 else 1):  # the answer is lost sometimes
            answer = events.append(self.log.redis, [batch], retention_seconds=RETENTION)[0]
        assert answer in (OK, LOST, GAP, DONE)
        self.opened = answer in (OK, DONE)
        return self.opened


class Reconnecting:
    """A client that disconnects at random and reconnects with the last number it has seen."""

    def __init__(self, hub: Hub, id: UUID, dice: random.Random) -> None:
        self.hub, self.id, self.dice = hub, id, dice
        self.numbers: list[int] = []
        self.data: list[bytes] = []
        self.expired = 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    @property
    def is_done(self) -> bool:
        return not self.thread.is_alive()

    def run(self) -> None:
        while not self.follow_once():
            pass

    def follow_once(self) -> bool:
        after = self.numbers[-1] if self.numbers else 0
        with self.hub.reader(self.id) as reader:
            followed = follow.follow(
                reader, self.id, after=after, ended=lambda _last: None, quiet_seconds=lambda: 0.1
            )
            for batch in followed:
                for event in batch:
                    if event is EXPIRED:
                        self.expired += 1
                        continue
                    self.numbers.append(event.seq)
                    self.data.append(event.data)
                    if event.is_last:
                        return True
                if self.dice.random() < 0.02:
                    return False
        return False


def test_closing_a_log_wakes_its_readers(hub: Hub, written: Log) -> None:
    written.append(1, floor=0)
    reader = Follower(hub, written.id)
    wait_until(lambda: reader.seen)
    events.close(
        written.id,
        attempt=2,
        owner="upkeep",
        floor=500,
        payloads=[events.payload(END, b"{}")],
        retention_seconds=RETENTION,
    )

    assert reader.finish() == [1, 501]


def test_a_subscriber_that_redis_cuts_off_again_and_again_loses_nothing(hub: Hub, written: Log) -> None:
    """Redis disconnects a subscriber that reads too slowly for its output buffer."""
    limits = written.redis.config_get("client-output-buffer-limit")
    written.redis.config_set("client-output-buffer-limit", "pubsub 1024 1024 1")
    try:
        reader = Follower(hub, written.id)
        wait_until(lambda: reader.quiet)
        for first in range(1, 8_000, 1_000):
            written.append(first, first + 999, floor=0 if first == 1 else None)
        written.append(8_001, final=True)
        wait_until(lambda: reader.is_done, timeout=60)
    finally:
        written.redis.config_set("client-output-buffer-limit", limits["client-output-buffer-limit"])
    assert reader.numbers == list(range(1, 8_002))


class Mute:
    """A proxy to Redis. Once muted, its open connections stay open but pass on no data."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._muted: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def mute(self) -> None:
        """Mute the connections that are open now. Later ones work."""
        self._muted |= self._open

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._path)
            self._open |= {client, server}
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if source not in self._muted:
                    target.sendall(data)


def test_readers_that_come_first_at_once_share_one_connection(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other readers arrive while the subscriber's thread starts."""
    hub, started = Hub(redis), []

    def come() -> None:
        with hub.reader(uuid4()):
            pass

    def keep_subscribed(*_: object, **__: object) -> threading.Thread:
        started.append(1)
        another = threading.Thread(target=come, daemon=True)
        another.start()
        another.join(0.2)
        return another

    monkeypatch.setattr("shared.eventlog.hub.keep_subscribed", keep_subscribed)
    come()

    assert hub._thread is not None
    hub._thread.join()
    assert started == [1]


def test_a_connection_that_is_dead_without_saying_so_is_replaced(
    redis: Redis, written: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.infra.redis_connections.SILENCE_SECONDS", 0.6)
    monkeypatch.setattr(follow, "SELF_CHECK_SECONDS", 3600.0)
    kwargs = redis.connection_pool.connection_kwargs
    way = Mute(kwargs["path"])
    hub = Hub(
        shared_redis.make_client(
            f"redis://:{kwargs.get('password') or ''}@127.0.0.1:{way.port}/{kwargs['db']}"
        )
    )
    reader = Follower(hub, written.id)
    wait_until(lambda: reader.quiet and subscribed(hub))
    written.append(1, 2, floor=0)
    wait_until(lambda: len(reader.seen) == 2)

    way.mute()
    written.append(3, final=True)
    wait_until(lambda: reader.is_done, timeout=30)
    assert reader.numbers == [1, 2, 3]
