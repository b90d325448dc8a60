"""The Node host with the oldest supported versions of Node and LangGraph, and threads that move between versions."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator

import pytest

from cli.machine.procfile import PROJECT as REPOSITORY
from shared.settings import Settings
from tests.support.hosts import Checkpointed, HostProcess, graph_host
from tests.support.node_hosts import node_host, project
from tests.support.transcripts import GRAPHS as PYTHON_GRAPHS
from tests.support.transcripts import MODES, RUNS, STREAMED, recorded, streamed, title
from tests.support.twins import VARYING, protocol_events, without_prefixes
from workers.builder.node import runtime

OLDEST_NODE = 22
PACKAGES = "graphs_oldest"
GRAPHS = {name: f"./streamed.ts:{name}" for name in RUNS} | {
    "three_steps": "./graphs.ts:steps",
    "keeps": "./graphs.ts:keeps",
    "asks_twice": "./graphs.ts:asks_twice",
}
# The oldest LangGraph gives the events of tasks no metadata, reports no tools, and always streams subgraphs' messages.
# A graph's custom events are never its subgraph's alone. The oldest core leaves the unfinished call of a tool out of a message.
MISSING = re.compile(VARYING.pattern + r'|"metadata": \{"assistant_id"[^}]*\}, ')
# It gives a task's next question the id of its last one, gives no errors of tasks, and makes no checkpoint of a fork.
OTHER_TASKS = ("parallels", "steps", "fails")
OTHER = {
    ("agent", "messages"),
    *(("parallels", modes) for modes in MODES),
    *((graph_id, modes) for graph_id in OTHER_TASKS for modes in ("debug", "tasks checkpoints")),
    ("nested", "custom"),
    *(("nested", modes) for modes in MODES if "messages" in modes),
}
COMPARED = [
    (graph_id, modes)
    for graph_id in RUNS
    for modes in MODES
    if modes not in ("events", "tools") and (graph_id, modes) not in OTHER
]


@pytest.fixture(scope="module")
def oldest_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    settings = dataclasses.replace(Settings.from_env(os.environ), cache_dir=REPOSITORY / ".cache")
    node = runtime.ensure(settings, OLDEST_NODE, lambda level, message: None)
    with node_host(project(tmp_path_factory.mktemp("oldest"), PACKAGES), GRAPHS, node=node.program) as host:
        versions = host.ready["versions"]
        assert versions.pop("node").startswith(f"{OLDEST_NODE}.")
        assert versions == {"langgraph": "1.0.0", "core": "1.0.1", "checkpoint": "1.0.0"}
        yield host


@pytest.fixture(scope="module")
def newest_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    with node_host(project(tmp_path_factory.mktemp("newest")), GRAPHS) as host:
        yield host


@pytest.mark.parametrize(("graph_id", "modes"), COMPARED)
def test_streams_are_those_of_the_python_host(oldest_host: HostProcess, graph_id: str, modes: str) -> None:
    expected = recorded(graph_id)
    for subgraphs in (False, True):
        whole = expected.get(title(modes, subgraphs=subgraphs)) or expected[modes]
        lines = streamed(oldest_host, graph_id, modes, subgraphs=subgraphs)
        assert without_prefixes(lines) == without_prefixes(whole)


@pytest.mark.parametrize("graph_id", [graph_id for graph_id in RUNS if graph_id not in OTHER_TASKS])
def test_the_events_of_protocol_v2_are_those_of_the_python_host(
    oldest_host: HostProcess, graph_id: str
) -> None:
    with graph_host(STREAMED, PYTHON_GRAPHS) as python_host:
        expected = protocol_events(python_host, graph_id, MISSING)

    found = protocol_events(oldest_host, graph_id, MISSING)

    assert found == [line for line in expected if not line.startswith('["tools"')]


@pytest.fixture(params=["oldest first", "newest first"])
def hosts(
    request: pytest.FixtureRequest, oldest_host: HostProcess, newest_host: HostProcess
) -> list[HostProcess]:
    hosts = [oldest_host, newest_host]
    return hosts if request.param == "oldest first" else hosts[::-1]


def test_a_thread_goes_on_with_another_version(hosts: list[HostProcess]) -> None:
    first, second = hosts
    thread = Checkpointed(first)
    thread.run("three_steps", {"text": "a"})

    thread.move_to(second)
    assert thread.query("state", "three_steps")["values"] == {"text": "a", "log": ["one", "two", "three"]}
    assert thread.run("three_steps", {"text": "b"}).values == {
        "text": "b",
        "log": ["one", "two", "three"] * 2,
    }

    thread.move_to(first)
    history = thread.query("history", "three_steps", limit=20, before=None, filter=None)
    assert [each["values"].get("text") for each in history] == ["b"] * 4 + ["a"] * 5 + [None]
    fork = {"configurable": {"checkpoint_id": history[6]["checkpoint_id"]}}
    assert thread.run("three_steps", None, config=fork).values["log"] == ["one", "two", "three"]


def test_an_interrupt_is_answered_with_another_version(hosts: list[HostProcess]) -> None:
    first, second = hosts
    thread = Checkpointed(first)
    thread.run("asks_twice", {"text": "a"})
    thread.move_to(second)
    thread.run("asks_twice", command={"resume": "yes"})
    thread.move_to(first)
    assert thread.query("state", "asks_twice")["next"] == ["first"]
    assert thread.run("asks_twice", command={"resume": "no"}).values["log"] == ["yes", "no"]


def test_interrupts_of_a_subgraph_are_answered_with_another_version(hosts: list[HostProcess]) -> None:
    first, second = hosts
    thread = Checkpointed(first)
    for run, host in zip(RUNS["asks"], [first, second, first], strict=True):
        thread.move_to(host)
        done = thread.run("asks", **run)
    assert done.values["log"] == ["yes", "yes", "one", "so"]


def test_values_of_every_class_are_restored_by_another_version(hosts: list[HostProcess]) -> None:
    first, second = hosts
    thread = Checkpointed(first)
    thread.run("keeps", {"text": "1"})
    thread.move_to(second)
    assert thread.run("keeps", None).values["log"] == [
        True, True, "bigint", True, True, None, True, "gi", "TypeError", "1",
    ]  # fmt: skip
