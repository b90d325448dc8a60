"""LangGraph's client of a deployed graph, `RemoteGraph`, against the whole platform."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.pregel.remote import RemoteException, RemoteGraph
from langgraph.types import Command

from tests.support.stack import Stack


class Graphs:
    """Graphs of one deployment."""

    def __init__(self, stack: Stack, kitchen: str) -> None:
        self._url, self._key = f"{stack.url}/d/{kitchen}", stack.api_key

    def __call__(self, name: str) -> RemoteGraph:
        return RemoteGraph(name, url=self._url, api_key=self._key)


@pytest.fixture(scope="module")
def graphs(stack: Stack, kitchen: str) -> Graphs:
    return Graphs(stack, kitchen)


@pytest.fixture
def config() -> Any:
    """Return a config with the id of a thread that does not exist yet."""
    return {"configurable": {"thread_id": str(uuid4())}}


def test_it_is_invoked_with_a_thread_and_without(graphs: Graphs, config: Any) -> None:
    echo = graphs("echo")
    assert echo.invoke({"text": "x"}) == {"text": "x", "log": ["x"]}
    echo.invoke({"text": "a"}, config)
    assert echo.invoke({"text": "b"}, config) == {"text": "b", "log": ["a", "b"]}
    assert asyncio.run(graphs("echo").ainvoke({"text": "c"}, config))["log"] == ["a", "b", "c"]


def test_a_failing_graph_raises(graphs: Graphs) -> None:
    with pytest.raises(RemoteException, match="boom happened"):
        graphs("fails").invoke({"text": "x"})


def test_it_streams_each_mode(graphs: Graphs) -> None:
    assert list(graphs("echo").stream({"text": "x"})) == [{"node": {"log": ["x"]}}]
    several = list(graphs("writes").stream({"n": 2}, stream_mode=["custom", "values"]))
    assert [(chunk.event, chunk.data) for chunk in several] == [
        ("values", {"n": 2, "log": []}),
        ("custom", {"i": 0}),
        ("custom", {"i": 1}),
        ("values", {"n": 2, "log": ["written"]}),
    ]
    said = [{"role": "user", "content": "hi"}]
    tokens = graphs("speaks").stream({"messages": said}, stream_mode="messages")
    assert "".join(message["content"] for message, _ in tokens) == "hello big world"
    inner = list(graphs("nested").stream({"text": "x"}, subgraphs=True, stream_mode="updates"))
    assert [bool(namespace) for namespace, _ in inner] == [True, True, False]


def test_it_streams_to_asynchronous_callers(graphs: Graphs) -> None:
    async def call() -> list[Any]:
        return [part async for part in graphs("echo").astream({"text": "x"}, version="v2")]

    assert asyncio.run(call()) == [
        {"type": "updates", "ns": (), "data": {"node": {"log": ["x"]}}, "interrupts": ()}
    ]


def test_its_context_goes_over_the_assistant_s(graphs: Graphs) -> None:
    assert graphs("greets").invoke({"text": ""}, context={"word": "hi"})["log"] == ["hi"]


def test_its_state_is_read_changed_and_forked(graphs: Graphs, config: Any) -> None:
    asks = graphs("asks")
    asks.invoke({"text": "x"}, config)

    state = asks.get_state(config)
    assert (state.next, state.values["log"]) == (("ask",), ["before"])
    assert state.tasks[0].interrupts[0].value == {"question": "may I?"}
    history = list(asks.get_state_history(config))
    assert [past.next for past in history] == [("ask",), ("before",), ("__start__",)]
    assert list(asks.get_state_history(config, before=history[0].config)) == history[1:]
    assert asks.get_state(history[1].config).next == ("before",)

    forked = asks.update_state(history[1].config, {"log": ["mine"]}, as_node="before")
    assert asks.get_state(forked).values["log"] == ["mine"]
    assert asks.invoke(Command(resume="yes"), config)["log"] == ["mine", "yes", "after"]


def test_it_is_drawn(graphs: Graphs) -> None:
    drawn = graphs("nested").get_graph(xray=True)
    assert {"child:before", "child:after"} <= set(drawn.nodes)
    assert "child" in graphs("nested").get_graph().draw_mermaid()


class State(TypedDict, total=False):
    text: str
    log: Annotated[list[Any], operator.add]


def around(far: RemoteGraph) -> Any:
    """Return a local graph with a deployed graph as a node."""
    outer = StateGraph(State)
    outer.add_node("far", far)
    outer.add_node("near", lambda state: {"log": ["near"]})
    outer.add_edge(START, "far")
    outer.add_edge("far", "near")
    outer.add_edge("near", END)
    return outer.compile(checkpointer=InMemorySaver())


def test_it_is_a_node_of_another_graph(graphs: Graphs, config: Any) -> None:
    parts = list(
        around(graphs("nested")).stream({"text": "x"}, config, subgraphs=True, stream_mode="updates")
    )
    assert [next(iter(update)) for _, update in parts] == ["before", "after", "child", "far", "near"]
    assert [len(namespace) for namespace, _ in parts] == [2, 2, 1, 0, 0]
    assert parts[3][1]["far"]["log"] == ["before", "after"]


def test_its_interrupt_is_the_outer_graph_s(graphs: Graphs, config: Any) -> None:
    stopped = around(graphs("asks")).invoke({"text": "x"}, config)
    assert [item.value for item in stopped["__interrupt__"]] == [{"question": "may I?"}]
