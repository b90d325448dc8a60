"""The graph host as a process: it answers while nodes work, survives damage by user code, and shuts down."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.support.hosted import ALL, HOSTED
from tests.support.hosts import HostProcess, Run, graph_host
from tests.support.waiting import wait_until
from workers.graph_host import frames, loop


def test_it_answers_pings_while_nodes_work_and_says_which_runs_it_executes(own_host: HostProcess) -> None:
    own_host.start("sleeps", {}, stream_mode=["custom"])
    own_host.send(frames.PING, frames.NOBODY, b"")

    own_host.read_until(lambda: own_host.pongs == 1)

    begun, unknown = own_host.start("sleeps", {}), Run()
    asked = [begun.id.hex, unknown.id.hex]
    own_host.send(frames.CHECK, frames.NOBODY, json.dumps(asked).encode())
    own_host.read_until(lambda: bool(own_host.checks))

    assert own_host.checks == [[begun.id.hex]]


def test_later_runs_end_where_a_node_has_replaced_functions_or_taken_all_modules_away(
    own_host: HostProcess,
) -> None:
    own_host.run("patches", {"text": "functions"})

    assert own_host.run("steps", {"text": "b"}).values["text"] == "b"

    own_host.run("patches", {"text": "modules"})

    assert own_host.run("steps", {"text": "b"}).outcome
    own_host.send(frames.CHECK, frames.NOBODY, b"[]")
    own_host.read_until(lambda: own_host.checks == [[]])


@pytest.mark.parametrize(
    ("harmed", "damage"),
    [("files", "a node lowered the limit of open files"), ("modules", "a node removed loaded modules")],
)
def test_a_host_that_a_node_made_useless_says_so_when_the_run_ends(
    own_host: HostProcess, harmed: str, damage: str
) -> None:
    own_host.run("steps", {"text": "a"})
    assert own_host.pongs == 0

    own_host.run("patches", {"text": harmed})
    own_host.read_until(lambda: own_host.pongs > 0)
    assert own_host.condition == {"queued": 0, "starved": [], "damage": damage}


def test_so_many_threads_left_behind_that_later_runs_would_lack_them_are_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = 2 * (threading.active_count() + 5)
    monkeypatch.setattr(loop, "getrlimit", lambda resource: (most, most))
    watch, over = loop.DamageWatch(), threading.Event()
    assert watch.describe() is None

    for _ in range(10):
        threading.Thread(target=over.wait, daemon=True).start()
    found = watch.describe()
    over.set()

    assert found == "nodes left more threads running than half of the process's limit"


def test_it_says_how_many_nodes_wait_for_a_thread() -> None:
    graphs = {"sleeps_in_thread": ALL["sleeps_in_thread"]}
    with graph_host(HOSTED, graphs, arguments=["--threads", "1"]) as host:
        for _ in range(3):
            host.start("sleeps_in_thread", {})
        asked = 0

        def is_asked() -> bool:
            nonlocal asked
            if host.pongs == asked:
                asked += 1
                host.send(frames.PING, frames.NOBODY, b"")
            return host.condition.get("queued") == 2

        host.read_until(is_asked)


def test_it_says_where_the_loop_is_blocked(own_host: HostProcess) -> None:
    own_host.start("blocks", {})

    own_host.read_until(lambda: bool(own_host.logs))

    assert "block_loop (graphs.py:" in own_host.logs[0]["message"]


@pytest.mark.parametrize("graph_id", ["sleeps", "blocks"])
def test_it_dies_when_the_runner_hangs_up(own_host: HostProcess, graph_id: str) -> None:
    own_host.start(graph_id, {}, stream_mode=["updates"])
    own_host.read_until(lambda: True)

    own_host.hang_up()

    assert own_host.process.wait(timeout=20) == 1


def test_it_stops_when_asked(own_host: HostProcess) -> None:
    own_host.send(frames.STOP, frames.NOBODY, b"")

    assert own_host.process.wait(timeout=20) == 0


def test_a_reader_that_does_not_read_stops_the_graph_not_the_memory(own_host: HostProcess) -> None:
    before = _memory_kib(own_host.process.pid, "VmRSS")
    run = own_host.start("floods", {}, stream_mode=["custom"])
    own_host.read_until(lambda: bool(run.events))
    seen: list[int] = []

    def stands_still() -> bool:
        seen.append(_memory_kib(own_host.process.pid, "VmRSS"))
        return len(seen) > 100 and max(seen[-100:]) - min(seen[-100:]) < 1024

    wait_until(stands_still, timeout=60)

    own_host.wait_done(run)

    assert [event["number"] for event in run.named("custom")] == list(range(30_000))
    assert _memory_kib(own_host.process.pid, "VmHWM") - before < 30 * 1024


def _memory_kib(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
