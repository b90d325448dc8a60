"""A runner with ten slots: what becomes of a backlog when the runner drains."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.support import counting
from tests.support.counting import KITCHEN, rows
from tests.support.runners import workers
from tests.support.stack import Stack
from tests.support.waiting import wait_until

SLOTS, BACKLOG = 10, 80
DRAIN_SECONDS = 60


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    env = {"RUNYARD_RUNNER_SLOTS": str(SLOTS), "RUNYARD_DRAIN_SECONDS": str(DRAIN_SECONDS)}
    with Stack(env=env) as own:
        own.deploy(KITCHEN, name="kitchen")
        yield own


def stop_by_signal(stack: Stack, runner: int, worker: str) -> None:
    os.kill(runner, signal.SIGTERM)


def stop_by_request(stack: Stack, runner: int, worker: str) -> None:
    stack.client.post(f"/v2/workers/{worker}/drain").raise_for_status()


@pytest.mark.parametrize("stop", [stop_by_signal, stop_by_request])
def test_a_runner_that_drains_under_a_backlog_hands_nothing_over(
    stack: Stack, stop: Callable[[Stack, int, str], None]
) -> None:
    (runner,) = wait_until(lambda: stack.pids("runner"), 60)
    (worker,) = wait_until(lambda: [row["id"] for row in workers(stack) if row["pid"] == runner], 60)
    threads = counting.start(stack, BACKLOG, 4, 1.0)
    wait_until(lambda: len(rows(stack, "owner = %(id)s AND status = 'success'", id=worker)) >= SLOTS, 60)

    stop(stack, runner, worker)
    wait_until(lambda: [row["state"] for row in workers(stack) if row["id"] == worker] == ["draining"], 30)
    in_flight = [row["run_id"] for row in rows(stack, "status = 'running' AND owner = %(id)s", id=worker)]
    assert in_flight
    wait_until(lambda: not psutil.pid_exists(runner), DRAIN_SECONDS + 30)

    left = rows(stack, "run_id = ANY(%(ids)s)", ids=in_flight)
    assert {(row["status"], row["attempt"], row["owner"]) for row in left} == {("success", 1, worker)}
    ended = counting.check_whole(stack, threads, 4, timeout=120)
    assert {row["attempt"] for row in ended} == {1}
