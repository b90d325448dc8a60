"""A runner with ten slots and one host: a backlog while the runner drains, and runs that call runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from shared.runs import nesting
from tests.support import counting
from tests.support.counting import KITCHEN, rows
from tests.support.runners import workers
from tests.support.stack import Stack
from tests.support.waiting import wait_until

SLOTS, BACKLOG = 10, 40
DRAIN_SECONDS = 60


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    env = {
        "RUNYARD_RUNNER_SLOTS": str(SLOTS),
        "RUNYARD_DRAIN_SECONDS": str(DRAIN_SECONDS),
        "RUNYARD_MAX_HOSTS": "1",
        "RUNYARD_HOST_THREADS": "8",
    }
    with Stack(env=env) as own:
        own.deploy(KITCHEN, name="kitchen")
        yield own


def drain_by_signal(stack: Stack, runner: int, worker: str) -> None:
    os.kill(runner, signal.SIGTERM)


def has_ended(stack: Stack, runner: int) -> bool:
    """After a signal, the supervisor starts another runner."""
    return not psutil.pid_exists(runner)


def drain_by_request(stack: Stack, runner: int, worker: str) -> None:
    assert stack.runyard("workers", "drain", worker).returncode == 0


def is_idle_and_resumed(stack: Stack, runner: int) -> bool:
    """After a request, the runner stays and executes nothing; then it is resumed."""
    waited = stack.runyard("workers", "drain", "--wait", str(DRAIN_SECONDS))
    assert (waited.returncode, "No other runner" in waited.stderr) == (0, True), waited.stderr
    assert {row["status"] for row in rows(stack)} == {"success", "pending"}
    assert stack.runyard("workers", "resume").returncode == 0
    return psutil.pid_exists(runner)


@pytest.mark.parametrize(
    ("drain", "is_drained"),
    [(drain_by_request, is_idle_and_resumed), (drain_by_signal, has_ended)],
    ids=["request", "signal"],
)
def test_a_runner_that_drains_under_a_backlog_hands_nothing_over(
    stack: Stack, drain: Callable[[Stack, int, str], None], is_drained: Callable[[Stack, int], bool]
) -> None:
    (runner,) = wait_until(lambda: stack.pids("runner"), 60)
    (worker,) = wait_until(lambda: [row["id"] for row in workers(stack) if row["pid"] == runner], 60)
    threads = counting.start(stack, BACKLOG, 4, 1.0)
    wait_until(lambda: len(rows(stack, "owner = %(id)s AND status = 'success'", id=worker)) >= SLOTS, 60)

    drain(stack, runner, worker)
    wait_until(lambda: [row["state"] for row in workers(stack) if row["id"] == worker] == ["draining"], 30)
    in_flight = [row["run_id"] for row in rows(stack, "status = 'running' AND owner = %(id)s", id=worker)]
    assert in_flight
    wait_until(lambda: is_drained(stack, runner), DRAIN_SECONDS + 30)

    left = rows(stack, "run_id = ANY(%(ids)s)", ids=in_flight)
    assert {(row["status"], row["attempt"], row["owner"]) for row in left} == {("success", 1, worker)}
    ended = counting.check_whole(stack, threads, 4, timeout=120)
    assert {row["attempt"] for row in ended} == {1}


DEEP, AT_ONCE = 3, 12  # more than slots, and more than threads of a host
NESTED_SECONDS = 240


def all_reach_the_bottom(stack: Stack, graph: str, input: dict[str, Any], *, at_once: int = AT_ONCE) -> None:
    """Start this many runs whose graph calls itself. Checks that each ends with the log of the deepest run."""
    body = {"assistant_id": graph, "input": input}

    def answer(_: int) -> list[str]:
        sent = stack.client.post("/d/kitchen/runs/wait", json=body, timeout=NESTED_SECONDS)
        return sent.raise_for_status().json()["log"]

    with ThreadPoolExecutor(at_once) as pool:
        answers = list(pool.map(answer, range(at_once)))
    assert answers == [["bottom", *["called"] * input["n"]]] * at_once


@pytest.mark.parametrize("how", ["waits", "polls"])
def test_runs_that_call_their_own_deployment_do_not_wait_for_each_other(stack: Stack, how: str) -> None:
    all_reach_the_bottom(stack, "recurses", {"n": DEEP, "how": how})


def test_nor_do_those_that_keep_a_thread_meanwhile_or_are_limited(stack: Stack) -> None:
    limit = f"/v2/deployments/{stack.record('kitchen')['id']}"
    stack.client.patch(limit, json={"limits": {"max_concurrent_runs": 3}}).raise_for_status()
    try:
        url = f"{stack.url}/d/kitchen"
        how = f"{url} {url} {stack.api_key}"
        all_reach_the_bottom(stack, "passes_on", {"n": DEEP, "how": how})
    finally:
        stack.client.patch(limit, json={"limits": {"max_concurrent_runs": 0}}).raise_for_status()


def test_nor_do_two_deployments_that_call_each_other_on_a_runner_with_one_host(stack: Stack) -> None:
    stack.deploy(KITCHEN, name="pantry")
    how = f"{stack.url}/d/pantry {stack.url}/d/kitchen {stack.api_key}"
    all_reach_the_bottom(stack, "passes_on", {"n": 2, "how": how}, at_once=SLOTS)


def test_a_graph_that_calls_itself_without_end_is_refused_the_eleventh_call(stack: Stack) -> None:
    thread_id = stack.sdk("kitchen").threads.create()["thread_id"]
    body = {"assistant_id": "recurses", "input": {"n": 100, "how": "polls"}}
    path = f"/d/kitchen/threads/{thread_id}/runs/wait"
    stack.client.post(path, json=body, timeout=NESTED_SECONDS).raise_for_status()

    failed = rows(stack, "graph_id = 'recurses' AND status = 'error'")
    assert [row["depth"] for row in failed] == [nesting.MAX_DEPTH]
    assert "nested 10 deep" in failed[0]["error"]["message"]
