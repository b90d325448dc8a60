"""The Celery app of a worker process, its broker configuration, and the signals that stop such a process."""

from __future__ import annotations

import signal

from celery import Celery
from kombu.entity import Exchange, Queue

from shared.infra import broker

celery = Celery("runyard")
# Pause before a message that arrives during a drain is sent again: until this process's consumer has stopped, which
# would receive it again.
PASS_ON_SECONDS = 0.2
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)  # only the first has an effect


def configure(
    redis_url: str, *, pool: str = "default", sends_events: bool = False, app: Celery = celery
) -> Celery:
    """Configure a Celery app, by default the process's own, for the broker. Comments give the reason for each value.

    `sends_events`: its workers send task events to Celery's own tools.
    """
    app.__dict__.pop("amqp", None)  # its producers would keep their old broker address
    app.conf.update(
        broker_url=_broker_url(redis_url),
        result_backend=None,
        result_backend_thread_safe=True,  # else Celery creates one for each greenlet, so for each task
        task_ignore_result=True,  # results are rows
        task_acks_late=False,  # leases handle redelivery, because the broker never would with gevent
        task_reject_on_worker_lost=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,  # losing Redis must not restart runs
        worker_prefetch_multiplier=1,  # upkeep repeats the notifications of a dead worker
        task_publish_retry=False,  # the row is committed, and the request must not wait
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,  # wait for Redis without limit
        broker_channel_error_retry=True,  # … also if Redis refuses to write: a full disk, a replica
        broker_transport_options={
            "visibility_timeout": 43_200,
            "socket_timeout": 10.0,
            "socket_connect_timeout": 1,
            "socket_keepalive": not redis_url.startswith("unix:"),
            "health_check_interval": 10,
            "global_keyprefix": broker.CELERY_PREFIX,
            "priority_steps": [0],  # one key per queue: no task has a priority
        },
        accept_content=["json"],  # no pickle from the broker
        task_serializer="json",
        worker_hijack_root_logger=False,
        worker_send_task_events=sends_events,
        worker_enable_remote_control=False,  # workers.consumer does it where the setting enables it
        task_create_missing_queues=True,  # queues of other pools
        task_default_queue=broker.BUILDS,
        task_queues=[
            _queue(name) for name in (broker.BUILDS, broker.runs_queue(pool), broker.hosts_queue(pool))
        ],
        timezone="UTC",
    )
    return app


def _queue(name: str) -> Queue:
    """Return a queue without acknowledgements.

    With early acks they would cost two round-trips per message for no effect.
    """
    return Queue(name, Exchange(name, type="direct"), routing_key=name, no_ack=True)


def _broker_url(redis_url: str) -> str:
    """Return the URL in kombu's notation, which differs for unix sockets."""
    if redis_url.startswith("unix:"):
        return "redis+socket:" + redis_url.removeprefix("unix:")
    return redis_url


def ignore_stop_signals() -> None:
    """Ignore further stop signals: this process is stopping already."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
