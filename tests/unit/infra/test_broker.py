"""Notifications, which are sent in the background and in batches without blocking, and Celery's configuration."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from shared.infra import broker, redis_connections
from shared.infra import broker as shared_broker
from shared.infra import redis as shared_redis
from shared.infra.broker import CELERY_PREFIX, Notifier
from shared.infra.redis_connections import SenderConnection, command, pack
from tests.support.waiting import wait_until
from workers import celery_app

NOWHERE = "redis://127.0.0.1:1/0"


def waiting(redis: Redis, queue: str) -> list[list[Any]]:
    """Return the arguments of the messages in a queue, oldest first."""
    messages = map(json.loads, reversed(redis.lrange(f"{shared_redis.PREFIX}celery:{queue}", 0, -1)))
    return [json.loads(b64decode(message["body"]))[0] for message in messages]


def ids_in(redis: Redis, queue: str) -> list[str]:
    return [id for arguments in waiting(redis, queue) for id in arguments[0]]


def test_notifications_put_ids_in_the_pools_queue_together_where_they_meet(redis: Redis) -> None:
    first, second = uuid4(), uuid4()
    shared_broker.enqueue_run("gpu", first)
    shared_broker.enqueue_build(second)

    wait_until(lambda: ids_in(redis, "runs.gpu") == [str(first)])
    wait_until(lambda: ids_in(redis, "builds") == [str(second)])

    notifier = Notifier()
    ids = [str(uuid4()) for _ in range(120)]
    notifier._waiting.extend((shared_broker.EXECUTE_RUNS, "runs.default", id) for id in ids)
    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.other", "x")

    wait_until(lambda: ids_in(redis, "runs.other") == ["x"])
    assert ids_in(redis, "runs.default") == ids
    assert len(waiting(redis, "runs.default")) == 3


class Broker:
    """A fake broker that accepts messages after `failures` failed attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failures: float = 0) -> None:
        self._failures = failures
        self.tries: list[str] = []
        monkeypatch.setattr(shared_redis, "broker", lambda: self)
        monkeypatch.setattr(shared_broker, "SenderConnection", lambda broker: broker)

    def send(self, commands: Sequence[bytes]) -> None:
        key = commands[0].split(b"\r\n")[4].decode()
        self.tries.append(key)
        if key.endswith("bad"):
            raise TypeError("a bug")
        if len(self.tries) <= self._failures:
            raise RedisError("nobody there")


def test_a_notification_into_a_dead_broker_costs_its_caller_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    notifier, broker = Notifier(), Broker(monkeypatch, failures=math.inf)

    for n in range(shared_broker.BREAKER_FAILURES):
        notifier.notify(shared_broker.EXECUTE_RUNS, f"runs.{n}", "x")
        wait_until(lambda n=n: len(broker.tries) == n + 1)
    wait_until(lambda: notifier._breaker_open_until)
    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.default", "y")
    wait_until(lambda: not notifier._waiting)

    assert len(broker.tries) == shared_broker.BREAKER_FAILURES  # then the circuit breaker opens
    assert "could not notify" in caplog.text


def test_it_notifies_again_after_its_pause_and_after_a_bug(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_broker, "BREAKER_SECONDS", 0.0)
    notifier, broker = Notifier(), Broker(monkeypatch, failures=3)

    for n in range(5):
        notifier.notify(shared_broker.EXECUTE_RUNS, "runs.default", str(n))
        wait_until(lambda n=n: len(broker.tries) == n + 1)

    wait_until(lambda: notifier._failures == 0)

    notifier, broker = Notifier(), Broker(monkeypatch)

    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.bad", "x")
    wait_until(lambda: "a bug" in caplog.text)
    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.default", "y")

    wait_until(lambda: broker.tries[1:] == ["runyard:celery:runs.default"])


def test_a_connection_that_was_lost_meanwhile_loses_no_notification(redis: Redis) -> None:
    notifier = Notifier()
    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.default", "first")
    wait_until(lambda: ids_in(redis, "runs.default") == ["first"])
    redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.default", "second")

    wait_until(lambda: ids_in(redis, "runs.default") == ["first", "second"])


# Messages built without Celery equal Celery's own


QUEUE = broker.runs_queue("default")


STOCK = """
import sys
from celery import Celery
from redis import Redis

url, kombus_url, prefix, task = sys.argv[1:5]
app = Celery("anybody", broker=kombus_url)
app.conf.update(broker_transport_options={"global_keyprefix": prefix}, task_acks_late=True)

@app.task(name=task)
def execute(ids):
    Redis.from_url(url).rpush("executed", *ids)

app.worker_main(["-q", "worker", "-P", "solo", *sys.argv[5:]])
"""


def test_any_celery_worker_takes_it(redis: Redis, redis_url: str) -> None:
    """The worker shares only the broker's URL and key prefix with the service."""
    ids = [str(uuid4()).encode() for _ in range(broker.IDS_A_MESSAGE + 1)]
    notifier = Notifier()
    arguments = (
        redis_url,
        celery_app._broker_url(redis_url),
        CELERY_PREFIX,
        broker.EXECUTE_RUNS,
        "-Q",
        QUEUE,
    )
    worker = subprocess.Popen([sys.executable, "-c", STOCK, *arguments])
    try:
        for id in ids:
            notifier.notify(broker.EXECUTE_RUNS, QUEUE, id.decode())
        wait_until(lambda: redis.lrange("executed", 0, -1) == ids, 60)
        wait_until(lambda: not redis.exists(f"{CELERY_PREFIX}unacked"), 20)
    finally:
        worker.terminate()
        worker.wait(20)


# Packed commands in one round trip: each answer belongs to its command, whatever failed before


Send = Callable[[Sequence[bytes]], list[Any]]


@pytest.fixture(params=["own", "pooled"])
def send(request: pytest.FixtureRequest, redis: Redis) -> Send:
    return SenderConnection(redis).send if request.param == "own" else partial(redis_connections.send, redis)


def asked(*arguments: bytes) -> bytes:
    return command(len(arguments), pack(*arguments))


@pytest.mark.parametrize("value", [b"", b"a\r\n$1\r\nb", bytes(range(256)), b"x" * 100_000])
def test_what_is_packed_arrives_as_it_is(send: Send, value: bytes) -> None:
    assert send([asked(b"SET", b"k", value), asked(b"GET", b"k")]) == [b"OK", value]


def test_a_refusal_is_raised_and_the_next_answers_are_their_own(send: Send) -> None:
    with pytest.raises(ResponseError):
        send([asked(b"SET", b"k", b"1"), asked(b"LPUSH", b"k", b"x"), asked(b"GET", b"k")])

    assert send([asked(b"SET", b"k", b"2"), asked(b"GET", b"k")]) == [b"OK", b"2"]
    assert send([]) == []


def test_answers_nobody_waited_for_are_not_the_next_ones(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """A greenlet may be killed between two answers."""
    real, read = redis_connections._answer, 0

    def answer(connection: Any) -> Any:
        nonlocal read
        read += 1
        if read == 2:
            raise KeyboardInterrupt
        return real(connection)

    monkeypatch.setattr(redis_connections, "_answer", answer)
    with pytest.raises(KeyboardInterrupt):
        send([asked(b"ECHO", b"one"), asked(b"ECHO", b"two")])

    assert send([asked(b"ECHO", b"three")]) == [b"three"]


def test_a_lost_connection_is_an_error_and_made_again(redis: Redis) -> None:
    connection = SenderConnection(redis)
    (id,) = connection.send([asked(b"CLIENT", b"ID")])
    redis.client_kill_filter(_id=str(id))
    with pytest.raises(RedisError):
        connection.send([asked(b"PING")])

    assert connection.send([asked(b"ECHO", b"back")]) == [b"back"]
