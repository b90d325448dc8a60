"""The transport of workers: it accepts messages of this service and drops everything else in a queue."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery
from kombu import Connection, Consumer
from kombu.exceptions import OperationalError
from redis import Redis

from shared.infra import broker, encryption
from shared.infra import redis as shared_redis
from workers import celery_app, consumer, tasks
from workers.consumer import Drops, Malformed, checked

QUEUE = "runs.default"
KEY = f"{shared_redis.PREFIX}celery:{QUEUE}"
RUN = str(UUID(int=7))


def packed(body: object) -> str:
    return b64encode(json.dumps(body).encode()).decode()


def message(args: object = ((RUN,),), **changes: Any) -> dict[str, Any]:
    """Return a message in kombu's storage format. `changes` replace keys of it."""
    return {
        "body": packed([args, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": broker.EXECUTE_RUNS, "id": str(uuid4()), "eta": None},
        "properties": {"delivery_tag": str(uuid4()), "delivery_info": {}, "body_encoding": "base64"},
        **changes,
    }


def item(*args: Any, **changes: Any) -> bytes:
    return json.dumps(message(*args, **changes)).encode()


def test_every_task_of_a_worker_is_let_through() -> None:
    ours = {task for task in tasks.celery.tasks if not task.startswith("celery.")}
    assert ours == {*consumer.TAKES_IDS, *consumer.TAKES_NOTHING}


GARBAGE = {
    "nothing": b"",
    "no JSON": b"x",
    "no text": b"\xff\xfe",
    "no object": b"[]",
    "null": b"null",
    "an empty object": b"{}",
    "nested too deeply": b"[" * 100_000,
    "no base64": item(body="!!!"),
    "no body": item(body=None),
    "a body that is no triple": item(body=packed([])),
    "a body that is no list": item(body=packed(3)),
    "options": item(body=packed([[[RUN]], {"a": 1}, {}])),
    "no headers": item(headers=None),
    "headers without a task": item(headers={"id": RUN}),
    "a task of somebody else": item(headers={"task": "os.system", "id": RUN}),
    "a task that is no name": item(headers={"task": {}, "id": RUN}),
    "compressed": item(**{"content-encoding": "zip"}),
    "no kind": item(**{"content-type": None}),
    "pickled": item(
        **{
            "content-type": "application/x-python-serialize",
            "body": b64encode(pickle.dumps(([[RUN]], {}, {}))).decode(),
        }
    ),
    "no arguments": item([]),
    "too many arguments": item([[RUN], "more"]),
    "no list of ids": item([RUN]),
    "no ids": item([["x"]]),
    "numbers": item([[1]]),
    "nulls": item([[None]]),
    "an object": item([{"a": 1}]),
    "a very long id": item(["a" * 1_000_000]),
    "ids to a task that takes none": item(headers={"task": broker.CANARY, "id": RUN}),
}


@pytest.mark.parametrize("found", GARBAGE.values(), ids=GARBAGE)
def test_what_this_service_does_not_send_is_no_message(found: bytes) -> None:
    with pytest.raises(Malformed):
        checked(found)


def test_only_the_task_and_its_arguments_pass() -> None:
    hostile = message(properties=None)
    hostile["headers"] |= {"eta": "x", "timelimit": 3, "stamps": 1}
    hostile["body"] = packed([[[RUN]], {}, {"chain": [{"task": "another"}]}])

    passed = json.loads(checked(json.dumps(hostile).encode()))

    assert json.loads(b64decode(passed["body"])) == [[[RUN]], {}, {}]
    assert passed["headers"].keys() == {"lang", "task", "id"}


def test_a_flood_of_foreign_messages_is_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    drops = Drops(lambda: now)
    for _ in range(10_000):
        drops.add(QUEUE, "no task takes it")
        drops.add("builds", "no task takes it")

    assert [line for line in caplog.messages if QUEUE in line] == [
        f"a message in {QUEUE} is dropped: no task takes it",
        *(
            f"{count} messages in {QUEUE} are dropped so far, the last of them because no task takes it"
            for count in (10, 100, 1000, 10_000)
        ),
    ]
    assert len([line for line in caplog.messages if "builds" in line]) == 5

    caplog.clear()
    now = 100.0
    drops.add(QUEUE, "it cannot be read")
    assert caplog.messages == [f"a message in {QUEUE} is dropped: it cannot be read"]


def test_everything_else_in_a_queue_is_dropped(
    redis: Redis, redis_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "drops", Drops())
    app = celery_app.configure(redis_url, app=Celery("consumer"))
    for found in GARBAGE.values():
        redis.lpush(KEY, found)
    redis.lpush(KEY, item())
    heard: list[Any] = []

    with Connection(app.conf.broker_url, transport_options=app.conf.broker_transport_options) as connection:
        connection.transport_cls = consumer.Transport
        with Consumer(connection, [celery_app._queue(QUEUE)], on_message=heard.append, accept=["json"]):
            while not heard:
                connection.drain_events(timeout=20)

    assert heard[0].payload == [[[RUN]], {}, {}]
    assert len([line for line in caplog.messages if "dropped" in line]) == len(str(len(GARBAGE)))
    assert not redis.exists(KEY)


def test_a_broker_that_is_away_is_asked_for_at_short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "RETRY_SECONDS", 0.01)
    pauses: list[float] = []

    with pytest.raises(OperationalError):
        consumer.Connection("redis://127.0.0.1:1").ensure_connection(
            lambda error, pause: pauses.append(pause), max_retries=20
        )

    assert set(pauses) == {0.01}


def test_a_worker_consumes_by_way_of_it_and_celerys_tools_do_not() -> None:
    """Celery's tools read answers of workers, which the transport would drop."""
    script = (
        "import os, workers.app; from workers.celery_app import celery\n"
        "os.wait() if os.fork() else workers.app.prepare()\n"
        "made = [celery.connection(url) for url in ('redis://x', 'redis+socket:///x')]\n"
        "print(*{type(each) for each in made}, *{each.get_transport_cls() for each in made})"
    )
    nowhere = {"DATABASE_URL": "postgresql:///nowhere", "REDIS_URL": "redis://127.0.0.1:1/0"}
    key = {"RUNYARD_ENCRYPTION_KEYS": encryption.new_key()}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **nowhere, **key},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    of_workers, of_tools = done.stdout.splitlines()
    assert of_workers == f"{consumer.Connection} {consumer.Transport}"
    assert "workers.consumer" not in of_tools
