"""Event logs: every result of the append script."""

from __future__ import annotations

from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import RedisError

from shared.eventlog import events
from shared.eventlog.events import DONE, FENCED, GAP, LOST, OK, Batch, Event
from shared.infra import redis as shared_redis
from tests.support.event_logs import RETENTION, Log, lines


@pytest.fixture(params=["fakeredis", "valkey"])
def server(request: pytest.FixtureRequest) -> Redis:
    """Both servers, fakeredis and a real one, for which the script must return the same results."""
    return request.getfixturevalue("fake_redis" if request.param == "fakeredis" else "redis")


@pytest.fixture
def log(server: Redis) -> Log:
    return Log(server)


def test_events_are_appended_in_order_once_to_a_log_that_was_opened(log: Log) -> None:
    assert log.append(1, 3, floor=0) == OK
    assert log.append(4, 5) == OK

    assert log.numbers == [1, 2, 3, 4, 5]
    assert log.afters == [0, 1, 2, 3, 4]
    assert events.position(log.redis, log.id) == 5

    repeated = Log(log.redis)
    repeated.append(1, 3, floor=0)

    assert repeated.append(1, 3, floor=0) == OK
    assert repeated.append(2, 5) == OK
    assert repeated.numbers == [1, 2, 3, 4, 5]

    unopened = Log(log.redis)
    assert unopened.append(1) == LOST
    assert unopened.numbers == []


def test_an_older_attempt_another_owner_and_one_that_was_not_opened_are_fenced(log: Log) -> None:
    log.append(501, attempt=2, owner="b", floor=500)

    assert log.append(1, attempt=1, owner="a", floor=0) == FENCED
    assert log.append(2, attempt=1, owner="a") == FENCED
    assert log.numbers == [501]

    shared = Log(log.redis)
    shared.append(1, owner="a", floor=0)

    assert shared.append(1, owner="b", floor=0) == FENCED
    assert shared.append(2, owner="b") == FENCED

    unopened = Log(log.redis)
    unopened.append(1, attempt=1, floor=0)

    assert unopened.append(2, attempt=2) == FENCED


def test_nothing_follows_the_end_or_a_hole(log: Log) -> None:
    log.append(1, 2, floor=0, final=True)

    assert log.append(3) == DONE
    assert log.append(501, attempt=2, owner="b", floor=500) == DONE
    assert log.numbers == [1, 2]

    short = Log(log.redis)
    short.append(1, floor=0)

    assert short.append(3) == GAP
    assert short.numbers == [1]


def test_the_next_attempt_jumps_and_says_what_came_before(log: Log) -> None:
    log.append(1, 2, floor=0)

    assert log.append(501, 502, attempt=2, owner="b", floor=500) == OK
    assert log.numbers == [1, 2, 501, 502]
    assert log.afters == [0, 1, 2, 501]

    forgotten = Log(log.redis)
    forgotten.append(1, 2, floor=0)  # Redis has lost 3 to 10; the owner keeps only 11 and later

    assert forgotten.append(11, 12, floor=10) == OK
    assert forgotten.numbers == [1, 2, 11, 12]
    assert forgotten.afters[2] == 10


def test_old_events_are_trimmed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT_EVENTS", 100)
    log.append(1, 200, floor=0)
    for first in range(201, 1001, 200):
        log.append(first, first + 199)

    assert len(log.numbers) < 500
    assert log.numbers[-1] == 1000


def test_a_log_for_readers_of_both_kinds_keeps_as_much_for_each(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEPT_EVENTS", 100)
    for first in range(1, 2001, 100):
        payloads = [events.payload("~[]" if n % 2 else "values", b"1") for n in range(first, first + 100)]
        batch = Batch(log.id, 1, "a", first, payloads, floor=0 if first == 1 else None)
        assert events.append(log.redis, [batch], retention_seconds=RETENTION) == [OK]

    kept = [event.name.startswith(events.MARK) for event in events.logged(log.redis, log.id, 0)]
    assert 100 <= sum(kept) <= 300
    assert 100 <= len(kept) - sum(kept) <= 300


def test_logs_expire(log: Log) -> None:
    log.append(1, floor=0)
    keys = (events.log_key(log.id), events.meta_key(log.id))
    assert all(RETENTION < log.redis.ttl(key) <= events.RUNNING_EXPIRY_SECONDS for key in keys)

    for key in keys:
        log.redis.expire(key, RETENTION // 2)
    log.append(2, 99)
    assert all(log.redis.ttl(key) <= RETENTION // 2 for key in keys)
    log.append(100, 101)
    assert all(log.redis.ttl(key) > RETENTION for key in keys), "put off by every hundredth event"

    log.append(102, final=True)
    assert all(0 < log.redis.ttl(key) <= RETENTION for key in keys)


def test_one_call_appends_to_many_logs(server: Redis) -> None:
    ids = [uuid4() for _ in range(3)]
    batches = [Batch(id, 1, "a", 1, lines(1, 2), floor=0) for id in ids]
    batches.append(Batch(uuid4(), 1, "a", 1, lines(1, 1)))

    assert events.append(server, batches, retention_seconds=RETENTION) == [OK, OK, OK, LOST]


def test_a_server_that_forgot_the_script_is_sent_it_again(log: Log) -> None:
    log.append(1, floor=0)
    log.redis.script_flush()

    assert log.append(2) == OK


names = st.text("abcdefghijklmnopqrstuvwxyz|/:-", min_size=1, max_size=20)


@given(st.lists(st.tuples(names, st.binary(max_size=300)), min_size=1, max_size=20), st.integers(0, 10**9))
def test_a_message_comes_back_as_it_was(items: list[tuple[str, bytes]], first: int) -> None:
    message, expected = b"", []
    for n, (name, data) in enumerate(items, first + 1):
        stored = events.payload(name, data)
        message += b"%d %d %d\n%s" % (n, n - 1, len(stored), stored)
        expected.append(Event(n, n - 1, name, data))

    assert events.parse_message(message) == expected


def test_the_script_publishes_what_it_appends(redis: Redis) -> None:
    log = Log(redis)
    with redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(events.channel(log.id))
        pubsub.get_message(timeout=5)
        log.append(1, 2, floor=0)
        log.append(2, 3)
        found: list[Event] = []
        while len(found) < 3:
            message = pubsub.get_message(timeout=5)
            assert message is not None
            found += events.parse_message(message["data"])

    assert found == list(events.logged(redis, log.id, 0))


def test_a_dead_server_is_an_error_of_the_append_and_closing_needs_none() -> None:
    log = Log(shared_redis.make_client("redis://127.0.0.1:1/0", timeout_seconds=0.2))

    with pytest.raises(RedisError):
        log.append(1, floor=0)

    shared_redis.use(shared_redis.make_client("redis://127.0.0.1:1/0", timeout_seconds=0.2))

    events.close(uuid4(), attempt=1, owner="a", floor=0, payloads=[b"end\n{}"], retention_seconds=RETENTION)
