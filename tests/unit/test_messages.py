"""Workers with Celery's remote control and events accept messages from any client of Celery."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import UUID, uuid4

from celery import Celery
from redis import Redis

from shared.infra import broker
from shared.infra.broker import Notifier
from tests.support.waiting import wait_until
from workers import celery_app

QUEUE = broker.runs_queue("default")
FAILS, LASTS = str(UUID(int=1)), str(UUID(int=2))
WORKER = """
from gevent import monkey

monkey.patch_all()

import sys
from time import sleep
from celery.signals import worker_init
from redis import Redis
from shared.infra import broker
from workers import celery_app, consumer

url, queue, fails, lasts = sys.argv[1:]
app = celery_app.configure(url, sends_events=True)
worker_init.connect(lambda **_: consumer.install(app), weak=False)
redis = Redis.from_url(url)

@app.task(name=broker.EXECUTE_RUNS, base=consumer.MessageTask)
def execute(ids):
    redis.rpush("begun", *ids)
    if fails in ids:
        raise ValueError("it fails")
    while lasts in ids and not redis.exists("may end"):
        sleep(0.05)
    redis.rpush("executing", consumer.MessageTask.executing)
    redis.rpush("ended", *ids)

app.worker_main(["-q", "worker", "-P", "gevent", "-c", "4", "-Q", queue, "--without-heartbeat"])
"""


def test_a_worker_takes_messages_from_whomever(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    app = celery_app.configure(redis_url, app=Celery("anybody"))
    notifier, first, second = Notifier(), str(uuid4()), str(uuid4())

    def ids(key: str) -> list[str]:
        return [id.decode() if isinstance(id, bytes) else id for id in redis.lrange(key, 0, -1)]

    arguments = (redis_url, QUEUE, FAILS, LASTS)
    log = tmp_path / "log"
    with log.open("w") as output:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments],
            cwd=Path(__file__).parents[2],
            stdout=output,
            stderr=output,
        )
    try:
        app.send_task(broker.EXECUTE_RUNS, args=[[FAILS]], queue=QUEUE)
        wait_until(lambda: ids("begun") == [FAILS], 60)
        app.send_task(broker.EXECUTE_RUNS, args=[[first]], queue=QUEUE)
        notifier.notify(broker.EXECUTE_RUNS, QUEUE, second)
        wait_until(lambda: sorted(ids("ended")) == sorted([first, second]), 20)
        notifier.notify(broker.EXECUTE_RUNS, QUEUE, LASTS)
        wait_until(lambda: LASTS in ids("begun"), 20)
        worker.terminate()
        redis.set("may end", "yes")

        assert worker.wait(30) == 0
        assert ids("ended")[-1] == LASTS, "what was begun is finished"
        assert redis.lindex("executing", -1) == b"1", "the one that failed is not counted any more"
        assert log.read_text().count("ValueError: it fails") == 1
    finally:
        worker.kill()
        app.close()
