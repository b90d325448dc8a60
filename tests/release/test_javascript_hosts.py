"""Hosts of JavaScript graphs that are killed, exhausted or blocked: their runs continue or end as those of Python hosts."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_sdk.errors import NotFoundError

from cli.machine.procfile import PROJECT
from tests.support.levels import LEVELS
from tests.support.node_hosts import PROJECT as GRAPHS
from tests.support.stack import Stack
from tests.support.waiting import wait_until

EXAMPLE = PROJECT / "examples" / "typescript"
NAMES = ("counts", "works", "fills_heap", "exhausts_heap", "fills_buffers", "blocks")
MEMORY_MB, HEAP_MB = 400, 240
PATIENCE_SECONDS = 120.0
CHILD = ["sleep", "54321"]  # which graphs start and leave behind


@pytest.fixture(scope="module", params=sorted(LEVELS, reverse=True))
def level(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def stack(level: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Platform that runs user code at this level, with one host for each deployment."""
    env = {
        "RUNYARD_HOSTS_PER_REVISION": "1",
        "RUNYARD_HOST_STALL_SECONDS": "15",
        "RUNYARD_HOST_MEMORY_MB": str(MEMORY_MB),
        **LEVELS[level],
    }
    with Stack(env=env) as own:
        own.deploy(project(tmp_path_factory.mktemp("faults")), name="faults")
        yield own


def project(folder: Path) -> Path:
    """Write a project with the packages of the example, which most machines have installed."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(EXAMPLE / name, folder)
    shutil.copy(GRAPHS / "faults.ts", folder)
    config = {"node_version": "24", "graphs": {name: f"./faults.ts:{name}" for name in NAMES}}
    (folder / "langgraph.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def sdk(stack: Stack) -> SyncLangGraphClient:
    return stack.sdk("faults")


def start(sdk: SyncLangGraphClient, graph: str, **input: Any) -> tuple[str, str]:
    """Start a run on a new thread. Returns the ids of both."""
    thread_id = sdk.threads.create()["thread_id"]
    return thread_id, sdk.runs.create(thread_id, graph, input=input, durability="sync")["run_id"]


def row(stack: Stack, run_id: str, columns: str) -> tuple[Any, ...]:
    with psycopg.connect(stack.database_url) as conn:
        found = conn.execute(f"SELECT {columns} FROM run WHERE run_id = %s", (run_id,)).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert found is not None
    return found


def log_of(stack: Stack) -> list[str]:
    """Return the messages of the deployment's log."""
    with psycopg.connect(stack.database_url) as conn:
        found = conn.execute("SELECT message FROM log_line ORDER BY 1").fetchall()
    return [message for (message,) in found]


def children() -> list[psutil.Process]:
    """Return the processes that graphs left behind."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cmdline() == CHILD and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_children(level: int) -> None:
    """Wait until the sandbox has ended what its graphs left behind. Without a sandbox, nothing else knows these processes."""
    if level == 2:
        wait_until(lambda: not children(), what="the end of a killed host's children")
    for child in children():
        child.kill()


def check_counted(sdk: SyncLangGraphClient, thread_id: str, parts: list[Any], steps: int) -> None:
    """The run waits for its answer, with each step in the state once, each checkpoint once, and each event once."""
    ids = [int(part.id) for part in parts]
    assert ids == sorted(set(ids))
    thread = sdk.threads.get(thread_id)
    assert thread["status"] == "interrupted"
    assert [item["value"] for (item,) in thread["interrupts"].values()] == ["go on?"]
    assert parts[-1].data["__interrupt__"][0]["value"] == "go on?"
    sdk.runs.wait(thread_id, "counts", command={"resume": "yes"})
    history: Any = sdk.threads.get_history(thread_id, limit=50)
    assert history[0]["values"]["log"] == [*range(steps), "yes"]
    numbers = [state["metadata"]["step"] for state in history]
    assert numbers == list(range(steps + 1, -2, -1))


@pytest.mark.parametrize("phases", [["interrupt", "end"], ["begin", "step"]])
def test_a_run_goes_on_whenever_its_host_is_killed(
    level: int, stack: Stack, sdk: SyncLangGraphClient, phases: list[str]
) -> None:
    thread_id = sdk.threads.create()["thread_id"]
    parts = list(
        sdk.runs.stream(
            thread_id,
            "counts",
            input={"n": 3, "file": thread_id},
            config={"configurable": {"dies": phases}},
            stream_mode=["custom", "values"],
            stream_resumable=True,
            durability="sync",
        )
    )

    (run,) = sdk.runs.list(thread_id)
    assert row(stack, run["run_id"], "status, attempt, deaths") == ("success", 3, 2)
    assert [part.data["attempt"] for part in parts if part.event == "metadata"] == [1, 2, 3]
    (notes,) = stack.data_dir.glob(f"revisions/*/home/{thread_id}")
    assert notes.read_text().split() == (["0", "1", "1", "2"] if "step" in phases else ["0", "1", "2"])
    check_counted(sdk, thread_id, parts, 3)
    end_children(level)


def test_a_checkpoint_that_is_committed_while_its_host_is_killed_is_there_once(
    stack: Stack, sdk: SyncLangGraphClient
) -> None:
    thread_id = sdk.threads.create()["thread_id"]
    run_id = sdk.runs.create(
        thread_id,
        "counts",
        input={"n": 3, "seconds": 1, "file": thread_id},
        stream_mode=["custom", "values"],
        stream_resumable=True,
        durability="sync",
    )["run_id"]
    (notes,) = wait_until(lambda: [*stack.data_dir.glob(f"revisions/*/home/{thread_id}")], PATIENCE_SECONDS)
    with psycopg.connect(stack.database_url) as conn:
        conn.execute("SELECT 1 FROM run WHERE run_id = %s FOR UPDATE", (run_id,))
        wait_until(lambda: is_waited_for(stack, conn), PATIENCE_SECONDS, what="the commit of a checkpoint")
        stack.kill("javascript host")
        time.sleep(0.5)  # until the runner has noticed
    parts = list(sdk.runs.join_stream(thread_id, run_id, last_event_id="-1"))

    assert row(stack, run_id, "status, attempt") == ("success", 2)
    steps = [int(line) for line in notes.read_text().split()]
    assert steps == sorted(steps)
    assert len(steps) <= 4, "at most the interrupted step is repeated"
    check_counted(sdk, thread_id, parts, 3)


def is_waited_for(stack: Stack, conn: psycopg.Connection) -> bool:
    """Return whether another connection waits for a lock of this one."""
    with psycopg.connect(stack.database_url) as other:
        found = other.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))",
            (conn.info.backend_pid,),
        ).fetchone()
    return found != (0,)


def test_a_host_that_uses_too_much_memory_is_replaced_and_the_reason_is_reported(
    stack: Stack, sdk: SyncLangGraphClient
) -> None:
    assert sdk.runs.wait(None, "fills_heap", input={"n": int(HEAP_MB * 0.8)}) is not None
    for _ in range(3):
        answer: Any = sdk.runs.wait(None, "works", input={})
        assert answer["log"] == ["worked"], "in a nearly full heap"
    exhausted = start(sdk, "exhausts_heap")
    sdk.runs.join(*exhausted)
    ended: Any = sdk.threads.get(exhausted[0])
    buffers = start(sdk, "fills_buffers")
    wait_until(lambda: row(stack, buffers[1], "last_death")[0], PATIENCE_SECONDS)
    with suppress(NotFoundError):  # it may have ended
        sdk.runs.cancel(*buffers, wait=True)

    assert f"used more than {HEAP_MB} MiB for JavaScript objects" in str(ended["error"])
    assert str(row(stack, buffers[1], "last_death")[0]).endswith(f"more than {MEMORY_MB} MiB")
    assert not [line for line in log_of(stack) if "native" in line.lower() or "GCs" in line]


def test_a_blocked_loop_is_named_and_its_run_ends_and_other_runs_go_on(
    stack: Stack, sdk: SyncLangGraphClient
) -> None:
    deployment = f"/v2/deployments/{stack.record('faults')['id']}"
    beside = [start(sdk, "counts", n=3, seconds=1, file=f"beside-{number}") for number in range(3)]
    stack.client.patch(deployment, json={"limits": {"run_timeout_seconds": 8}}).raise_for_status()
    late = start(sdk, "blocks")
    stack.client.patch(deployment, json={"limits": {"run_timeout_seconds": None}}).raise_for_status()
    for run in (*beside, late):
        sdk.runs.join(*run)

    assert {sdk.threads.get(thread_id)["status"] for thread_id, _ in beside} == {"interrupted"}
    assert row(stack, late[1], "status") == ("timeout",)
    assert [line for line in log_of(stack) if line.startswith("block (faults.ts:")], log_of(stack)
    wait_until(lambda: not children(), PATIENCE_SECONDS)


def test_a_host_ends_with_its_runner_while_its_loop_is_blocked(
    level: int, stack: Stack, sdk: SyncLangGraphClient
) -> None:
    run = start(sdk, "blocks")
    wait_until(children, PATIENCE_SECONDS)
    hosts = [psutil.Process(pid) for pid in stack.pids("javascript host")]
    stack.kill("runner")
    _, alive = psutil.wait_procs(hosts, 5)

    assert not alive
    end_children(level)
    sdk.runs.cancel(*run, wait=True)
    assert sdk.runs.get(*run)["status"] == "interrupted"
