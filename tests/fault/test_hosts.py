"""Graph hosts that freeze or break: their runs end, and other runs are not affected.

Calls of user code that are in progress when a host, a runner or Redis fails are answered, refused or cut off.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
from langgraph_sdk.client import SyncLangGraphClient
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.conftest import OUTSIDE
from tests.support.stack import Stack
from tests.support.waiting import wait_until

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"
BRITTLE = KITCHEN.with_name("brittle")
PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Platform of this module, with one host for each deployment."""
    env = {"RUNYARD_HOSTS_PER_REVISION": "1", "RUNYARD_HOST_STALL_SECONDS": "4", **OUTSIDE}
    with Stack(env=env) as own:
        own.deploy(KITCHEN, name="kitchen")
        own.deploy(BRITTLE, name="brittle")
        yield own


Made = list[tuple[str, str]]  # thread ids and run ids


def start(sdk: SyncLangGraphClient, graph: str, input: dict[str, Any], count: int) -> Made:
    """Create `count` threads with a run each. Returns their ids."""
    made = []
    for _ in range(count):
        thread_id = sdk.threads.create()["thread_id"]
        run = sdk.runs.create(thread_id, graph, input=input, durability="sync")
        made.append((thread_id, run["run_id"]))
    return made


def rows(stack: Stack, made: Made, columns: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(stack.database_url) as conn:
        ids = [run_id for _, run_id in made]
        return conn.execute(f"SELECT {columns} FROM run WHERE run_id = ANY(%s::uuid[])", (ids,)).fetchall()  # pyright: ignore[reportArgumentType, reportCallIssue]


def wait_for_checkpoints(stack: Stack, made: Made) -> None:
    """Wait until each of these runs has completed a step."""
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


def test_the_runs_of_a_frozen_host_go_on_elsewhere(stack: Stack, sdk: SyncLangGraphClient) -> None:
    made = start(sdk, "counts", {"n": 4, "seconds": 1}, 3)
    wait_for_checkpoints(stack, made)
    stack.kill("host", signal.SIGSTOP)
    for thread_id, run_id in made:
        sdk.runs.join(thread_id, run_id)

    assert set(rows(stack, made, "status, attempt, deaths")) == {("success", 2, 0)}


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


@pytest.fixture
def brittle(stack: Stack) -> Iterator[httpx.Client]:
    with client(stack, "brittle") as found:
        wait_until(lambda: is_served(found), PATIENCE_SECONDS, what="the deployment to answer")
        yield found


def client(stack: Stack, name: str) -> httpx.Client:
    return httpx.Client(base_url=f"{stack.url}/d/{name}/", timeout=PATIENCE_SECONDS)


def is_served(site: httpx.Client) -> bool:
    """Return whether both its authorization and its app answer."""
    return site.post("threads/search", json={}).status_code == site.get("hello").status_code == 200


def hosts_of(stack: Stack, name: str) -> list[psutil.Process]:
    """Return the processes of a deployment's hosts. A sandbox has several."""
    revision_id = stack.record(name)["active_revision_id"]
    processes = [psutil.Process(pid) for pid in stack.pids("host")]
    return [process for process in processes if revision_id in " ".join(process.cmdline())]


def slow_search(site: httpx.Client) -> httpx.Response:
    return site.post("threads/search", json={}, headers={"x-seconds": "2"})


def test_a_host_that_stands_still_holds_up_nobody_else(
    stack: Stack, sdk: SyncLangGraphClient, thread_id: str, brittle: httpx.Client
) -> None:
    sdk.runs.wait(thread_id, "echo", input={"text": "x"})
    for process in hosts_of(stack, "brittle"):
        process.suspend()
    with ThreadPoolExecutor() as pool:
        stuck = [pool.submit(slow_search, brittle) for _ in range(20)]
        for _ in range(20):  # the host of the other deployment answers
            assert sdk.threads.get_state(thread_id)["values"]["log"] == ["x"]
        statuses = {one.result().status_code for one in stuck}

    assert statuses <= {200, 503, 504}
    wait_until(lambda: is_served(brittle), PATIENCE_SECONDS, what="another host to answer")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_read_whose_runner_is_lost_is_sent_again_but_not_an_update(
    stack: Stack, brittle: httpx.Client, number: signal.Signals
) -> None:
    def begun() -> int:
        return sum(path.stat().st_size for path in stack.data_dir.glob("revisions/*/home/pondered"))

    before = begun()
    thread_id = brittle.post("threads", json={"metadata": {"graph_id": "ponders"}}).json()["thread_id"]
    with ThreadPoolExecutor() as pool:
        update = {"values": {"text": "x"}, "as_node": "say"}
        updating = pool.submit(brittle.post, f"threads/{thread_id}/state", json=update)
        reading = pool.submit(brittle.get, f"threads/{thread_id}/history")
        wait_until(lambda: begun() == before + 2, PATIENCE_SECONDS)
        time.sleep(0.5)  # until web knows which runner has taken them
        stack.kill("runner", number)
        updated = updating.result()
        assert "in time" not in updated.json()["detail"], "heartbeats show it before the time limit"
        if number == signal.SIGSTOP:
            stack.kill("runner", signal.SIGCONT)

        assert (updated.status_code, reading.result().status_code) == (504, 200)
        assert begun() == before + 3


def test_exchanges_with_a_killed_host_are_cut_off_reported_as_lost_or_closed(
    stack: Stack, brittle: httpx.Client
) -> None:
    def body() -> Iterator[bytes]:
        yield bytes(100_000)
        stack.kill("host")
        yield bytes(100_000)

    with (
        brittle.stream("GET", "numbers?count=1000") as answer,
        connect(f"ws{stack.url.removeprefix('http')}/d/brittle/listen") as socket,
    ):
        lines = answer.iter_lines()
        assert next(lines) == "0"
        assert socket.recv(PATIENCE_SECONDS) == "listening"
        unanswered = brittle.post("upload", content=body())
        with pytest.raises(httpx.RemoteProtocolError):  # it must not look like a complete answer
            list(lines)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(PATIENCE_SECONDS)

    assert unanswered.status_code == 502
    assert unanswered.json() == {"detail": "The deployment's app exited before it answered"}
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1011
    assert is_served(brittle)


def restart_runner(stack: Stack) -> None:
    stack.restart("runner")


def empty_redis(stack: Stack) -> None:
    stack.restart("valkey", empty=True)


@pytest.mark.parametrize("fault", [restart_runner, empty_redis])
def test_an_answer_of_an_app_is_cut_off_and_the_next_one_is_served(
    stack: Stack, brittle: httpx.Client, fault: Callable[[Stack], None]
) -> None:
    """An incomplete answer must not look like a complete one."""
    with brittle.stream("GET", "numbers?count=1000") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "0"
        fault(stack)
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    wait_until(lambda: is_served(brittle), PATIENCE_SECONDS, what="the app to be served again")


def test_a_node_that_blocks_the_loop_does_not_block_others(sdk: SyncLangGraphClient, thread_id: str) -> None:
    blocked = sdk.runs.create(thread_id, "blocks", input={"seconds": 60})
    wait_until(lambda: sdk.runs.get(thread_id, blocked["run_id"])["status"] == "running")

    assert sdk.runs.wait(None, "echo", input={"text": "still here"}) is not None

    sdk.runs.cancel(thread_id, blocked["run_id"], wait=True)
    assert sdk.runs.get(thread_id, blocked["run_id"])["status"] == "interrupted"


def test_a_graph_that_hoards_memory_is_stopped(sdk: SyncLangGraphClient, thread_id: str) -> None:
    with pytest.raises(Exception, match=r"MiB|killed|MemoryError"):
        sdk.runs.wait(thread_id, "hoards", input={"text": "x"})

    assert sdk.runs.list(thread_id)[0]["status"] == "error"


def test_what_user_code_prints_is_in_the_log(stack: Stack, sdk: SyncLangGraphClient) -> None:
    sdk.runs.wait(None, "prints", input={"n": 20_000})

    def lines() -> list[str]:
        path = f"/v1/projects/{stack.record('kitchen')['id']}/deploy_logs"
        answer = stack.client.post(path, json={"query": "hello from the kitchen"})
        return [line["message"] for line in answer.json()["logs"]]

    wait_until(lambda: any("hello from the kitchen" in line for line in lines()), timeout=15)
