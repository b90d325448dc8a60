"""Graph hosts that die, freeze, break or are too many: runs end well, and nobody else's are touched."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from langgraph_sdk.client import SyncLangGraphClient

from tests.conftest import OUTSIDE
from tests.support.stack import Stack
from tests.support.waiting import wait_until

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"
MAX_HOSTS = 2


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A platform of this module's own, with few slots for hosts."""
    env = {
        "RUNYARD_MAX_HOSTS": str(MAX_HOSTS),
        "RUNYARD_HOSTS_PER_REVISION": "1",
        "RUNYARD_HOST_STALL_SECONDS": "4",
        **OUTSIDE,
    }
    with Stack(env=env) as own:
        own.deploy(KITCHEN, name="kitchen")
        yield own


@pytest.fixture
def sdk(stack: Stack) -> SyncLangGraphClient:
    return stack.sdk("kitchen")


Made = list[tuple[str, str]]  # threads and runs


def start(sdk: SyncLangGraphClient, graph: str, input: dict[str, Any], count: int) -> Made:
    """Threads and runs, as many as wanted."""
    made = []
    for _ in range(count):
        thread_id = sdk.threads.create()["thread_id"]
        run = sdk.runs.create(thread_id, graph, input=input, durability="sync")
        made.append((thread_id, run["run_id"]))
    return made


def hosts(stack: Stack) -> int:
    """How many there are: a sandbox is several processes, the first of which the runner has started."""
    runner, *_ = stack.pids("runner")  # a fork that is about to be a host bears its name too
    return len(set(stack.pids("host")) & {child.pid for child in psutil.Process(runner).children()})


def rows(stack: Stack, made: Made, columns: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(stack.database_url) as conn:
        ids = [run_id for _, run_id in made]
        return conn.execute(f"SELECT {columns} FROM run WHERE run_id = ANY(%s::uuid[])", (ids,)).fetchall()  # pyright: ignore[reportArgumentType, reportCallIssue]


def wait_for_checkpoints(stack: Stack, made: Made) -> None:
    """Until each of these runs has done a step."""
    with psycopg.connect(stack.database_url, autocommit=True) as conn:
        ids = [run_id for _, run_id in made]
        wait_until(
            lambda: (
                conn.execute(
                    "SELECT count(DISTINCT run_id) FROM checkpoint WHERE run_id = ANY(%s::uuid[])"
                    " AND (metadata->>'step')::int >= 1",
                    (ids,),
                ).fetchone()
                == (len(ids),)
            ),
            60,
        )


def test_the_runs_of_a_killed_host_go_on_together(stack: Stack, sdk: SyncLangGraphClient) -> None:
    made = start(sdk, "counts", {"n": 5, "seconds": 1}, 20)
    wait_for_checkpoints(stack, made)
    stack.kill("host")
    for thread_id, run_id in made:
        sdk.runs.join(thread_id, run_id)

    assert set(rows(stack, made, "status, attempt, deaths")) == {("success", 2, 0)}
    for thread_id, _ in made:
        assert sdk.threads.get_state(thread_id)["values"]["log"] == list(range(5))


def test_a_run_that_kills_every_host_takes_no_other_with_it(stack: Stack, sdk: SyncLangGraphClient) -> None:
    made = start(sdk, "counts", {"n": 3, "seconds": 1}, 6)
    ((thread_id, run_id),) = start(sdk, "dies", {"how": "kill"}, 1)
    for thread, run in made:
        sdk.runs.join(thread, run)
    sdk.runs.join(thread_id, run_id)

    assert set(rows(stack, made, "status, deaths")) == {("success", 0)}
    assert sdk.runs.get(thread_id, run_id)["status"] == "error"


def test_the_runs_of_a_frozen_host_go_on_elsewhere(stack: Stack, sdk: SyncLangGraphClient) -> None:
    made = start(sdk, "counts", {"n": 4, "seconds": 1}, 3)
    wait_for_checkpoints(stack, made)
    stack.kill("host", signal.SIGSTOP)
    for thread_id, run_id in made:
        sdk.runs.join(thread_id, run_id)

    assert set(rows(stack, made, "status, attempt, deaths")) == {("success", 2, 0)}


def test_more_deployments_than_slots_wait_and_all_are_served(stack: Stack) -> None:
    names = [stack.deploy(KITCHEN, name=f"kitchen-{n}") for n in range(MAX_HOSTS + 2)]
    seen = []

    def run(name: str) -> list[Any]:
        found = stack.sdk(name).runs.wait(None, "counts", input={"n": 3, "seconds": 0.3})
        seen.append(hosts(stack))
        assert isinstance(found, dict)
        return found["log"]

    with ThreadPoolExecutor(len(names) * 2) as pool:
        answers = list(pool.map(run, names * 2))

    assert answers == [[0, 1, 2]] * len(answers)
    assert max(seen) <= MAX_HOSTS + 1, "one that stops may be seen beside its successor"


def test_runs_go_on_elsewhere_when_one_breaks_their_host(stack: Stack, sdk: SyncLangGraphClient) -> None:
    (broken,) = start(sdk, "breaks", {}, 1)
    wait_for_checkpoints(stack, [broken])
    made = start(sdk, "counts", {"n": 1}, 3)
    for thread_id, run_id in made:
        sdk.runs.join(thread_id, run_id)

    assert set(rows(stack, made, "status, deaths")) == {("success", 0)}
    sdk.runs.cancel(*broken, wait=True)
    assert sdk.runs.get(*broken)["status"] == "interrupted"


def test_a_host_whose_clock_is_gone_takes_no_other_run_with_it(
    stack: Stack, sdk: SyncLangGraphClient
) -> None:
    beside = start(sdk, "counts", {"n": 3, "seconds": 1}, 3)
    wait_for_checkpoints(stack, beside)
    (poison,) = start(sdk, "stops_clock", {}, 1)
    for thread_id, run_id in [*beside, poison]:
        sdk.runs.join(thread_id, run_id)

    assert set(rows(stack, beside, "status, deaths")) == {("success", 0)}
    assert sdk.runs.get(*poison)["status"] == "error"
