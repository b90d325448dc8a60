"""Runs that pause at an interrupt or a breakpoint, their resumption, and the ends of runs."""

from __future__ import annotations

import asyncio
from operator import add
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from tests.support.hosts import Checkpointed, HostProcess
from workers.graph_host.protocol.log import answered_interrupts


def test_an_interrupt_is_the_last_of_the_values(host: HostProcess) -> None:
    run = host.run("asks", {"text": "sure?"}, stream_mode=["values", "updates"])

    item = {"value": {"question": "sure?"}, "id": run.named("updates")[-1]["__interrupt__"][0]["id"]}
    streamed = {**item, "response_schema": None}
    assert run.events[-2:] == [
        ("updates", {"__interrupt__": [streamed]}),
        ("values", {"text": "sure?", "log": ["one"], "__interrupt__": [streamed]}),
    ]
    assert run.answer == run.events[-1][1]
    assert run.values == {"text": "sure?", "log": ["one"]}
    assert (run.outcome["status"], run.outcome["thread_status"]) == ("success", "interrupted")
    state = run.outcome["state"]
    assert (state["next"], state["interrupts"]) == (["ask"], [item])
    assert run.outcome["interrupts"] == {state["tasks"][0]["id"]: [item]}


def test_a_resumed_run_goes_on_from_its_interrupt_and_several_are_answered_by_id(
    thread: Checkpointed,
) -> None:
    thread.run("asks", {"text": "a"})

    run = thread.run("asks", command={"resume": "yes"}, stream_mode=["values", "updates"])

    assert run.named("values")[0] == {"text": "a", "log": ["one"]}
    assert run.named("updates")[0] == {"ask": {"log": ["yes"]}}
    assert run.values == {"text": "a", "log": ["one", "yes", "two"]}
    assert run.outcome["interrupts"] == {}

    several = Checkpointed(thread.host)
    first = several.run("asks_twice", {"text": "a"})
    ids = [item["id"] for item in first.answer["__interrupt__"]]

    unclear = several.run("asks_twice", command={"resume": "both"})
    half = several.run("asks_twice", command={"resume": {ids[0]: "A"}})
    whole = several.run("asks_twice", command={"resume": {ids[1]: "B"}})

    assert unclear.outcome["error"]["error"] == "RuntimeError"
    assert [item["id"] for item in half.outcome["state"]["interrupts"]] == [ids[1]]
    assert sorted(whole.values["log"]) == ["A", "B", "done"]


def test_an_interrupt_inside_a_subgraph_belongs_to_the_inner_task_and_is_resumed(
    host: HostProcess, thread: Checkpointed
) -> None:
    run = host.run("nested", {"text": "a"}, stream_mode=["values", "updates"], subgraphs=True)

    kinds = [name.partition(":")[0] for name in run.names[-4:]]
    assert kinds == ["updates|child", "values|child", "updates", "values"]
    (outer,) = run.outcome["state"]["tasks"]
    (inner_id,) = run.outcome["interrupts"]
    assert inner_id != outer["id"]
    assert outer["checkpoint"] == {"thread_id": run.thread_id, "checkpoint_ns": f"child:{outer['id']}"}
    assert outer["state"] is None

    thread.run("nested", {"text": "a"})

    assert thread.run("nested", command={"resume": "yes"}).values["log"] == ["two", "two", "one", "yes"]


def test_a_static_breakpoint_leaves_the_thread_interrupted(host: HostProcess) -> None:
    compiled_in = host.run("stops_before_two", {"text": "a"}, stream_mode=["updates"])
    asked_for = host.run("steps", {"text": "a"}, stream_mode=["updates"], interrupt_after=["one"])
    at_the_end = host.run("steps", {"text": "a"}, stream_mode=["updates"], interrupt_after=["two"])

    for run in (compiled_in, asked_for):
        assert run.events == [("updates", {"one": {"log": ["one"]}}), ("updates", {"__interrupt__": []})]
        assert (run.outcome["thread_status"], run.outcome["state"]["next"]) == ("interrupted", ["two"])
        assert run.answer == {"text": "a", "log": ["one"]}
    assert at_the_end.outcome["thread_status"] == "idle"


# Which interrupts have been answered, according to the stored writes of the tasks that raised them


ONE_THREAD: RunnableConfig = {"configurable": {"thread_id": "t"}}


class Log(TypedDict):
    log: Annotated[list[Any], add]


def ask_twice(state: Log) -> Log:
    return {"log": [interrupt("first?"), interrupt("second?")]}


def ask_once(state: Log) -> Log:
    return {"log": [interrupt("other?")]}


def asking(*nodes: Any) -> tuple[Any, InMemorySaver]:
    """Return a graph whose nodes have raised interrupts, and its checkpointer."""
    builder = StateGraph(Log)
    for node in nodes:
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)
    saver = InMemorySaver()
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"log": []}, ONE_THREAD)
    return graph, saver


def asked(graph: Any) -> dict[str, str]:
    """Return the ids of the graph's open interrupts by their value."""
    return {item.value: item.id for task in graph.get_state(ONE_THREAD).tasks for item in task.interrupts}


def answers(saver: InMemorySaver) -> list[str]:
    return asyncio.run(
        answered_interrupts(
            saver, {"configurable": {**ONE_THREAD["configurable"], "checkpoint_ns": ""}}, "yes"
        )
    )


def test_the_second_question_of_a_node_is_answered_like_the_first() -> None:
    graph, saver = asking(ask_twice)
    assert answers(saver) == [asked(graph)["first?"]]

    graph.invoke(Command(resume="one"), ONE_THREAD)

    assert answers(saver) == [asked(graph)["second?"]]

    graph, saver = asking(ask_twice, ask_once)
    ids = asked(graph)
    assert sorted(answers(saver)) == sorted(ids.values())

    graph.invoke(Command(resume={ids["other?"]: "done"}), ONE_THREAD)

    assert answers(saver) == [ids["first?"]]


# Ends of runs: success, error, cancellation, and the death of the process


def test_a_run_that_fails_says_so_in_its_event_answer_and_state(host: HostProcess) -> None:
    run = host.run("fails", {"text": "a"})

    error = {"error": "ValueError", "message": "boom happened"}
    assert run.events[-1] == ("error", error)
    assert run.answer == {"__error__": error}
    assert (run.outcome["status"], run.outcome["thread_status"]) == ("error", "error")
    assert run.outcome["error"] == error
    assert run.outcome["state"]["next"] == ["boom"]
    assert run.outcome["state"]["tasks"][0]["error"] == "ValueError('boom happened')"
    assert run.values == {"text": "a", "log": ["one"]}

    assert host.run("nope", {}).answer["__error__"]["error"] == "GraphNotFound"


@pytest.mark.parametrize(
    ("graph_id", "input", "error"),
    [("loops", {"text": "a"}, "GraphRecursionError"), ("steps", None, "EmptyInputError")],
)
def test_the_librarys_errors_keep_their_names(
    host: HostProcess, graph_id: str, input: Any, error: str
) -> None:
    run = host.run(graph_id, input, config={"recursion_limit": 5})

    assert run.answer["__error__"]["error"] == error


def test_an_attempt_after_a_crash_goes_on_from_the_newest_checkpoint(thread: Checkpointed) -> None:
    thread.run("stops_before_two", {"text": "a"})

    run = thread.run("stops_before_two", {"text": "again"}, attempt=2, resume_from_checkpoint=True)

    assert run.values == {"text": "a", "log": ["one", "two"]}
    assert run.outcome["state"]["metadata"]["run_attempt"] == 2


def test_a_run_that_is_cancelled_before_its_first_step_ends_without_one(host: HostProcess) -> None:
    said_before = len(host.logs)
    with host.stopped():  # both frames are then read at once
        run = host.start("steps", {"text": "a"})
        host.cancel(run)
    host.wait_done(run)

    assert (run.outcome["status"], run.outcome["unchanged"]) == ("cancelled", True)
    assert (run.events, run.stored) == ([], [])
    assert host.logs[said_before:] == [], "it was not given up"


@pytest.mark.parametrize("graph_id", ["leaves", "leaves_async"])
def test_a_node_that_exits_fails_its_run_only(host: HostProcess, graph_id: str) -> None:
    run = host.run(graph_id, {"text": "a"})

    assert run.answer == {"__error__": {"error": "SystemExit", "message": "7"}}
    assert host.run("steps", {"text": "b"}).values["text"] == "b"


def test_a_process_that_exits_takes_the_host(own_host: HostProcess) -> None:
    with pytest.raises(ConnectionError, match="9"):
        own_host.run("dies", {})
