"""Which interrupts a run answers, by what the library has stored of the tasks that asked."""

from __future__ import annotations

import asyncio
from operator import add
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from workers.graph_host.protocol.input_events import answered

THREAD: RunnableConfig = {"configurable": {"thread_id": "t"}}


class Log(TypedDict):
    log: Annotated[list[Any], add]


def ask_twice(state: Log) -> Log:
    return {"log": [interrupt("first?"), interrupt("second?")]}


def ask_once(state: Log) -> Log:
    return {"log": [interrupt("other?")]}


def asking(*nodes: Any) -> tuple[Any, InMemorySaver]:
    """A graph whose nodes have asked, and where its checkpoints are."""
    builder = StateGraph(Log)
    for node in nodes:
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)
    saver = InMemorySaver()
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"log": []}, THREAD)
    return graph, saver


def asked(graph: Any) -> dict[str, str]:
    """The ids of what the graph asks, by the questions."""
    return {item.value: item.id for task in graph.get_state(THREAD).tasks for item in task.interrupts}


def answers(saver: InMemorySaver) -> list[str]:
    return asyncio.run(
        answered(saver, {"configurable": {**THREAD["configurable"], "checkpoint_ns": ""}}, "yes")
    )


def test_the_second_question_of_a_node_is_answered_like_the_first() -> None:
    graph, saver = asking(ask_twice)
    assert answers(saver) == [asked(graph)["first?"]]

    graph.invoke(Command(resume="one"), THREAD)

    assert answers(saver) == [asked(graph)["second?"]]


def test_what_was_answered_before_is_not_answered_again() -> None:
    graph, saver = asking(ask_twice, ask_once)
    ids = asked(graph)
    assert sorted(answers(saver)) == sorted(ids.values())

    graph.invoke(Command(resume={ids["other?"]: "done"}), THREAD)

    assert answers(saver) == [ids["first?"]]
