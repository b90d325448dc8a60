"""Processes that stop, die and restart under load, with default settings."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest

from tests.support import counting
from tests.support.counting import KITCHEN, check_whole, rows
from tests.support.reading import Reading
from tests.support.runners import another_runner, lead, workers
from tests.support.stack import Stack
from tests.support.waiting import wait_until

PROCESSES = ("web", "runner", "builder")
DRAIN_SECONDS = 25  # the setting's default
LOAD_SECONDS, REQUESTS_PER_SECOND = 120, 20
MANY = 200
FROZEN = 20
FRESH_SECONDS = 5  # age up to which a worker's heartbeat counts as its current state


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as own:
        own.deploy(KITCHEN, name="kitchen")
        yield own


def test_a_runner_drains_and_hands_over_what_is_too_long(stack: Stack) -> None:
    with another_runner(stack) as leaver:
        short = counting.start(stack, 20, 10, 1)
        long = counting.start(stack, 20, 60, 1)
        (mine,) = [row["id"] for row in workers(stack) if row["pid"] == leaver.pid]
        wait_until(lambda: rows(stack, "owner = %(mine)s AND status = 'running'", mine=mine), 30)
        begun = time.monotonic()
        leaver.send_signal(signal.SIGTERM)
        assert leaver.wait(DRAIN_SECONDS + 30) == 0
        print(f"drained in {time.monotonic() - begun:.1f} s")

    runs = check_whole(stack, long, 60, timeout=120) + check_whole(stack, short, 10)
    again = {str(run["thread_id"]) for run in runs if run["attempt"] > 1}
    assert again
    assert again <= set(long), "what could end in time was left to end"
    assert {run["attempt"] for run in runs} == {1, 2}


def test_a_frozen_leader_loses_its_runs_to_another_runner(stack: Stack) -> None:
    steps = 25
    threads = counting.start(stack, FROZEN, steps, 2)
    wait_until(lambda: len(rows(stack, "status = 'running'")) == FROZEN, 30)
    wait_until(lambda: all(has_begun(stack, thread_id) for thread_id in threads), 30)
    readings = [Reading(stack.client, f"/d/kitchen/threads/{id}/stream") for id in threads[:5]]
    (frozen,) = stack.pids("runner")
    (mine,) = [row["id"] for row in workers(stack) if row["pid"] == frozen]

    with another_runner(stack):
        lead(stack, frozen)
        psutil.Process(frozen).suspend()
        try:
            begun = time.monotonic()
            wait_until(lambda: not rows(stack, "owner = %(mine)s AND status = 'running'", mine=mine), 60)
            wait_until(lambda: len(rows(stack, "attempt = 2 AND status = 'running'")) == FROZEN, 60)
            print(f"all taken over {time.monotonic() - begun:.1f} s after their owner froze")
        finally:
            psutil.Process(frozen).resume()
        wait_until(lambda: is_idle(stack, frozen), 30, what="the frozen runner to let go")
        assert stack.pids("runner") == [frozen]
        runs = check_whole(stack, threads, steps, deaths=1, timeout=120)

    assert {run["attempt"] for run in runs} == {2}
    assert mine not in {run["owner"] for run in runs}
    for thread_id in threads:
        taken = Counter(counting.noted(stack, thread_id))
        assert sorted(taken) == list(range(steps))
        assert taken.total() <= steps + 1, "only the step that was interrupted is taken again"
    for reading in readings:
        wait_until(lambda reading=reading: reading.runs_done(), 30)
        reading.close()
        assert reading.is_in_order()


def has_begun(stack: Stack, thread_id: str) -> bool:
    return bool(stack.sdk("kitchen").threads.get_state(thread_id)["values"].get("log"))


def is_idle(stack: Stack, pid: int) -> bool:
    """Return whether a worker's last heartbeat is recent and reports no running run."""
    (said,) = [row for row in workers(stack) if row["pid"] == pid]
    return said["running"] == 0 and said["silent_seconds"] < FRESH_SECONDS


class Load(threading.Thread):
    """A client that creates runs at a steady rate and repeats requests whose connection broke."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        self.threads: list[str] = []
        self.refused: list[str] = []
        self.reconnects: Counter[str] = Counter()
        self._stack = stack
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        due = time.monotonic()
        headers = {"X-Api-Key": self._stack.api_key}
        with httpx.Client(base_url=self._stack.url, headers=headers, timeout=60) as client:
            while not self._over.is_set():
                self._send(client, str(uuid4()))
                due += 1 / REQUESTS_PER_SECOND
                self._over.wait(max(due - time.monotonic(), 0))

    def _send(self, client: httpx.Client, thread_id: str) -> None:
        asked = counting.body(thread_id, 2, 0.1, if_not_exists="create")
        while True:
            try:
                answer = client.post(
                    f"/d/kitchen/threads/{thread_id}/runs", json=asked, headers={"Idempotency-Key": thread_id}
                )
            except httpx.TransportError as error:
                self.reconnects[type(error).__name__] += 1
                self._over.wait(0.1)
                continue
            if answer.is_success:
                self.threads.append(thread_id)
            else:
                self.refused.append(f"{answer.status_code} {answer.text}")
            return

    def end(self) -> None:
        self._over.set()
        self.join()


def test_all_processes_restarted_one_by_one_under_load(stack: Stack) -> None:
    load = Load(stack)
    end = time.monotonic() + LOAD_SECONDS
    while time.monotonic() < end:
        for name in PROCESSES:
            old = stack.pids(name)[0]
            psutil.Process(old).terminate()
            wait_until(lambda old=old: not psutil.pid_exists(old), 60, what=f"{name} to end")
            wait_until(lambda name=name: stack.pids(name), 30, what=f"another {name}")
            wait_until(stack.is_up, 60)
            wait_until(lambda: {row["kind"] for row in workers(stack)} >= {"runner", "builder"}, 60)
    load.end()
    print(f"{len(load.threads)} runs, reconnects: {dict(load.reconnects)}")

    assert load.refused == []
    runs = check_whole(stack, load.threads, 2, timeout=120)
    assert len(runs) == len(load.threads)


def test_crons_need_no_beat(stack: Stack) -> None:
    made = stack.client.post(
        "/d/kitchen/runs/crons",
        json={
            "assistant_id": "echo",
            "input": {"text": "tick"},
            "schedule": "* * * * *",
            "on_run_completed": "keep",
        },
    )
    cron_id = made.raise_for_status().json()["cron_id"]
    (builder,) = stack.kill("builder", signal.SIGSTOP)  # which runs the schedule of beat
    try:
        fired = wait_until(lambda: len(found := of_cron(stack, cron_id)) == 2 and found, 150)
    finally:
        psutil.Process(builder).resume()
    at = [run["created_at"] for run in fired]
    assert at[0].replace(second=0, microsecond=0) + timedelta(minutes=1) == at[1].replace(
        second=0, microsecond=0
    )

    for name in ("runner", "builder"):
        stack.kill(name, signal.SIGSTOP)
    time.sleep(130)  # two scheduled times pass while no process can fire the cron
    for name in ("runner", "builder"):
        stack.kill(name, signal.SIGCONT)
    wait_until(lambda: len(of_cron(stack, cron_id)) > 2, 60)
    stack.client.delete(f"/d/kitchen/runs/crons/{cron_id}").raise_for_status()

    minutes = [run["created_at"].replace(second=0, microsecond=0) for run in of_cron(stack, cron_id)]
    assert len(minutes) == len(set(minutes)), "late ones fire once"
    assert minutes[2] - minutes[1] >= timedelta(minutes=2)
    assert {run["status"] for run in runs_of_cron_ended(stack, cron_id)} == {"success"}


def of_cron(stack: Stack, cron_id: str) -> list[dict[str, Any]]:
    return rows(stack, "kwargs #>> '{config,configurable,cron_id}' = %(id)s", id=cron_id)


def runs_of_cron_ended(stack: Stack, cron_id: str) -> list[dict[str, Any]]:
    return counting.ended(stack, [str(run["thread_id"]) for run in of_cron(stack, cron_id)], 60)


def test_everything_killed_at_once_comes_back(stack: Stack) -> None:
    threads = counting.start(stack, MANY, 20, 0.5)
    for thread_id in threads:
        stack.client.post(
            f"/d/kitchen/threads/{thread_id}/runs", json=counting.body(thread_id, 1, 0)
        ).raise_for_status()
    readings = [Reading(stack.client, f"/d/kitchen/threads/{id}/stream") for id in threads[:20]]
    wait_until(lambda: len(rows(stack, "status = 'running'")) >= MANY // 2, 60)
    wait_until(lambda: all(reading.parts for reading in readings), 30)

    stack.kill_all()
    begun = time.monotonic()
    stack.start()

    runs = counting.ended(stack, threads, 180)
    print(f"all {len(runs)} ended {time.monotonic() - begun:.1f} s after the new start began")
    assert [run["status"] for run in runs] == ["success"] * (2 * MANY)
    assert max(run["attempt"] for run in runs) <= 2
    for reading in readings:
        wait_until(lambda reading=reading: len(reading.runs_done()) == 2, 30)
        reading.close()
        assert reading.is_in_order()
