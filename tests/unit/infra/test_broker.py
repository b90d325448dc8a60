"""Doorbells: sent in the background, together, never waited for; and Celery set up as leases need it."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from kombu.exceptions import OperationalError
from redis import Redis

from shared.infra import broker as shared_broker
from shared.infra import redis as shared_redis
from shared.infra.broker import Notifier
from tests.support.waiting import wait_until

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def broker(redis: Redis, redis_url: str) -> Iterator[Redis]:
    shared_broker.configure(redis_url)
    yield redis
    shared_broker.celery.close()


def waiting(broker: Redis, queue: str) -> list[list[Any]]:
    """The arguments of the messages in a queue, oldest first."""
    messages = map(json.loads, reversed(broker.lrange(f"{shared_redis.PREFIX}celery:{queue}", 0, -1)))
    return [json.loads(b64decode(message["body"]))[0] for message in messages]


def ids_in(broker: Redis, queue: str) -> list[str]:
    return [id for arguments in waiting(broker, queue) for id in arguments[0]]


def test_a_notification_puts_ids_in_the_pools_queue(broker: Redis) -> None:
    first, second = uuid4(), uuid4()
    shared_broker.enqueue_run("gpu", first)
    shared_broker.enqueue_build(second)

    wait_until(lambda: ids_in(broker, "runs.gpu") == [str(first)])
    wait_until(lambda: ids_in(broker, "builds") == [str(second)])


def test_who_is_pointed_at_another_broker_sends_there(broker: Redis, redis_url: str) -> None:
    shared_broker.configure(NOWHERE)
    assert shared_broker.celery.amqp.producer_pool is not None
    shared_broker.configure(redis_url)

    id = uuid4()
    shared_broker.enqueue_run("gpu", id)

    wait_until(lambda: ids_in(broker, "runs.gpu") == [str(id)])


def test_notifications_that_meet_travel_together(broker: Redis) -> None:
    notifier = Notifier()
    ids = [str(uuid4()) for _ in range(120)]
    notifier._waiting.extend((shared_broker.EXECUTE_RUNS, "runs.default", id) for id in ids)
    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.other", "x")

    wait_until(lambda: ids_in(broker, "runs.other") == ["x"])
    assert ids_in(broker, "runs.default") == ids
    assert len(waiting(broker, "runs.default")) == 3


def test_a_notification_into_a_dead_broker_costs_its_caller_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    notifier, tries = Notifier(), []

    def send_task(*args: Any, **options: Any) -> None:
        tries.append(args)
        raise OperationalError("nobody there")

    monkeypatch.setattr(shared_broker.celery, "send_task", send_task)
    for n in range(shared_broker.BREAKER_FAILURES):
        notifier.notify(shared_broker.EXECUTE_RUNS, f"runs.{n}", "x")
        wait_until(lambda n=n: len(tries) == n + 1)
    wait_until(lambda: notifier._open_until)
    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.default", "y")
    wait_until(lambda: not notifier._waiting)

    assert len(tries) == shared_broker.BREAKER_FAILURES  # then it rests for a while
    assert "could not notify" in caplog.text


def test_it_notifies_again_after_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_broker, "BREAKER_SECONDS", 0.0)
    notifier, tries = Notifier(), []

    def send_task(*args: Any, **options: Any) -> None:
        tries.append(args)
        if len(tries) < 4:
            raise OperationalError("nobody there")

    monkeypatch.setattr(shared_broker.celery, "send_task", send_task)
    for n in range(5):
        notifier.notify(shared_broker.EXECUTE_RUNS, "runs.default", str(n))
        wait_until(lambda n=n: len(tries) == n + 1)

    wait_until(lambda: notifier._failures == 0)


def test_a_bug_in_one_notification_does_not_end_the_notifier(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    notifier, sent = Notifier(), []

    def send_task(task: str, args: list[Any], queue: str) -> None:
        if queue == "runs.bad":
            raise TypeError("a bug")
        sent.append(args[0])

    monkeypatch.setattr(shared_broker.celery, "send_task", send_task)
    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.bad", "x")
    wait_until(lambda: "a bug" in caplog.text)
    notifier.notify(shared_broker.EXECUTE_RUNS, "runs.default", "y")

    wait_until(lambda: sent == [["y"]])


def test_celery_leaves_redelivery_to_leases() -> None:
    conf = shared_broker.configure("redis://localhost:6379/0").conf

    assert conf.task_acks_late is False
    assert conf.task_ignore_result is True
    assert conf.result_backend is None
    assert conf.task_reject_on_worker_lost is False
    assert conf.worker_cancel_long_running_tasks_on_connection_loss is False
    assert conf.worker_prefetch_multiplier == 1
    assert conf.task_publish_retry is False
    assert conf.broker_connection_max_retries is None
    assert conf.broker_channel_error_retry is True
    assert conf.accept_content == ["json"]
    assert conf.task_time_limit is None
    assert conf.broker_transport_options["visibility_timeout"] == 43_200
    assert conf.broker_transport_options["global_keyprefix"].startswith(shared_redis.PREFIX)


def test_a_pool_has_queues_of_its_own() -> None:
    conf = shared_broker.configure("redis://localhost:6379/0", pool="gpu").conf

    assert {queue.name for queue in conf.task_queues} == {"builds", "runs.gpu", "queries.gpu"}


def test_a_unix_socket_is_spelled_as_kombu_wants_it() -> None:
    conf = shared_broker.configure("unix://:secret@/run/valkey.sock?db=0").conf

    assert conf.broker_url == "redis+socket://:secret@/run/valkey.sock?db=0"
    assert not conf.broker_transport_options["socket_keepalive"]
