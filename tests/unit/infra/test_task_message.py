"""A message made without Celery is what Celery would have sent, to its own workers too."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode
from uuid import uuid4

from celery import Celery
from redis import Redis

from shared.infra import broker, task_message
from shared.infra.broker import CELERY_PREFIX, Notifier
from tests.support.waiting import wait_until
from workers import celery_app

QUEUE = broker.runs_queue("default")


def test_it_says_what_celerys_own_says_under_an_id_of_its_own(redis: Redis, redis_url: str) -> None:
    args = [[str(uuid4()), str(uuid4())]]
    app = celery_app.configure(redis_url, app=Celery("producer"))
    app.send_task(broker.EXECUTE_RUNS, args=args, queue=QUEUE)
    (sent,) = redis.lrange(f"{CELERY_PREFIX}{QUEUE}", 0, -1)
    celerys = json.loads(sent)
    app.close()

    ours = json.loads(task_message.made(broker.EXECUTE_RUNS, QUEUE, args))

    assert json.loads(b64decode(ours.pop("body"))) == json.loads(b64decode(celerys.pop("body")))
    for part, differing in (
        ("headers", {"id", "root_id", "origin", "ignore_result"}),
        ("properties", {"correlation_id", "reply_to", "delivery_tag"}),
    ):
        assert ours[part].keys() == celerys[part].keys()
        for name in differing:
            del ours[part][name], celerys[part][name]
    assert ours == celerys

    first, second = (json.loads(task_message.made(broker.EXECUTE_RUNS, QUEUE, [["x"]])) for _ in range(2))

    assert first["headers"]["id"] != second["headers"]["id"]
    assert first["properties"]["delivery_tag"] != second["properties"]["delivery_tag"]


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
    """One with nothing of ours but the broker's address and the prefix of its keys."""
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
