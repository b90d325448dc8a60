"""User code beside the graphs while hosts, runners and Redis fail: who asks is answered or refused, and waits for nobody."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.stack import Stack
from tests.support.waiting import wait_until

BRITTLE = Path(__file__).parent.parent / "projects" / "brittle"
PATIENCE = 60.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A platform of this module's own, with two deployments of the project."""
    env = {"RUNYARD_HOSTS_PER_REVISION": "1", "RUNYARD_HOST_STALL_SECONDS": "4"}
    with Stack(env=env) as own:
        own.deploy(BRITTLE, name="brittle")
        own.deploy(BRITTLE, name="steady")
        yield own


@pytest.fixture
def brittle(stack: Stack) -> Iterator[httpx.Client]:
    with client(stack, "brittle") as found:
        wait_until(lambda: is_served(found), PATIENCE, what="the deployment to answer")
        yield found


def client(stack: Stack, name: str) -> httpx.Client:
    return httpx.Client(base_url=f"{stack.url}/d/{name}/", timeout=PATIENCE)


def is_served(site: httpx.Client) -> bool:
    """Whether both its authorization and its app answer."""
    return site.post("threads/search", json={}).status_code == site.get("pid").status_code == 200


def host_of(site: httpx.Client, stack: Stack) -> list[int]:
    """The processes of the host that answers, as its runner sees them: a sandbox is several."""
    inner = int(site.get("pid").text)
    for pid in stack.pids("host"):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        seen_as = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        if int(seen_as[-1]) == inner and (len(seen_as) > 1 or pid == inner):
            return [pid, *(parent.pid for parent in psutil.Process(pid).parents() if is_host(parent, stack))]
    raise AssertionError("no host answers with this process")


def is_host(process: psutil.Process, stack: Stack) -> bool:
    return process.pid in stack.pids("host")


def read_to_the_end(site: httpx.Client) -> int:
    """Read what never ends until it is cut off; how many lines came."""
    lines = 0
    with site.stream("GET", "numbers") as response:
        try:
            for _ in response.iter_lines():
                lines += 1
        except httpx.TransportError:
            return lines
    raise AssertionError("an answer without end has ended well")


def slow_search(site: httpx.Client) -> httpx.Response:
    return site.post("threads/search", json={}, headers={"x-seconds": "2"})


def test_a_question_whose_host_is_killed_is_answered_by_another(stack: Stack, brittle: httpx.Client) -> None:
    pids = host_of(brittle, stack)
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(slow_search, brittle) for _ in range(5)]
        time.sleep(1)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        answers = [one.result() for one in asked]

    assert [answer.status_code for answer in answers] == [200] * 5


def test_a_host_that_stands_still_holds_up_nobody_else(stack: Stack, brittle: httpx.Client) -> None:
    with client(stack, "steady") as steady:
        assert is_served(steady)
        for pid in host_of(brittle, stack):
            os.kill(pid, signal.SIGSTOP)
        with ThreadPoolExecutor() as pool:
            stuck = [pool.submit(slow_search, brittle) for _ in range(20)]
            for _ in range(20):
                assert is_served(steady)
            statuses = {one.result().status_code for one in stuck}

    assert statuses <= {200, 503, 504}
    wait_until(lambda: is_served(brittle), PATIENCE, what="another host to answer")


def test_an_answer_of_an_app_whose_host_is_killed_is_cut_off(stack: Stack, brittle: httpx.Client) -> None:
    pids = host_of(brittle, stack)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read_to_the_end, brittle)
        time.sleep(1)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert reading.result(PATIENCE) > 0
    assert is_served(brittle)


def test_an_answer_of_an_app_whose_runner_is_killed_is_cut_off(stack: Stack, brittle: httpx.Client) -> None:
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read_to_the_end, brittle)
        time.sleep(1)
        stack.restart("runner")
        assert reading.result(PATIENCE) > 0
    wait_until(lambda: is_served(brittle), PATIENCE, what="another runner to answer")


def test_a_redis_that_comes_back_empty_ends_what_was_open_and_nothing_else(
    stack: Stack, brittle: httpx.Client
) -> None:
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read_to_the_end, brittle)
        time.sleep(1)
        stack.restart("valkey", empty=True)
        assert reading.result(PATIENCE) > 0
    wait_until(lambda: is_served(brittle), PATIENCE, what="questions to be answered again")
