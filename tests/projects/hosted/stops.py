"""Graphs that come to a stop in every way a graph can, or to an end that looks like one."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langgraph.channels import EphemeralValue, LastValue, UntrackedValue
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel

try:
    from langgraph.channels.delta import DeltaChannel
except ImportError:  # an older library
    DeltaChannel = None


class State(TypedDict, total=False):
    text: str
    log: Annotated[list[Any], operator.add]


def step(name: str) -> Any:
    async def node(state: Any) -> Any:
        return {"log": [name]}

    return node


def ask(state: State) -> State:
    return {"log": [interrupt("which?")]}


def boom(state: State) -> State:
    raise ValueError("boom happened")


def line(*nodes: Any, state: Any = State, **schemas: Any) -> StateGraph:
    """Nodes one after the other; each a name, or a name and what it does."""
    builder = StateGraph(state, **schemas)
    before = START
    for node in nodes:
        name, does = (node, step(node)) if isinstance(node, str) else node
        builder.add_node(name, does)
        builder.add_edge(before, name)
        before = name
    return builder


def fan(*nodes: Any) -> StateGraph:
    """Nodes side by side."""
    builder = StateGraph(State)
    for node in nodes:
        name, does = (node, step(node)) if isinstance(node, str) else node
        builder.add_node(name, does)
        builder.add_edge(START, name)
    return builder


halves = line("a", "b").compile(interrupt_before=["b"])
breaks_inside = line("pre", ("child", halves), "post").compile()
breaks_after_inside = line(("child", line("a", "b").compile(interrupt_after=["a"])), "post").compile()
breaks_at_the_end_inside = line(("child", line("a", "b").compile(interrupt_after=["b"]))).compile()
breaks_deep = line(("outer", line("in", ("child", halves)).compile()), "post").compile()
keeps_inside = line(
    "pre", ("child", line("a", "b").compile(interrupt_before=["b"], checkpointer=True)), "post"
).compile()
breaks_beside = fan("quick", ("child", halves)).compile()
asks_deep = line(("outer", line(("child", line("a", ("ask", ask)).compile())).compile())).compile()
asks_beside_break = fan(("ask", ask), ("child", halves), "quick").compile()
fails_beside_question = fan(("ask", ask), ("boom", boom)).compile()
fails_inside = line("pre", ("child", line("a", ("boom", boom)).compile())).compile()
stops_after_end = line("a", "b").compile(interrupt_after=["b"])


async def leave(state: State) -> Command[Any]:
    return Command(graph=Command.PARENT, goto="post", update={"log": ["left"]})


goes_to_parent = line(("child", line("a", ("leave", leave)).compile()))
goes_to_parent.add_node("post", step("post"))
goes_to_parent = goes_to_parent.compile()


async def route(state: State) -> Command[Any]:
    return Command(goto=[Send("work", {"text": text}) for text in ("x", "ask", "y")])


def work(state: State) -> State:
    return {"log": [interrupt("which?") if state["text"] == "ask" else state["text"]]}


sends_to_question = line(("route", route))
sends_to_question.add_node("work", work)
sends_to_question = sends_to_question.compile()
sends_before_break = line(("route", route))
sends_before_break.add_node("work", step("work"))
sends_before_break = sends_before_break.compile(interrupt_before=["work"])

joins = fan("a", "b")
joins.add_node("c", step("c"))
joins.add_edge(["a", "b"], "c")
joins = joins.compile()
defers = fan("a", "b")
defers.add_node("late", step("late"), defer=True)
defers.add_edge("a", "late")
defers.add_edge("b", "late")
defers = defers.compile()


async def branch(state: State) -> Command[Any]:
    return Command(goto="one")


half_joined = line(("branch", branch))  # what waits for both never gets the other
for _name in ("one", "other", "both"):
    half_joined.add_node(_name, step(_name))
half_joined.add_edge(["one", "other"], "both")
half_joined = half_joined.compile()


class Fleeting(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    passing: Annotated[str, EphemeralValue]
    unstored: Annotated[str, UntrackedValue]


async def pass_by(state: Fleeting) -> Fleeting:
    return {"log": ["passed"], "passing": "by", "unstored": "u"}


async def nothing(state: Any) -> Any:
    return {}


forgets = line(("pass_by", pass_by), ("nothing", nothing), state=Fleeting).compile()
passes = line(("pass_by", pass_by), state=Fleeting).compile()


class Narrow(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


async def write_text(state: State) -> State:
    return {"text": "private", "log": ["written"]}


narrows = line(("write", write_text), state=State, output_schema=Narrow).compile()


class Model(BaseModel):
    text: str = ""
    log: Annotated[list[Any], operator.add] = []


async def write_model(state: Model) -> dict[str, Any]:
    return {"log": [state.text]}


modelled = line(("write", write_model), state=Model).compile()


async def extend(state: list[Any]) -> list[Any]:
    return ["more"]


rooted = line(("extend", extend), state=Annotated[list[Any], operator.add]).compile()


@task
async def double(number: int) -> int:
    return number * 2


@entrypoint()
async def asks_in_function(number: int) -> Any:
    doubled = await double(1)
    return [doubled, interrupt("which?")]


@entrypoint()
async def remembers(number: Any, *, previous: Any = None) -> Any:
    return entrypoint.final(value=[previous], save="saved")


subscribes = Pregel(
    nodes={
        "first": NodeBuilder().subscribe_only("a").do(lambda a: f"{a}!").write_to("b"),
        "second": NodeBuilder().subscribe_only("b").do(lambda b: f"{b}?").write_to("c"),
    },
    channels={name: LastValue(str) for name in "abc"},
    input_channels=["a"],
    output_channels=["c"],
)

if DeltaChannel is None:
    rebuilds = joins
else:

    def extended(before: Any, writes: Any) -> list[Any]:
        return [*(before or []), *(each for write in writes for each in write)]

    class Changes(TypedDict, total=False):
        log: Annotated[list[Any], DeltaChannel(extended)]

    rebuilds = line("a", "b", state=Changes).compile()
