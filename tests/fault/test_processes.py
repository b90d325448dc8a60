"""Every process killed, stopped or started at an awkward moment: no request, run or event is lost or doubled."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import psutil
import pytest
from langgraph_sdk.client import SyncLangGraphClient

from cli.machine.health import Unhealthy, check
from cli.machine.procfile import PROJECT
from shared.settings import Settings
from tests.support import counting
from tests.support.counting import KITCHEN, check_whole, rows
from tests.support.cutting_proxy import Break, proxy
from tests.support.reading import Reading
from tests.support.runners import runners
from tests.support.stack import Stack
from tests.support.waiting import wait_until

DRAIN_SECONDS = 2
GRACE_SECONDS = 30
MANY = 100  # signals in a row: some arrive while the one before is being handled
PROCESSES = ("web", "runner", "builder", "beat")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A platform of this module's own: who is stopped hands over, or a lease of a minute would be noticed."""
    env = {"RUNYARD_LEASE_SECONDS": "60", "RUNYARD_DRAIN_SECONDS": str(DRAIN_SECONDS)}
    with Stack(env=env) as own:
        own.deploy(KITCHEN, name="kitchen")
        yield own


@pytest.fixture
def sdk(stack: Stack) -> SyncLangGraphClient:
    return stack.sdk("kitchen")


@pytest.mark.parametrize("headers", [{"Idempotency-Key": "the-same"}, {}], ids=["with a key", "without"])
def test_a_request_whose_answer_died_with_web_may_be_sent_again(
    stack: Stack, sdk: SyncLangGraphClient, headers: dict[str, str]
) -> None:
    thread_id = sdk.threads.create()["thread_id"]
    path = f"/d/kitchen/threads/{thread_id}/runs"
    body = counting.body(thread_id, 2, 0)
    own = {"X-Api-Key": stack.api_key, **headers}
    with proxy("127.0.0.1", stack.port) as between, ThreadPoolExecutor() as pool:
        between.breaks.append(Break(f"POST {path}".encode(), at=b"HTTP/1.1"))
        lost = pool.submit(httpx.post, between.url + path, json=body, headers=own, timeout=30)
        (made,) = wait_until(lambda: rows(stack, "thread_id = %(id)s", id=thread_id))
        stack.kill("web")
        assert isinstance(lost.exception(), httpx.TransportError)

    wait_until(stack.is_up, 30)
    answer = httpx.post(stack.url + path, json=body, headers=own).raise_for_status()

    runs = {run["run_id"] for run in sdk.runs.list(thread_id)}
    assert runs == {str(made["run_id"]), answer.json()["run_id"]}
    assert len(runs) == (1 if headers else 2)
    wait_until(lambda: {run["status"] for run in sdk.runs.list(thread_id)} == {"success"}, 30)


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGTERM,) * MANY, (signal.SIGINT,) * MANY, (signal.SIGQUIT,) * MANY],
    ids=lambda numbers: f"{numbers[0].name}*{len(numbers)}",
)
def test_whoever_is_asked_to_stop_stops_in_time_and_loses_nothing(
    stack: Stack, numbers: tuple[signal.Signals, ...]
) -> None:
    threads = counting.start(stack, 10, 8, 0.4)
    readings = [Reading(stack.client, f"/d/kitchen/threads/{thread_id}/stream") for thread_id in threads[:3]]
    wait_until(lambda: len(rows(stack, "status = 'running'")) == 10 and all(r.parts for r in readings), 30)
    old = {name: stack.pids(name)[0] for name in PROCESSES}
    said = len(stack.log.read_text())

    for number in numbers:
        for pid in old.values():
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).send_signal(number)

    for name, pid in old.items():
        wait_until(lambda pid=pid: not psutil.pid_exists(pid), GRACE_SECONDS, what=f"{name} to end")
    check_whole(stack, threads, 8)
    wait_until(lambda: all(stack.pids(name) for name in PROCESSES) and stack.is_up(), 30)
    for reading in readings:
        wait_until(lambda r=reading: r.runs_done(), 30)
        reading.close()
        assert reading.is_in_order()
    written = stack.log.read_text()[said:]
    assert "Traceback" not in written
    ends = re.findall(r"(\w+) *│ (ended with exit code \d+|was killed by)", written)
    assert dict(ends) == dict.fromkeys(PROCESSES, "ended with exit code 0")


@contextmanager
def in_pool(stack: Stack, pool: str) -> Iterator[None]:
    """New runs of the kitchen are of this pool meanwhile."""
    found = stack.client.get("/v2/deployments?name=kitchen").json()["resources"][0]
    stack.client.patch(f"/v2/deployments/{found['id']}", json={"pool": pool}).raise_for_status()
    try:
        yield
    finally:
        stack.client.patch(f"/v2/deployments/{found['id']}", json={"pool": "default"}).raise_for_status()


def test_runners_that_come_and_go_together_take_each_run_once(stack: Stack, sdk: SyncLangGraphClient) -> None:
    with in_pool(stack, "burst"):
        threads = counting.start(stack, 100, 2, 0.5)
        with runners(stack, "burst", 3) as first:
            wait_until(lambda: len(rows(stack, "pool = 'burst' AND status = 'success'")) >= 10, 60)
            for runner in first:
                runner.send_signal(signal.SIGTERM)
            with runners(stack, "burst", 3):
                assert [runner.wait(GRACE_SECONDS) for runner in first] == [0] * 3
                runs = check_whole(stack, threads, 2)

    once = [str(run["thread_id"]) for run in runs if run["attempt"] == 1]
    assert once
    for thread_id in once:
        assert counting.noted(stack, thread_id) == [0, 1]


def health(stack: Stack, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "cli", "health", *arguments]
    done = subprocess.run(command, cwd=PROJECT, env=stack.environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def answered(stack: Stack, runner: int) -> str:
    """The same within the moment that a drain takes: asked without a process."""
    try:
        return check(Settings.from_env(stack.environment), "runner", is_ready=True, pid=runner)
    except Unhealthy as error:
        return str(error)


def test_a_runner_that_is_well_is_healthy_and_not_one_that_is_frozen_drains_or_is_gone(stack: Stack) -> None:
    for kind in PROCESSES:
        wait_until(lambda kind=kind: health(stack, kind, "--ready")[0] == 0, 60, f"{kind} to be ready")
    (runner,) = stack.pids("runner")

    psutil.Process(runner).suspend()
    code, said = health(stack, "runner")
    psutil.Process(runner).resume()
    assert (code, "frozen" in said) == (1, True)
    wait_until(lambda: health(stack, "runner")[0] == 0, 30)

    counting.start(stack, 1, 100, 0.4)
    wait_until(lambda: rows(stack, "status = 'running'"), 30)
    psutil.Process(runner).terminate()
    wait_until(lambda: "it drains" in answered(stack, runner), 30)

    wait_until(lambda: health(stack, "runner", "--ready")[0] == 0, 60, "another runner to be ready")
    assert health(stack, "runner", "--pid", str(runner))[0] == 1
