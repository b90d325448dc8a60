"""The Node host and nodes that misuse it: what they throw, keep, print, and do after the end of their run."""

from __future__ import annotations

import re
import select
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.hosts import Checkpointed, HostProcess
from tests.support.node_hosts import PROJECT, node_host
from tests.support.waiting import wait_until
from workers.graph_host import frames

GRAPHS = {
    name: f"./limits.ts:{name}"
    for name in re.findall(r"(?m)^export const (\w+)", (PROJECT / "limits.ts").read_text())
}
MIB = 2**20


@pytest.fixture(scope="module")
def misused_host(node_project: Path) -> Iterator[HostProcess]:
    with node_host(node_project, GRAPHS) as host:
        assert "error" not in host.ready, host.ready
        yield host


@pytest.fixture
def host(misused_host: HostProcess) -> Iterator[HostProcess]:
    misused_host.logs.clear()
    yield misused_host
    misused_host.answer = lambda run, kind, parts: None
    assert misused_host.run("works", {"text": "a"}).values["log"] == ["worked"], "other runs go on"


def used(host: HostProcess) -> int:
    """Return the bytes of memory that a host uses."""
    return psutil.Process(host.process.pid).memory_info().rss


@pytest.mark.parametrize("thrown", ["nothing", "bare", "symbol", "proxy", "unreadable", "doubled", "own"])
def test_whatever_a_node_throws_ends_its_run_alone(host: HostProcess, thrown: str) -> None:
    run = host.run("throws", {"text": thrown})
    rejected = host.run("rejects", {"text": thrown})
    later = host.run("throws_later", {"text": thrown})

    assert run.outcome["status"] == "error"
    assert run.outcome["error"].keys() == {"error", "message"}
    (log,) = run.logs
    assert log["message"].startswith("run failed\n")
    assert len(log["message"]) < 8_000
    assert rejected.values["log"] == later.values["log"] == ["done"]
    assert [log["message"].split("\n")[0] for log in rejected.logs] == ["unhandled rejection"]
    assert [log["message"].split("\n")[0] for log in later.logs] == ["uncaught exception"]
    assert host.condition["damage"].startswith("a node threw outside of its promise: ")


def test_recursion_without_end_is_the_error_of_its_run_alone(host: HostProcess) -> None:
    run = host.run("recurses", {"text": "a"})

    assert run.outcome["error"] == {"error": "RangeError", "message": "Maximum call stack size exceeded"}


@pytest.mark.parametrize("value", ["nested", "endless", "recursive", "proxy", "getter", "prototype"])
def test_a_value_that_cannot_be_serialized_fails_its_run_alone(host: HostProcess, value: str) -> None:
    stored = Checkpointed(host).run("keeps", {"text": value})
    shown = host.run("writes", {"text": value}, stream_mode=["custom"])

    too_deep = "channel 'kept' holds a value that is nested too deeply"
    message = "its own code fails" if value in ("getter", "prototype") else too_deep
    assert stored.outcome["error"]["message"] == message
    assert shown.values["log"] == ["written"]
    assert len(shown.named("custom")) == 1
    assert len(shown.logs) == 1


def test_long_outputs_are_cut_before_they_are_converted(host: HostProcess) -> None:
    run = host.run("prints_much", {"text": "a"})

    notes = [note for log in run.logs for note in re.findall(r"\d+ more \w+ dropped", log["message"])]
    assert notes[:2] == ["49000050 more bytes dropped", "49000051 more characters dropped"]
    assert len(run.logs) < 2_500
    assert used(host) < 400 * MIB
    host.run("works", {"text": "a"})


def test_a_reader_that_has_stopped_costs_no_memory_and_its_run_can_be_cancelled(host: HostProcess) -> None:
    before = used(host)
    run = host.start("floods", {"text": "a"}, stream_mode=["custom"])
    wait_until(lambda: is_written_to(host))
    time.sleep(1)  # nothing is read meanwhile
    flooded = used(host)
    host.cancel(run)
    host.wait_done(run)

    assert run.outcome["status"] == "cancelled"
    assert len(run.events) < 600
    assert flooded - before < 40 * MIB, "of 60"


def is_written_to(host: HostProcess) -> bool:
    return bool(select.select([host.socket], [], [], 0)[0])


def test_many_runs_end_after_one_has_blocked_the_loop(host: HostProcess) -> None:
    blocked = host.start("blocks", {"text": "a"})
    runs = [host.start("works", {"text": "a"}) for _ in range(63)]

    assert [host.wait_done(run).values["log"] for run in (blocked, *runs)] == [["over"], *[["worked"]] * 63]


@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=pytest.mark.release)])
def test_nodes_that_outlive_their_runs_reach_nothing_and_leave_nothing(host: HostProcess, count: int) -> None:
    before = used(host)
    for _ in range(count // 50):
        runs = [
            Checkpointed(host).start("outlives", {"text": "a"}, stream_mode=["custom"]) for _ in range(50)
        ]
        host.read_until(lambda runs=runs: all(run.events for run in runs))
        for run in runs:
            host.cancel(run)
        for run in runs:
            host.wait_done(run)
            assert (run.outcome["status"], run.logs) == ("cancelled", [])
        host.read_until(lambda: len(host.logs) == 50)
        late = "StoreFailed: the run is over; StorageFailed: the run is over; 5000000"
        assert {log["message"] for log in host.logs} == {late}
        host.logs.clear()

    assert used(host) - before < 600 * MIB, "each of them held 5 MB"  # V8 collects garbage late


def test_threads_that_outlive_their_run_end_with_the_host_and_belong_to_no_run(node_project: Path) -> None:
    with node_host(node_project, GRAPHS) as host:
        run = host.run("employs", {"text": "a"})
        assert (run.values["log"], run.logs) == (["employed"], [])
        host.read_until(lambda: len(host.logs) == 2)
        assert {log["level"] for log in host.logs} == {"INFO", "ERROR"}
        assert "late" in {log["message"] for log in host.logs}
        assert "of a thread" in "".join(log["message"] for log in host.logs)
        assert host.run("works", {"text": "a"}).values["log"] == ["worked"]
        host.send(frames.STOP, frames.NOBODY, b"")

        assert host.process.wait(timeout=20) == 0


def test_an_exit_of_code_outside_of_runs_ends_the_host_with_its_code(node_project: Path) -> None:
    graphs = {"works": GRAPHS["works"]}
    with node_host(node_project, graphs, variables={"EXITS": "1"}) as host:
        with pytest.raises(ConnectionError, match="ended with 9"):
            host.read_until(lambda: False)

        assert [log["message"] for log in host.logs] == ["the project called process.exit(9)"]
