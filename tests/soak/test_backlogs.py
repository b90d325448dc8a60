"""Long backlogs: a runner starts executing at once, and a tenant's runs do not wait for another tenant's backlog."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest
from redis import Redis

from shared.infra import broker as shared_broker
from tests.support.counting import KITCHEN, rows
from tests.support.runners import another_runner
from tests.support.stack import Stack
from tests.support.waiting import wait_until

BACKLOG = 100_000
FLOOD = 5_000
SLOTS = 20
NEIGHBOURS_RUNS = 30

# Copy a finished run `n` times as pending runs, each on its own thread.
FILL = (
    """
    INSERT INTO thread (deployment_id, thread_id, last_seq, status, metadata)
    SELECT deployment_id, gen_random_uuid(), 1, 'busy', '{"of": "backlog"}' FROM run, generate_series(1, %(n)s)
    WHERE run_id = %(run_id)s
    """,
    """
    INSERT INTO run SELECT (made).* FROM (
        SELECT jsonb_populate_record(r, jsonb_build_object('run_id', gen_random_uuid(), 'thread_id', t.thread_id,
            'status', 'pending', 'attempt', 0, 'owner', NULL, 'lease_until', NULL, 'deadline_at', NULL,
            'started_at', NULL, 'ended_at', NULL, 'notified_at', NULL, 'created_seq', 1, 'pool', 'later')) AS made
        FROM run r JOIN thread t ON t.deployment_id = r.deployment_id
        WHERE r.run_id = %(run_id)s AND t.metadata @> '{"of": "backlog"}') AS rows
    """,
)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A platform whose runners have few slots."""
    with Stack(env={"RUNYARD_RUNNER_SLOTS": str(SLOTS)}) as own:
        own.deploy(KITCHEN, name="kitchen")
        yield own


def key(stack: Stack) -> str:
    made = stack.client.post("/v2/keys", json={"name": "neighbour", "role": "run"})
    return made.raise_for_status().json()["key"]


def test_a_runner_begins_at_once_however_much_waits(stack: Stack) -> None:
    thread_id = stack.sdk("kitchen").threads.create()["thread_id"]
    run_id = stack.sdk("kitchen").runs.create(thread_id, "echo", input={"text": "x"})["run_id"]
    stack.sdk("kitchen").runs.join(thread_id, run_id)
    deployment = stack.client.get("/v2/deployments?name=kitchen").json()["resources"][0]["id"]
    stack.client.patch(f"/v2/deployments/{deployment}", json={"pool": "later"}).raise_for_status()
    with psycopg.connect(stack.database_url) as conn:
        for statement in FILL:
            conn.execute(statement, {"run_id": run_id, "n": BACKLOG})
    broker = Redis.from_url(stack.redis_url)
    lengths = []

    def length() -> int:
        lengths.append(broker.llen(f"{shared_broker.CELERY_PREFIX}{shared_broker.runs_queue('later')}"))
        return lengths[-1]

    began = time.monotonic()
    wait_until(lambda: length() and time.monotonic() > began + 60, 90, what="a minute without a runner")
    with another_runner(stack, "later"):
        ready = time.monotonic()
        wait_until(lambda: rows(stack, "pool = 'later' AND status = 'success'"), 60)
        print(f"the first of {BACKLOG} ended {time.monotonic() - ready:.1f} s after its runner was ready")
        wait_until(lambda: length() >= 0 and time.monotonic() > ready + 60, 90, what="a minute with one")
        done = rows(stack, "pool = 'later' AND status = 'success'")
        print(f"{len(done)} ended in a minute; the queue had up to {max(lengths)} messages")
    stack.client.patch(f"/v2/deployments/{deployment}", json={"pool": "default"}).raise_for_status()
    with psycopg.connect(stack.database_url) as conn:
        conn.execute("DELETE FROM thread WHERE metadata @> %s", ('{"of": "backlog"}',))

    assert {run["attempt"] for run in done} == {1}
    assert max(lengths) < 2 * shared_broker.FULL_QUEUE


def post(stack: Stack, api_key: str, seconds: float) -> str:
    thread_id = str(uuid4())
    asked = {"assistant_id": "sleeps", "input": {"seconds": seconds}, "if_not_exists": "create"}
    path = f"{stack.url}/d/kitchen/threads/{thread_id}/runs"
    httpx.post(path, json=asked, headers={"X-Api-Key": api_key}, timeout=60).raise_for_status()
    return thread_id


def neighbours_waits(stack: Stack, api_key: str) -> list[float]:
    """Create one run per second with another tenant's key. Returns the seconds that each run waited for its start."""
    threads: list[str] = []
    pause = threading.Event()
    for _ in range(NEIGHBOURS_RUNS):
        threads.append(post(stack, api_key, 0.1))
        pause.wait(1)
    runs = wait_until(lambda: all_started(stack, threads), 60)
    return [(run["started_at"] - run["created_at"]).total_seconds() for run in runs]


def all_started(stack: Stack, threads: list[str]) -> list[dict[str, Any]]:
    found = rows(stack, "thread_id = ANY(%(threads)s)", threads=threads)
    return found if all(run["started_at"] for run in found) else []


def test_nobody_waits_for_all_that_another_has_queued(stack: Stack) -> None:
    own, neighbour = stack.api_key, key(stack)
    idle = neighbours_waits(stack, neighbour)

    with ThreadPoolExecutor(8) as pool:
        flood = list(pool.map(lambda _: post(stack, own, 3.0), range(FLOOD)))
        left = len(rows(stack, "status = 'pending'"))
        waits = neighbours_waits(stack, neighbour)
    behind = len(rows(stack, "status = 'pending'"))
    print(
        f"p50 of the waits: idle {median(idle) * 1000:.0f} ms, beside {left} to {behind} pending runs"
        f" {median(waits) * 1000:.0f} ms; longest {max(waits) * 1000:.0f} ms"
    )

    assert behind > SLOTS, "the flood was not over"
    started = sorted(run["started_at"] for run in rows(stack, "started_at IS NOT NULL"))
    for run in rows(stack, "key_id = (SELECT id FROM api_key WHERE name = 'neighbour')"):
        before = [at for at in started if run["created_at"] < at < run["started_at"]]
        assert len(before) <= 4 * SLOTS
    assert len(flood) == FLOOD
