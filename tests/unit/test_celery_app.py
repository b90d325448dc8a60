"""Celery set up as leases need it."""

from __future__ import annotations

from shared.infra import redis
from workers import celery_app


def test_celery_leaves_redelivery_to_leases() -> None:
    conf = celery_app.configure("redis://localhost:6379/0").conf

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
    assert conf.broker_transport_options["global_keyprefix"].startswith(redis.PREFIX)


def test_a_pool_has_queues_of_its_own() -> None:
    conf = celery_app.configure("redis://localhost:6379/0", pool="gpu").conf

    assert {queue.name for queue in conf.task_queues} == {"builds", "runs.gpu", "queries.gpu"}


def test_a_unix_socket_is_spelled_as_kombu_wants_it() -> None:
    conf = celery_app.configure("unix://:secret@/run/valkey.sock?db=0").conf

    assert conf.broker_url == "redis+socket://:secret@/run/valkey.sock?db=0"
    assert not conf.broker_transport_options["socket_keepalive"]
