"""The Node host as a process: output, errors outside of runs, blocked loops, back-pressure and its end."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.hosts import Checkpointed, HostProcess
from tests.support.node_hosts import node_host
from tests.support.waiting import wait_until
from workers.graph_host import frames

TEXT = {"text": "a"}
ROOT = Path(__file__).parents[3]


def test_one_call_of_console_is_one_record_of_its_run(host: HostProcess) -> None:
    run = host.run("prints", TEXT)

    records = [(log["level"], log["logger"], log["message"]) for log in run.logs]
    assert records[0] == ("INFO", "stdout", "one\ntwo")
    assert records[1][:2] == ("ERROR", "stderr")
    assert "printed" in records[1][2]
    assert "graphs.ts:" in records[1][2]
    assert records[2:] == [
        ("INFO", "stdout", "part of a line"),
        ("WARNING", "stderr", "warned"),
        ("DEBUG", "stdout", "debugged"),
    ]


def test_process_exit_in_a_node_fails_its_run_alone(host: HostProcess) -> None:
    run = host.run("exits", TEXT)

    assert run.outcome["error"] == {"error": "ProcessExit", "message": "a node called process.exit(7)"}
    assert host.run("steps", TEXT).outcome["status"] == "success"


def test_code_that_blocks_the_loop_is_named_with_its_line(host: HostProcess) -> None:
    run = host.run("blocks", TEXT)

    assert run.values["log"] == ["over"]
    (log,) = [log for log in host.logs if "blocked" in log["message"]]
    assert log["level"] == "WARNING"
    assert log["message"].startswith("block (graphs.ts:")
    assert log["message"].endswith("no other run can go on")


def test_a_node_that_patches_globals_changes_neither_other_runs_nor_what_the_host_sends(
    node_project: Path,
) -> None:
    names = re.findall(
        r'^  "([\w.]+)": ', (node_project / "patching.ts").read_text().partition("const breaks")[0], re.M
    )
    graphs = {name: f"./patching.ts:{name}" for name in ("patching", "plain")}
    graphs |= {name: f"./graphs.ts:{name}" for name in ("patches", "steps")}
    with node_host(node_project, graphs) as host:
        for name in names:
            run = host.run("patching", {"text": name})
            if name.startswith("Object.prototype."):
                assert "object is not extensible" in run.outcome["error"]["message"]
            _require_plain_runs(host)
        assert host.run("patches", TEXT).values["log"] == ["patched"]  # replaces JSON.stringify
        assert host.run("steps", TEXT).values["log"] == ["one", "two", "three"]


@pytest.mark.parametrize(
    "members",
    [
        {"toJSON": None},
        {"error": "added", "errno": 1, "value": "added", "result": "added", "found": "added", "ask": "added"},
        {"items": "added", "state": "added", "isOver": True, "stream_mode": True, "extend": "added"},
        {"command": "added", "resume_from_checkpoint": "added", "0": "added"},
    ],
    ids=lambda members: next(iter(members)),
)
def test_members_that_a_project_adds_to_all_objects_do_not_change_runs(
    node_project: Path, members: dict[str, Any]
) -> None:
    variables = {"MEMBERS": json.dumps(members)}
    with node_host(node_project, {"plain": "./polluted.ts:plain"}, variables=variables) as host:
        _require_plain_runs(host)


@pytest.mark.parametrize(
    "name",
    [
        "maxConcurrency",
        "signal",
        "recursionLimit",
        "configurable",
        "callbacks",
        "streamMode",
        "store",
        "timeout",
    ],
)
def test_a_project_that_adds_an_option_of_langgraph_to_all_objects_is_refused(
    node_project: Path, name: str
) -> None:
    variables = {"MEMBERS": json.dumps({name: "added"})}
    with node_host(node_project, {"plain": "./polluted.ts:plain"}, variables=variables) as host:
        assert host.ready["error"] == {
            "step": "load",
            "message": f"the project adds '{name}' to Object.prototype: LangGraph reads it as an option of each run",
        }


def _require_plain_runs(host: HostProcess) -> None:
    """Run a graph to its interrupt and on, and query and update its state."""
    thread = Checkpointed(host)
    modes = ["values", "updates", "tasks", "checkpoints", "debug", "protocol"]
    assert thread.run("plain", TEXT, stream_mode=modes).outcome["thread_status"] == "interrupted"
    assert thread.run("plain", None).values["log"] == ["one", 0]
    assert thread.query("state", "plain")["values"]["log"] == ["one", 0]
    update = [[{"values": {"log": ["told"]}, "as_node": "two"}]]
    assert "refused" not in thread.query("update", "plain", supersteps=update, checkpoint=None)


@pytest.mark.parametrize("name", ["Promise", "JSON.stringify"])
def test_a_node_that_breaks_the_library_fails_runs_and_not_the_host(node_project: Path, name: str) -> None:
    graphs = {name: f"./patching.ts:{name}" for name in ("breaking", "plain")}
    with node_host(node_project, graphs) as host:
        host.run("breaking", {"text": name})
        assert host.run("plain", TEXT).outcome["error"]
        host.send(frames.PING, b"\0" * 16, b"")
        host.read_until(lambda: host.pongs == 1)


def test_a_debugger_attaches_to_a_host_and_the_next_host_takes_the_port_over(own_host: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    def pid() -> int:
        with connect(
            httpx.get(f"http://127.0.0.1:{port}/json/list").json()[0]["webSocketDebuggerUrl"]
        ) as peer:
            expression = {"expression": "process.pid"}
            peer.send(json.dumps({"id": 1, "method": "Runtime.evaluate", "params": expression}))
            return json.loads(peer.recv())["result"]["result"]["value"]

    with (
        own_host("steps", debug={"port": port, "waits": False}) as first,
        own_host("steps", debug={"port": port, "waits": False}) as second,
    ):
        assert pid() == first.process.pid
        assert first.run("steps", TEXT).values["log"] == ["one", "two", "three"]
        assert second.run("steps", TEXT).values["log"] == ["one", "two", "three"]
        first.process.kill()
        first.process.wait()

        wait_until(lambda: is_open(port))
        assert pid() == second.process.pid


def test_a_host_waits_for_its_debugger_before_it_loads_the_graphs(node_project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    def attach() -> None:
        wait_until(lambda: is_open(port), 60)
        targets = httpx.get(f"http://127.0.0.1:{port}/json/list", timeout=60).json()
        with connect(targets[0]["webSocketDebuggerUrl"], open_timeout=60) as peer:
            attached.append(time.monotonic())
            peer.send(json.dumps({"id": 1, "method": "Runtime.runIfWaitingForDebugger"}))
            peer.recv()

    attached: list[float] = []
    debugger = threading.Thread(target=attach)
    debugger.start()
    debug = {"port": port, "waits": True}
    with node_host(node_project, {"steps": "./graphs.ts:steps"}, debug=debug) as host:
        assert attached, "the host is ready"
        assert host.run("steps", TEXT).values["log"] == ["one", "two", "three"]
    debugger.join()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_node_that_writes_much_waits_for_the_runner(host: HostProcess) -> None:
    run = host.start("floods", TEXT, stream_mode=["custom"])
    time.sleep(0.5)  # the runner does not read
    host.wait_done(run)

    assert len(run.named("custom")) == 200


def test_it_answers_pings_and_checks(host: HostProcess) -> None:
    run = host.start("swallows", TEXT, stream_mode=["custom"])
    host.read_until(lambda: bool(run.events))
    host.pongs = 0

    host.send(frames.PING, frames.NOBODY, b"")
    host.send(frames.CHECK, frames.NOBODY, json.dumps([run.id.hex, uuid4().hex]).encode())
    host.read_until(lambda: host.pongs > 0 and bool(host.checks))

    assert host.checks.pop() == [run.id.hex]
    host.wait_done(run)


def test_many_runs_at_once_keep_apart(host: HostProcess) -> None:
    runs = [host.start("made", TEXT, config={"configurable": {"wish": wish}}) for wish in range(64)]

    assert [host.wait_done(run).values["log"] for run in runs] == [[wish] for wish in range(64)]


def test_limits_of_events_states_and_checkpoints_and_masked_secrets(own_host: Any) -> None:
    limits = {"event_bytes": 2_000, "state_bytes": 5_000, "checkpoint_bytes": 3_000}
    secret = {"variables": {"TOKEN": "it is 'secret'"}, "secrets": ["TOKEN"]}
    with own_host("steps", "floods", limits=limits, **secret) as host:
        event = host.run("floods", TEXT, stream_mode=["custom"])
        state = host.run("steps", {"text": "x" * 6_000}, stream_mode=["updates"])
        thread = Checkpointed(host)
        checkpoint = thread.run("steps", {"text": "x" * 4_000}, stream_mode=["updates"])

        assert event.named("error")[0]["error"] == "EventTooLarge"
        assert state.outcome["error"]["error"] == "StateTooLarge"
        assert state.outcome["unchanged"]
        assert checkpoint.outcome["error"]["error"] == "CheckpointTooLarge"

        update = [[{"values": {}, "as_node": "it is 'secret'"}]]
        refused = Checkpointed(host).query("update", "steps", checkpoint=None, supersteps=update)["refused"]
        assert "***" in refused["message"]
        assert "secret" not in refused["message"]


def test_it_ends_at_stop_and_when_the_runner_is_gone(own_host: Any) -> None:
    for leave, code in (
        (lambda host: host.send(frames.STOP, frames.NOBODY, b""), 0),
        (HostProcess.hang_up, 1),
    ):
        with own_host("sleeps") as host:
            run = host.start("sleeps", TEXT, stream_mode=["custom"])
            host.read_until(lambda run=run: bool(run.events))
            leave(host)
            assert host.process.wait() == code


RUNNER = """
import os, sys, time
from pathlib import Path
from tests.support.node_hosts import node_host

with node_host(Path(sys.argv[1]), {"it": "./graphs.ts:blocks_for_long"}) as host:
    print(host.process.pid, flush=True)
    run = host.start("it", {"text": "a"}, stream_mode=["custom"])
    host.read_until(lambda: bool(run.events))
    time.sleep(0.5)  # the node begins to block after this event
    os.kill(os.getpid(), 9)
"""


def test_it_ends_with_the_runner_while_a_node_blocks_the_loop(node_project: Path) -> None:
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(node_project)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert runner.stdout is not None
    pid = int(runner.stdout.readline())
    runner.wait()

    wait_until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid))


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
