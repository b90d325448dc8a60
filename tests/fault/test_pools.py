"""Several runners: one that stops loses nothing, a second pool takes over what moves there, a limit holds."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph_sdk.client import SyncLangGraphClient
from psycopg.rows import dict_row

from tests.support.runners import another_runner, frozen, workers
from tests.support.stack import Stack
from tests.support.waiting import wait_until

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"
DRAIN_SECONDS = 2
TERMINAL = {"success", "error", "timeout", "interrupted"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A platform of this module's own: a lease that runs out would be noticed."""
    with Stack(
        env={"RUNYARD_LEASE_SECONDS": "60", "RUNYARD_DRAIN_SECONDS": str(DRAIN_SECONDS)},
    ) as own:
        own.deploy(KITCHEN, name="kitchen")
        yield own


@pytest.fixture
def sdk(stack: Stack) -> SyncLangGraphClient:
    return stack.sdk("kitchen")


def change(stack: Stack, **body: Any) -> None:
    found = stack.client.get("/v2/deployments?name=kitchen").json()["resources"][0]
    stack.client.patch(f"/v2/deployments/{found['id']}", json=body).raise_for_status()


def rows(stack: Stack, run_ids: list[str]) -> list[dict[str, Any]]:
    with psycopg.connect(stack.database_url, row_factory=dict_row) as conn:
        found = conn.execute("SELECT * FROM run WHERE run_id = ANY(%s) ORDER BY run_id", (run_ids,))
        return found.fetchall()


def test_a_runner_that_stops_hands_over_what_it_cannot_end(stack: Stack, sdk: SyncLangGraphClient) -> None:
    with another_runner(stack) as leaver:
        (mine,) = [row["id"] for row in workers(stack) if row["pid"] == leaver.pid]
        with frozen(stack.pids("runner")):  # or it might take every long run
            threads = [sdk.threads.create()["thread_id"] for _ in range(40)]
            run_ids = [
                sdk.runs.create(
                    thread, "counts", input={"n": 12 if n % 2 else 3, "seconds": 0.3}, durability="sync"
                )["run_id"]
                for n, thread in enumerate(threads)
            ]
            wait_until(
                lambda: any(row["owner"] == mine for row in rows(stack, run_ids[1::2])),
                what="the second runner to have long runs",
            )
        leaver.send_signal(signal.SIGTERM)
        wait_until(lambda: [row["state"] for row in workers(stack) if row["id"] == mine] == ["draining"])
        late = sdk.runs.create(threads[0], "counts", input={"n": 1, "seconds": 0})["run_id"]

        assert leaver.wait(DRAIN_SECONDS + 20) == 0, (stack.data_dir / "another.log").read_text()

    assert mine not in [row["id"] for row in workers(stack)]
    wait_until(lambda: {row["status"] for row in rows(stack, [*run_ids, late])} == {"success"}, 30)
    ended = rows(stack, run_ids)
    assert [row["deaths"] for row in ended] == [0] * len(ended), "no attempt counts as lost"
    assert any(row["attempt"] > 1 for row in ended), "some were too long to end in time"
    assert not any(row["owner"] == mine for row in ended if row["attempt"] > 1)
    assert rows(stack, [late])[0]["owner"] != mine
    for n, thread in enumerate(threads[1:], 1):
        assert sdk.threads.get_state(thread)["values"]["log"] == list(range(12 if n % 2 else 3))
    assert "its owner is gone" not in stack.log.read_text()


def test_a_deployment_moves_to_another_pool_with_what_waits(stack: Stack, sdk: SyncLangGraphClient) -> None:
    change(stack, pool="gpu")
    thread = sdk.threads.create()["thread_id"]
    waiting = sdk.runs.create(thread, "echo", input={"text": "there"})["run_id"]
    pools = {pool["name"]: pool for pool in stack.client.get("/v2/workers").json()["pools"]}
    assert (pools["gpu"]["runners"], pools["gpu"]["pending"]) == (0, 1), "nobody is there to run it"

    with another_runner(stack, "gpu") as runner:
        wait_until(lambda: rows(stack, [waiting])[0]["status"] == "success", 20)
        (mine,) = [row for row in workers(stack) if row["pid"] == runner.pid]
        assert (mine["pool"], rows(stack, [waiting])[0]["owner"]) == ("gpu", mine["id"])

    other = sdk.runs.create(thread, "echo", input={"text": "back"})["run_id"]
    change(stack, pool="default")
    wait_until(lambda: rows(stack, [other])[0]["status"] == "success", 20)
    assert rows(stack, [other])[0]["pool"] == "default"


def test_no_more_runs_than_a_deployment_may_have_run_at_once(stack: Stack, sdk: SyncLangGraphClient) -> None:
    change(stack, limits={"max_concurrent_runs": 2, "run_timeout_seconds": 3})
    threads = [sdk.threads.create()["thread_id"] for _ in range(8)]
    run_ids = [
        sdk.runs.create(thread, "counts", input={"n": 2, "seconds": 0.1})["run_id"] for thread in threads
    ]
    slow = sdk.runs.create(sdk.threads.create()["thread_id"], "sleeps", input={"seconds": 60})["run_id"]

    wait_until(lambda: {row["status"] for row in rows(stack, run_ids)} == {"success"}, 20)
    wait_until(lambda: rows(stack, [slow])[0]["status"] in TERMINAL, 20)
    change(stack, limits={"max_concurrent_runs": 0, "run_timeout_seconds": 0})

    ended = rows(stack, run_ids)
    for row in ended:
        beside = [
            other
            for other in ended
            if other["started_at"] <= row["started_at"] < other["ended_at"] and other is not row
        ]
        assert len(beside) < 2
    assert [row["started_at"] for row in ended] == sorted(row["started_at"] for row in ended)
    timed_out = rows(stack, [slow])[0]
    assert (timed_out["status"], timed_out["error"]["error"]) == ("timeout", "TimeoutError")
    assert "3 s" in timed_out["error"]["message"]


def test_messages_reach_every_worker(stack: Stack) -> None:
    def ages(row: dict[str, Any]) -> tuple[float, float]:
        seen, started = (datetime.fromisoformat(row[name]) for name in ("seen_at", "started_at"))
        return (seen - started).total_seconds(), row["heard_seconds"]

    def is_received() -> bool:
        here = {*stack.pids("runner"), *stack.pids("builder")}
        known = [ages(row) for row in workers(stack) if row["pid"] in here]
        return len(known) == 2 and all(age > since_received + 3 for age, since_received in known)

    wait_until(is_received, 30, what="a canary to come back to the runner and to the builder")


def test_hosts_of_a_deleted_deployment_stop(stack: Stack, sdk: SyncLangGraphClient) -> None:
    assert sdk.runs.wait(None, "echo", input={"text": "x"}) is not None
    found = stack.client.get("/v2/deployments?name=kitchen").json()["resources"][0]
    here = stack.pids("runner")

    def hosts() -> list[int]:
        return [host["pid"] for row in workers(stack) if row["pid"] in here for host in row["hosts"]]

    wait_until(hosts, 20)
    (pid,) = hosts()
    told = stack.cli("workers")
    assert "kitchen" in told.stdout, told.stderr

    stack.client.delete(f"/v2/deployments/{found['id']}").raise_for_status()

    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 30, what="its host to stop")
