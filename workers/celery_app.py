"""The Celery app of a worker process, and how it is pointed at the broker."""

from __future__ import annotations

from celery import Celery
from kombu.entity import Exchange, Queue

from shared.infra import broker

celery = Celery("runyard")


def configure(
    redis_url: str,
    *,
    pool: str = "default",
    tells_events: bool = False,
    app: Celery = celery,
) -> Celery:
    """Point a Celery app (the process's own) at the broker; the reasons for each value stand beside it.

    `tells_events`: its workers tell Celery's own tools what they do.
    """
    app.__dict__.pop("amqp", None)  # its producers would go on to where they were pointed before
    app.conf.update(
        broker_url=_broker_url(redis_url),
        result_backend=None,
        result_backend_thread_safe=True,  # else Celery makes a backend for each greenlet: for each task
        task_ignore_result=True,  # results are rows
        task_acks_late=False,  # leases redeliver, not the broker: with gevent it never would
        task_reject_on_worker_lost=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,  # a blip must not restart every run
        worker_prefetch_multiplier=1,  # the notifications of a dead worker wait for upkeep
        task_publish_retry=False,  # the row is safe; the request must not wait
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,  # wait for Redis for ever
        broker_channel_error_retry=True,  # … also for one that refuses to write: a full disk, a replica
        broker_transport_options={
            "visibility_timeout": 43_200,
            "socket_timeout": 10.0,
            "socket_connect_timeout": 1,
            "socket_keepalive": not redis_url.startswith("unix:"),
            "health_check_interval": 10,
            "global_keyprefix": broker.CELERY_PREFIX,
            "priority_steps": [0],  # one key for a queue: nothing has a priority
        },
        accept_content=["json"],  # no pickle from the broker
        task_serializer="json",
        worker_hijack_root_logger=False,
        worker_send_task_events=tells_events,
        worker_enable_remote_control=False,  # where it is asked for, workers.control does it
        task_create_missing_queues=True,  # another pool's
        task_default_queue=broker.BUILDS,
        task_queues=[
            _queue(name) for name in (broker.BUILDS, broker.runs_queue(pool), broker.queries_queue(pool))
        ],
        timezone="UTC",
    )
    return app


def _queue(name: str) -> Queue:
    """Nothing is acknowledged: with early acks it would cost two round-trips a message and change nothing."""
    return Queue(name, Exchange(name, type="direct"), routing_key=name, no_ack=True)


def _broker_url(redis_url: str) -> str:
    """kombu's spelling of a unix socket address."""
    if redis_url.startswith("unix:"):
        return "redis+socket:" + redis_url.removeprefix("unix:")
    return redis_url
