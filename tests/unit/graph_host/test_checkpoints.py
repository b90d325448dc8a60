"""Checkpoints that a graph host stores, and state that it restores from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

from tests.support.hosted import HOSTED
from tests.support.hosts import Checkpointed, HostProcess, graph_host
from workers.graph_host import frames

# Storing


def test_a_durable_run_sends_a_checkpoint_a_step_and_its_writes(host: HostProcess) -> None:
    run = host.run("steps", {"text": "a"}, temporary=False, metadata={"topic": "x\u0000y"})

    checkpoints = [head for kind, head, _ in run.stored if kind == frames.CHECKPOINT]
    assert [head["metadata"]["step"] for head in checkpoints] == [-1, 0, 1, 2]
    assert {head["ask"] for _, head, _ in run.stored} == {0}
    assert {head["thread_id"] for head in checkpoints} == {run.thread_id}
    assert {head["metadata"]["topic"] for head in checkpoints} == {"xy"}
    parents = [head["parent_checkpoint_id"] for head in checkpoints]
    assert parents == [None, *(head["checkpoint_id"] for head in checkpoints[:-1])]
    assert run.outcome["state"]["checkpoint_id"] == checkpoints[-1]["checkpoint_id"]
    assert run.outcome["state"]["metadata"]["run_id"] == str(run.id)


def test_durability_sync_waits_for_each_checkpoint_and_exit_stores_one(host: HostProcess) -> None:
    run = host.run("steps", {"text": "a"}, temporary=False, durability="sync")

    asked = [head["ask"] for kind, head, _ in run.stored if kind == frames.CHECKPOINT]
    assert len(asked) == 4
    assert all(asked)

    run = host.run("steps", {"text": "a"}, temporary=False, durability="exit")

    assert [kind for kind, _, _ in run.stored] == [frames.CHECKPOINT]


def test_a_large_value_is_sent_once_and_none_of_a_temporary_run_or_a_thread_of_a_graphs_own(
    host: HostProcess,
) -> None:
    run = host.run("steps", {"text": "x" * 5000}, temporary=False)

    sent = [item for kind, head, _ in run.stored if kind == frames.CHECKPOINT for item in head["new"]]
    refers = [head["blobs"] for kind, head, _ in run.stored if kind == frames.CHECKPOINT]
    assert [channel for channel, _, _ in sent] == ["__start__", "text"]
    assert ["text" in item for item in refers] == [False, True, True, True]

    for graph_id in ("steps", "nested", "fails"):
        assert host.run(graph_id, {"text": "a"}).stored == []

    run = host.run("invokes_inside", {"text": "a"}, temporary=False)

    assert run.values["log"] == ["one"]
    assert {head["thread_id"] for _, head, _ in run.stored} == {run.thread_id}


@pytest.mark.parametrize("graph_id", ["invokes_blocking", "invokes_blocking_on_loop"])
def test_a_node_may_invoke_a_graph_without_await(thread: Checkpointed, graph_id: str) -> None:
    thread.run(graph_id, {"text": "a"})

    assert thread.run(graph_id, {"text": "b"}).values == {"text": "b", "log": ["done", "done"]}


# Restoring


def test_what_a_checkpoint_holds_comes_back_as_the_projects_own_class(thread: Checkpointed) -> None:
    thread.run("points", {})

    assert thread.run("points", command={"resume": 1}).values["kinds"] == ["Point", "True"]


FOREIGN_CLASS = """
from typing import Any, TypedDict
from fractions import Fraction
from langgraph.graph import StateGraph
from langgraph.types import interrupt

class Price(Fraction):
    def _asdict(self): return {"numerator": 1, "denominator": 2}

Price.__module__ = "fractions"
Price.__name__ = "Fraction"

class S(TypedDict, total=False):
    v: Any
    kind: str

def make(s): return {"v": Price(1, 2)}

def look(s):
    interrupt(1)
    return {"kind": type(s["v"]).__name__}

b = StateGraph(S).add_sequence([make, look]).set_entry_point("make")
"""


def test_a_class_that_is_not_the_projects_is_restored_only_where_its_deployment_allows_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "graphs.py").write_text(FOREIGN_CLASS)
    with graph_host(tmp_path, {"g": "./graphs.py:b"}) as host:
        thread = Checkpointed(host)
        thread.run("g", {"kind": ""})
        stored = list(thread.stored)
        refused = thread.run("g", command={"resume": 1})
        assert (refused.outcome["status"], refused.outcome["error"]["error"]) == (
            "error",
            "CheckpointRefused",
        )
        assert "the checkpoint names fractions.Fraction" in refused.outcome["error"]["message"]
        assert thread.stored == stored, "nothing is written in its place"
        assert "refused" in thread.query("state", "g")
    with graph_host(
        tmp_path,
        {"g": "./graphs.py:b"},
        variables={"LANGGRAPH_STRICT_MSGPACK": "false"},
        from_scratch=True,
    ) as host:
        thread.move_to(host)
        assert thread.run("g", command={"resume": 1}).values["kind"] == "Fraction"


TRAP = "made by a checkpoint"


def constructor(code: int, *call: Any) -> bytes:
    return ormsgpack.packb([1, {"a": ormsgpack.Ext(code, ormsgpack.packb(call))}])


PAYLOADS = {
    "a function": ("msgpack", constructor(0, "os", "mkdir", TRAP)),
    "a function's arguments": ("msgpack", constructor(1, "os", "mkdir", (TRAP,))),
    "a class": ("msgpack", constructor(2, "subprocess", "Popen", {"args": ["mkdir", TRAP]})),
    "a method": ("msgpack", constructor(3, "os", "mkdir", TRAP, "__call__")),
    "an old model": ("msgpack", constructor(4, "subprocess", "Popen", {"args": ["mkdir", TRAP]})),
    "a model": ("msgpack", constructor(5, "subprocess", "Popen", {"args": ["mkdir", TRAP]}, "x")),
    "json": ("json", json.dumps({"lc": 2, "type": "constructor", "id": ["os", "mkdir"], "args": [TRAP]}).encode()),
    "pickle": ("pickle", f"cos\nmkdir\n(S'{TRAP}'\ntR.".encode()),
}  # fmt: skip


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_checkpoint_that_somebody_changed_executes_nothing_and_fails_the_run(
    host: HostProcess, payload: tuple[str, bytes]
) -> None:
    type_, data = payload
    for changed in (frames.CHECKPOINT, frames.WRITES):
        thread = Checkpointed(host)
        thread.run("points", {})
        for _, head, blobs in [item for item in thread.stored if item[0] == changed]:
            head["type"] = type_
            head["writes"] = [[idx, channel, type_] for idx, channel, _ in head.get("writes", ())]
            blobs[:] = [data] * len(blobs)

        run = thread.run("points", command={"resume": 1})

        assert (run.outcome["status"], run.outcome["error"]["error"]) == ("error", "CheckpointRefused")
        assert "refused" in thread.query("state", "points")
    assert not (HOSTED / TRAP).exists()


def test_a_class_of_the_project_comes_back_in_a_host_that_has_not_imported_it(tmp_path: Path) -> None:
    (tmp_path / "graphs.py").write_text(
        "from typing import Any, TypedDict\nfrom langgraph.graph import StateGraph\n"
        "from langgraph.types import interrupt\n"
        "class S(TypedDict, total=False):\n    v: Any\n    kind: str\n"
        "def make(s):\n    from places_of import Point\n    return {'v': Point(1)}\n"
        "def look(s):\n    interrupt(1)\n    return {'kind': type(s['v']).__name__}\n"
        "b = StateGraph(S).add_sequence([make, look]).set_entry_point('make')\n"
    )
    (tmp_path / "places_of.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass Point:\n    x: int\n"
    )
    with graph_host(tmp_path, {"g": "./graphs.py:b"}) as host:
        thread = Checkpointed(host)
        thread.run("g", {"kind": ""})
    with graph_host(tmp_path, {"g": "./graphs.py:b"}) as host:
        thread.move_to(host)
        assert thread.run("g", command={"resume": 1}).values["kind"] == "Point"


def test_a_history_is_filtered_by_what_its_runs_were_configured_with(thread: Checkpointed) -> None:
    told = {"tenant": "acme", "level": 2, "is_new": True, "deep": {"a": [1]}, "user_id": "ann"}
    auth = {"langgraph_auth_user": {"token": "s"}, "langgraph_auth_permissions": ["p"], "__private": "s"}
    config = {"configurable": {**told, **auth, "prompt": "x" * 5000, "checkpoint_map": {}}}

    thread.run("steps", {"text": "a"}, config=config)
    thread.run("steps", {"text": "b"}, config={"configurable": {"tenant": "other"}})

    for name, value in told.items():
        found = thread.query("history", "steps", limit=20, filter={name: value})
        assert [state["values"]["text"] for state in found[:-1]] == ["a", "a", "a"], name
    metadata = found[0]["metadata"]
    assert {name: metadata[name] for name in told} == told
    assert not {*auth, "prompt", "checkpoint_map"} & metadata.keys()


def test_an_update_is_found_by_its_threads_configuration_and_a_runs_ids_are_not_overwritten(
    thread: Checkpointed,
) -> None:
    forged = dict.fromkeys(("run_id", "thread_id", "graph_id", "assistant_id", "run_attempt"), "forged")
    run = thread.run("steps", {}, config={"configurable": forged, "metadata": forged}, metadata=forged)
    assert "forged" not in run.outcome["state"]["metadata"].values()

    config = {"configurable": {"tenant": "acme"}}
    supersteps = [[{"values": {"text": "u"}, "as_node": "one"}]]
    thread.query("update", "steps", config=config, supersteps=supersteps)
    assert len(thread.query("history", "steps", limit=5, filter={"tenant": "acme"})) == 1


BOUND = """
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

class State(TypedDict, total=False):
    text: str

def graph_of(node):
    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile()

inner = graph_of(lambda state: {"text": "done"}).with_config(metadata={"inner": True})
graph = graph_of(inner).with_config(
    metadata={"bound": "outside", "topic": "mine", "nested": {"a": 1}, "long": "x" * 10_000},
    configurable={"model": "small", "client": object(), "langgraph_auth_user": {"identity": "nobody"}},
    tags=["tagged"],
)
"""


def test_checkpoints_say_what_is_bound_to_their_graph(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(BOUND)
    with graph_host(tmp_path, {"agent": "./agent.py:graph"}) as host:
        thread = Checkpointed(host)
        run = thread.run("agent", {"text": "a"}, metadata={"topic": "of the run"})
        history = thread.query("history", "agent", limit=10)
        inside = [
            head["metadata"]
            for kind, head, _ in run.stored
            if kind == frames.CHECKPOINT and head["checkpoint_ns"]
        ]
        updated = thread.query("update", "agent", supersteps=[[{"values": {"text": "b"}, "as_node": "node"}]])

    for metadata in [run.outcome["state"]["metadata"], *(state["metadata"] for state in history)]:
        assert metadata["bound"] == "outside"
        assert (metadata["topic"], metadata["model"]) == ("of the run", "small")
        assert not {"nested", "long", "client", "langgraph_auth_user", "inner"} & metadata.keys()
    assert [(metadata["bound"], metadata["inner"], metadata["model"]) for metadata in inside] == [
        ("outside", True, "small")
    ] * len(inside)
    assert inside
    metadata = updated["state"]["metadata"]
    assert (metadata["source"], metadata["bound"], metadata["model"]) == ("update", "outside", "small")
