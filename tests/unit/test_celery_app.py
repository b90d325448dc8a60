"""The configuration of Celery in workers and beat: redelivery is left to leases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from shared.infra import redis
from tests.support.servers import free_port
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

    assert {queue.name for queue in conf.task_queues} == {"builds", "runs.gpu", "hosts.gpu"}


def test_a_unix_socket_is_spelled_as_kombu_wants_it() -> None:
    conf = celery_app.configure("unix://:secret@/run/valkey.sock?db=0").conf

    assert conf.broker_url == "redis+socket://:secret@/run/valkey.sock?db=0"
    assert not conf.broker_transport_options["socket_keepalive"]


def test_the_brokers_pauses_do_not_stop_the_greenlets() -> None:
    script = (
        "import runpy, sys; sys.argv = ['celery', '--version'];"
        "\ntry: runpy.run_module('workers', run_name='__main__')\nexcept SystemExit: pass"
        "\nimport kombu.utils.functional as kombu, time, gevent"
        "\nassert kombu.sleep is time.sleep and 'gevent' in kombu.sleep.__module__, kombu.sleep"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


# Runs beat's scheduler with a task that is due repeatedly, first without Redis, then with one.
PROGRAM = """
import sys
from shared.infra import logs
from workers import beat

logs.configure(beat.settings)
scheduler = beat.app.conf.beat_scheduler(app=beat.app)
(entry,) = scheduler.schedule.values()
for url in (f"redis://127.0.0.1:{sys.argv[1]}/0", beat.app.conf.broker_url) * 2:
    with beat.app.connection_for_write(url) as connection:
        connection.transport_options = {**connection.transport_options, "max_retries": 1, "interval_max": 0.1}
        producer = scheduler.Producer(connection, auto_declare=False)
        for _ in range(2):
            scheduler.apply_entry(entry, producer=producer)
"""


def test_an_outage_of_redis_is_one_line_and_its_end_another(redis_url: str, tmp_path: Path) -> None:
    env = {**os.environ, "REDIS_URL": redis_url, "RUNYARD_DATA_DIR": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(free_port())],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = [line.partition(" ")[2] for line in done.stderr.splitlines()]
    outage = "WARNING workers.schedule: Redis is unreachable, upkeep gets no notifications until it returns: "
    back = "INFO workers.schedule: Redis is back"
    assert [back if line == back else line[: len(outage)] for line in said] == [outage, back, outage, back], (
        done.stderr
    )
