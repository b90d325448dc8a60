"""Notifications: sent in the background, together, never waited for; and Celery set up as leases need it."""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis
from redis.exceptions import RedisError

from shared.infra import broker as shared_broker
from shared.infra import redis as shared_redis
from shared.infra.broker import Notifier
from tests.support.waiting import wait_until

NOWHERE = "redis://127.0.0.1:1/0"


def waiting(redis: Redis, queue: str) -> list[list[Any]]:
    """The arguments of the messages in a queue, oldest first."""
    messages = map(json.loads, reversed(redis.lrange(f"{shared_redis.PREFIX}celery:{queue}", 0, -1)))
    return [json.loads(b64decode(message["body"]))[0] for message in messages]


def ids_in(redis: Redis, queue: str) -> list[str]:
    return [id for arguments in waiting(redis, queue) for id in arguments[0]]


def test_a_notification_puts_ids_in_the_pools_queue(redis: Redis) -> None:
    first, second = uuid4(), uuid4()
    shared_broker.enqueue_run("gpu", first)
    shared_broker.enqueue_build(second)

    wait_until(lambda: ids_in(redis, "runs.gpu") == [str(first)])
    wait_until(lambda: ids_in(redis, "builds") == [str(second)])


def test_notifications_that_meet_travel_together(redis: Redis) -> None:
    notifier = Notifier()
    ids = [str(uuid4()) for _ in range(120)]
    notifier._waiting.extend((shared_broker.EXECUTE_RUNS, "runs.default", id) for id in ids)
    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.other", "x")

    wait_until(lambda: ids_in(redis, "runs.other") == ["x"])
    assert ids_in(redis, "runs.default") == ids
    assert len(waiting(redis, "runs.default")) == 3


class Broker:
    """Takes messages, or fails `failures` times first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failures: float = 0) -> None:
        self._failures = failures
        self.tries: list[str] = []
        monkeypatch.setattr(shared_redis, "broker", lambda: self)
        monkeypatch.setattr(shared_broker, "OwnConnection", lambda broker: broker)

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
    wait_until(lambda: notifier._open_until)
    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.default", "y")
    wait_until(lambda: not notifier._waiting)

    assert len(broker.tries) == shared_broker.BREAKER_FAILURES  # then it rests for a while
    assert "could not notify" in caplog.text


def test_it_notifies_again_after_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_broker, "BREAKER_SECONDS", 0.0)
    notifier, broker = Notifier(), Broker(monkeypatch, failures=3)

    for n in range(5):
        notifier.notify(shared_broker.EXECUTE_RUNS, "runs.default", str(n))
        wait_until(lambda n=n: len(broker.tries) == n + 1)

    wait_until(lambda: notifier._failures == 0)


def test_a_connection_that_was_lost_meanwhile_loses_no_notification(redis: Redis) -> None:
    notifier = Notifier()
    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.default", "first")
    wait_until(lambda: ids_in(redis, "runs.default") == ["first"])
    redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.default", "second")

    wait_until(lambda: ids_in(redis, "runs.default") == ["first", "second"])


def test_a_bug_in_one_notification_does_not_end_the_notifier(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    notifier, broker = Notifier(), Broker(monkeypatch)

    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.bad", "x")
    wait_until(lambda: "a bug" in caplog.text)
    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.default", "y")

    wait_until(lambda: broker.tries[1:] == ["runyard:celery:runs.default"])
