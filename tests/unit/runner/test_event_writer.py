"""Writing event logs: sequence numbers, reserved blocks, resending, back-pressure, and many logs in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import gevent
import pytest
from redis import Redis
from redis.exceptions import ConnectionError, RedisError

from shared.eventlog import events
from shared.eventlog.events import DONE, FENCED, GAP, LOST, OK, RESERVED, Batch
from shared.infra.redis_connections import SenderConnection
from tests.support.waiting import until
from workers.runner import event_writer as workers_events
from workers.runner.event_writer import RunLog, Writer

END = events.payload(events.END, b"{}")


class NoWriter:
    """Records the logs that have events to send, and sends nothing."""

    def __init__(self) -> None:
        self.noticed: list[RunLog] = []

    def notice(self, run_log: RunLog) -> None:
        self.noticed.append(run_log)


class Owner:
    """The owner of a run's log: reserves numbers and is notified of fencing."""

    def __init__(self, writer: Any, *, floor: int = 0, attempt: int = 1) -> None:
        self.may_reserve = True
        self.reserved: list[int] = []
        self.fenced = 0
        self.log = RunLog(
            writer,
            uuid4(),
            self,
            attempt=attempt,
            worker="a",
            floor=floor,
        )

    def reserve(self, upto: int) -> bool:
        if self.may_reserve:
            self.reserved.append(upto)
        return self.may_reserve

    def fence(self, reason: str) -> None:
        self.fenced += 1

    def add(self, count: int, size: int = 0) -> None:
        for n in range(count):
            self.log.add(events.payload("values", b"%d" % n + b" " * size))

    def send(self, answer: str = OK) -> Batch:
        batch = self.log.next_batch()
        assert batch is not None
        self.log.settle(batch, answer)
        return batch


@pytest.fixture
def owner() -> Owner:
    return Owner(NoWriter())


def numbers(batch: Batch) -> tuple[int, int]:
    return batch.first_seq, batch.first_seq + len(batch.payloads) - 1


def test_the_first_batch_opens_the_attempt_and_the_rest_go_on() -> None:
    owner = Owner(NoWriter(), floor=500, attempt=2)
    owner.add(2)
    first = owner.send()
    owner.add(1)
    second = owner.send()

    assert (first.floor, first.attempt, numbers(first)) == (500, 2, (501, 502))
    assert (second.floor, numbers(second)) == (None, (503, 503))
    assert owner.log.next_batch() is None


def test_batches_are_bounded_and_a_larger_event_goes_alone(owner: Owner) -> None:
    owner.add(600)
    assert [len(owner.send().payloads) for _ in range(3)] == [256, 256, 88]

    owner.add(5, size=100 * 1024)
    assert [len(owner.send().payloads) for _ in range(3)] == [2, 2, 1]

    owner.add(2, size=workers_events.BATCH_BYTES)

    assert len(owner.send().payloads) == 1


def test_numbers_are_reserved_before_they_are_used(owner: Owner) -> None:
    owner.add(RESERVED)
    while owner.log.has_waiting:
        owner.send()
    assert owner.reserved == []

    owner.add(1)
    batch = owner.send()
    assert owner.reserved
    assert owner.reserved[0] >= batch.first_seq


def test_without_a_reservation_nothing_is_sent(owner: Owner) -> None:
    owner.add(RESERVED)
    while owner.log.has_waiting:
        owner.send()
    owner.may_reserve = False
    owner.add(1)
    assert owner.log.next_batch() is None

    owner.may_reserve = True
    assert numbers(owner.send()) == (RESERVED + 1, RESERVED + 1)


def test_after_the_end_numbers_need_no_reservation(owner: Owner) -> None:
    """The run's row has ended or is deleted, so nothing can be reserved, and no other attempt will write."""
    owner.may_reserve = False
    owner.add(RESERVED + 100)
    owner.log.end(END)
    sent = 0
    while owner.log.has_waiting:
        sent += len(owner.send().payloads)

    assert sent == RESERVED + 101
    assert owner.log.flushed.is_set()


@pytest.mark.parametrize("answer", [LOST, GAP])
def test_what_redis_forgot_is_sent_again(owner: Owner, answer: str) -> None:
    owner.add(3)
    owner.send()
    owner.add(2)
    owner.send(answer)
    again = owner.send()

    assert (again.floor, numbers(again)) == (0, (1, 5))


@pytest.mark.parametrize("answer", [OK, LOST, GAP])
def test_the_number_that_comes_next_is_known_whatever_is_sent_again(owner: Owner, answer: str) -> None:
    owner.add(3)
    owner.send()
    owner.add(2)
    owner.send(answer)
    assert owner.log.next_seq == 6

    owner.log.end(END)
    assert numbers(owner.send())[1] == 6


def test_only_the_newest_events_are_held(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_events, "RESEND_EVENTS", 10)
    owner.add(30)
    owner.send()
    owner.add(1)
    owner.send(LOST)
    again = owner.send()

    assert (again.floor, numbers(again)) == (20, (21, 31))


def test_the_end_is_final_and_only_the_last_batch(owner: Owner) -> None:
    owner.add(1)
    owner.log.end(END)
    owner.log.add(b"late\n{}")
    batch = owner.send()

    assert batch.final
    assert list(batch.payloads)[-1] == END
    assert owner.log.flushed.is_set()
    assert not owner.log.has_waiting

    longer = Owner(NoWriter())
    longer.add(300)
    longer.log.end(END)

    assert [longer.send().final for _ in range(2)] == [False, True]

    known = Owner(NoWriter())
    known.add(1)
    known.log.end(END)
    known.send(DONE)

    assert known.log.flushed.is_set()
    assert not known.fenced


def test_a_fenced_log_stops_and_fences_its_run(owner: Owner) -> None:
    owner.add(1)
    owner.send(FENCED)
    owner.add(1)

    assert owner.fenced == 1
    assert not owner.log.has_waiting
    assert owner.log.drained.is_set()

    abandoned = Owner(NoWriter())
    abandoned.add(2)
    batch = abandoned.log.next_batch()
    assert batch is not None
    abandoned.log.abandon()
    for answer in (OK, LOST, FENCED):
        abandoned.log.settle(batch, answer)

    assert not abandoned.fenced
    assert abandoned.log.next_batch() is None


def test_a_full_log_slows_its_source_down(owner: Owner) -> None:
    owner.add(workers_events.FULL_EVENTS)
    assert owner.log.drained.is_set()
    owner.add(1)
    assert not owner.log.drained.is_set()
    while not owner.log.drained.is_set():
        owner.send()

    assert owner.log.has_waiting

    large = Owner(NoWriter())
    large.add(9, size=1024 * 1024)

    assert not large.log.drained.is_set()


def test_a_hand_over_sends_what_waits_and_then_nothing(redis: Redis) -> None:
    writer = Writer(redis, retention_seconds=900)
    owner = Owner(writer)
    owner.add(1000)
    owner.log.hand_over(10)
    owner.add(1)

    assert len(list(events.logged(redis, owner.log.id, 0))) == 1000
    assert not owner.log.has_waiting


def test_a_hand_over_does_not_wait_for_ever(owner: Owner) -> None:
    owner.add(1)
    owner.log.hand_over(0.01)

    assert not owner.log.has_waiting


@pytest.fixture
def writer(redis: Redis) -> Writer:
    return Writer(redis, retention_seconds=900)


def seen(redis: Redis, owner: Owner) -> list[int]:
    return [event.seq for event in events.logged(redis, owner.log.id, 0)]


def test_every_log_arrives_whole(redis: Redis, writer: Writer) -> None:
    owners = [Owner(writer) for _ in range(20)]
    for n, owner in enumerate(owners):
        owner.add(n * 40)
        owner.log.end(END)

    until(lambda: all(owner.log.flushed.is_set() for owner in owners))
    assert [seen(redis, owner) for owner in owners] == [list(range(1, n * 40 + 2)) for n in range(20)]


def test_logs_are_sent_in_round_robin_a_batch_at_a_time(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    append = events.append

    def recorded(redis: Redis, batches: Sequence[Batch], **options: Any) -> list[str]:
        calls.append([names[batch.id] for batch in batches])
        return append(redis, batches, **options)

    monkeypatch.setattr(workers_events, "LOGS_A_CALL", 2)
    monkeypatch.setattr(events, "append", recorded)
    writer = Writer(redis, retention_seconds=900)
    owners = {name: Owner(writer) for name in ("long", "second", "third", "fourth")}
    names = {owner.log.id: name for name, owner in owners.items()}
    for name, owner in owners.items():
        owner.add(600 if name == "long" else 1)
        owner.log.end(END)

    until(lambda: all(owner.log.flushed.is_set() for owner in owners.values()))
    assert calls == [["long", "second"], ["third", "fourth"], ["long"], ["long"]]
    assert seen(redis, owners["long"]) == list(range(1, 602))


def test_a_log_that_may_not_reserve_holds_up_nobody(redis: Redis, writer: Writer) -> None:
    stuck, free = Owner(writer), Owner(writer)
    stuck.may_reserve = False
    stuck.add(RESERVED + 10)
    free.add(RESERVED + 10)
    free.log.end(END)
    until(free.log.flushed.is_set)

    stuck.may_reserve = True
    stuck.log.end(END)
    until(stuck.log.flushed.is_set)
    assert seen(redis, stuck) == list(range(1, RESERVED + 12))


def test_a_zombie_is_fenced_and_the_others_go_on(redis: Redis, writer: Writer) -> None:
    zombie, other = Owner(writer), Owner(writer)
    heir = Batch(zombie.log.id, 2, "b", 501, [b"values\n1"], floor=500)
    events.append(redis, [heir], retention_seconds=900)
    zombie.add(3)
    other.add(3)
    other.log.end(END)

    until(lambda: zombie.fenced and other.log.flushed.is_set())
    assert seen(redis, zombie) == [501]


class Unsteady(SenderConnection):
    """A connection that sometimes loses the answer after Redis has executed the commands."""

    calls = 0

    def send(self, commands: Sequence[bytes]) -> list[Any]:
        answers = super().send(commands)
        self.calls += 1
        if self.calls % 3:
            raise ConnectionError("the answer was lost")
        return answers


def writer_over(connection: type[SenderConnection], redis: Redis) -> tuple[Writer, Any]:
    """Return a writer, and the connection of this class that it uses."""
    writer = Writer(redis, retention_seconds=900)
    writer._connection = connection(redis)
    return writer, writer._connection


def test_a_lost_answer_doubles_nothing(redis: Redis) -> None:
    writer, unsteady = writer_over(Unsteady, redis)
    owner = Owner(writer)
    owner.add(600)
    owner.log.end(END)

    until(owner.log.flushed.is_set)
    assert seen(redis, owner) == list(range(1, 602))
    assert unsteady.calls >= 9


class Broken(SenderConnection):
    """A connection to a Redis that is unreachable until `away` is set to False."""

    away = True

    def send(self, commands: Sequence[bytes]) -> list[Any]:
        if self.away:
            raise RedisError("away")
        return super().send(commands)


def test_events_wait_for_a_redis_that_is_away(redis: Redis) -> None:
    writer, broken = writer_over(Broken, redis)
    owner = Owner(writer)
    owner.add(10)
    owner.log.end(END)
    gevent.sleep(0.05)
    assert not owner.log.flushed.is_set()

    broken.away = False
    until(owner.log.flushed.is_set)
    assert seen(redis, owner) == list(range(1, 12))


def test_a_log_abandoned_while_it_is_sent_does_not_stop_the_others(redis: Redis) -> None:
    class Abandoning(SenderConnection):
        def send(self, commands: Sequence[bytes]) -> list[Any]:
            first.log.abandon()
            return super().send(commands)

    writer, _ = writer_over(Abandoning, redis)
    first, second = Owner(writer), Owner(writer)
    first.add(3)
    second.add(3)
    second.log.end(END)

    until(second.log.flushed.is_set)
    assert seen(redis, second) == [1, 2, 3, 4]
