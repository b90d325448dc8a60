"""The state in a run's end equals the library's state of the thread, however the run ended."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from tests.support.hosted import HOSTED, STOPS
from tests.support.hosts import Checkpointed, HostProcess, Run
from workers.graph_host.outcome import is_over

TOLD = ("values", "next", "tasks", "interrupts", "metadata", "created_at", "checkpoint", "parent_checkpoint")
ENDLESS = {"sleeps", "sleeps_in_thread", "swallows"}
# Each of them ends, stops or fails in its own way.
GRAPHS = [
    "steps", "stops_before_two", "shows_log", "shows_little", "asks", "asks_and_shows_log", "asks_twice", "nested",
    "deep", "fails", "sends", "functional", "invokes_inside", "plain_factory", *STOPS,
]  # fmt: skip
INPUTS: dict[str, Any] = {
    "functional": 3,
    "asks_in_function": 3,
    "remembers": 3,
    "rooted": ["first"],
    "subscribes": {"a": "x"},
}

# The sequence of runs on one thread; each item holds the run's arguments besides its graph.
KINDS: dict[str, list[dict[str, Any]]] = {
    "once": [{}],
    "resumed": [{}, {"command": {"resume": "yes"}}, {"command": {"resume": "yes"}}],
    "continued": [{}, {"input": None}, {"input": None}],
    "again": [{}, {}],
    "before all": [{"interrupt_before": "*"}, {"input": None, "interrupt_before": "*"}, {"input": None}],
    "after all": [{"interrupt_after": "*"}, {"input": None, "interrupt_after": "*"}, {"input": None}],
    "at exit": [{"durability": "exit"}, {"durability": "exit", "command": {"resume": "yes"}}],
    "out of steps": [{"config": {"recursion_limit": 1}}],
    "with events": [{"stream_mode": ["events", "values"], "subgraphs": True}],
    "with messages": [{"stream_mode": ["messages-tuple", "updates", "debug"], "subgraphs": True}],
}


def sent(thread: Checkpointed, graph_id: str) -> dict[str, Any]:
    """Return the thread's state as the library computes it from storage."""
    return {name: value for name, value in thread.query("state", graph_id).items() if name in TOLD}


def reported(run: Run) -> dict[str, Any]:
    """Return the state in the end of a run."""
    state = run.outcome["state"] or {}
    return {name: run.values if name == "values" else state.get(name) for name in TOLD}


def check(thread: Checkpointed, graph_id: str, run: Run) -> None:
    """Check that the state reported by a run equals that of the library."""
    state = sent(thread, graph_id)
    if run.outcome["state"] is None:
        assert state["checkpoint"] is None, f"{graph_id}: a thread with checkpoints has a state"
        return
    assert reported(run) == state, graph_id
    stops = run.outcome["thread_status"]
    if run.outcome["status"] == "error":
        assert stops == "error", graph_id
    else:
        assert (stops == "interrupted") == bool(state["next"]), graph_id


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_reports_what_the_library_knows_of_its_thread(host: HostProcess, kind: str) -> None:
    for graph_id in GRAPHS:
        thread = Checkpointed(host)
        for asked in KINDS[kind]:
            spec = {"input": INPUTS.get(graph_id, {"text": "t", "messages": []}), **asked}

            run = thread.run(graph_id, spec.pop("input"), **spec)

            check(thread, graph_id, run)


@pytest.mark.parametrize("graph_id", sorted(ENDLESS))
def test_a_cancelled_run_ends_at_its_last_checkpoint_and_reports_it_too(
    thread: Checkpointed, graph_id: str
) -> None:
    run = thread.start(graph_id, {"text": "t"}, stream_mode=["custom"])
    thread.host.read_until(lambda: "custom" in run.names)

    thread.host.cancel(run)
    thread.host.wait_done(run)

    check(thread, graph_id, run)
    assert (run.outcome["status"], run.outcome["error"]) == ("cancelled", None)
    assert run.outcome["thread_status"] == "interrupted"
    assert run.answer == run.values == {"text": "t", "log": ["one"]}
    assert [name for name in run.names if not name.startswith("~")] == ["custom"]
    assert thread.host.run("steps", {"text": "b"}).values["text"] == "b"


@pytest.mark.parametrize("graph_id", ["asks_twice", "asks_beside_break"])
def test_a_run_that_answers_one_question_of_several_reports_it_too(
    thread: Checkpointed, graph_id: str
) -> None:
    first = thread.run(graph_id, {"text": "t"})
    question = first.outcome["state"]["interrupts"][0]["id"]

    run = thread.run(graph_id, command={"resume": {question: "yes"}})

    check(thread, graph_id, run)


def test_a_break_inside_a_subgraph_interrupts_the_thread(thread: Checkpointed) -> None:
    run = thread.run("breaks_inside", {"text": "t"})

    assert (run.outcome["thread_status"], run.outcome["state"]["next"]) == ("interrupted", ["child"])
    task = run.outcome["state"]["tasks"][0]
    place = {"thread_id": thread.thread_id, "checkpoint_ns": f"child:{task['id']}"}
    assert (task["name"], task["checkpoint"], task["interrupts"]) == ("child", place, [])


class Watched(InMemorySaver):
    """A checkpointer that keeps the newest checkpoint as the original object."""

    newest: Any = None

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if not config["configurable"].get("checkpoint_ns"):
            self.newest = checkpoint
        return await super().aput(config, checkpoint, metadata, new_versions)


@pytest.fixture(scope="module")
def stops() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("stops", HOSTED / "stops.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["stops"] = importlib.util.module_from_spec(spec)  # looked up for type hints
    spec.loader.exec_module(module)
    yield module
    del sys.modules["stops"]


ORDINARY = ("joins", "defers", "goes_to_parent", "narrows", "modelled", "rooted", "remembers", "rebuilds")
STOPPED = ("breaks_inside", "breaks_deep", "sends_before_break", "sends_to_question", "forgets")


@pytest.mark.parametrize(("durability", "with_events"), [("async", False), ("exit", True)])
@pytest.mark.parametrize("graph_id", [*ORDINARY, *STOPPED])
def test_the_library_is_not_asked_about_an_ordinary_end(
    stops: ModuleType, graph_id: str, durability: Any, with_events: bool
) -> None:
    saver = Watched()
    graph = getattr(stops, graph_id).copy(update={"checkpointer": saver})
    config: Any = {"configurable": {"thread_id": "t"}}
    input = INPUTS.get(graph_id, {"text": "t"})

    async def last_streamed() -> Any:
        asked: Any = {"stream_mode": ["values"], "durability": durability}
        if not with_events:
            return [values async for _, values in graph.astream(input, config, **asked)][-1]
        events = [event async for event in graph.astream_events(input, config, version="v2", **asked)]
        chunks = [event["data"]["chunk"] for event in events if event["event"] == "on_chain_stream"]
        return [chunk[1] for chunk in chunks if isinstance(chunk, tuple) and chunk[0] == "values"][-1]

    streamed = asyncio.run(last_streamed())

    assert is_over(graph, saver.newest, streamed) == (graph_id in ORDINARY)
