"""Graphs with channels that are stored as their changes: each value is rebuilt from the writes of its ancestors."""

from __future__ import annotations

from typing import Annotated, Any

from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Overwrite, Send, interrupt
from typing_extensions import TypedDict


def append(left: list[Any], right: list[Any]) -> list[Any]:
    """Change the list that is there, as a careless reducer does."""
    for each in right:
        left.extend(each if isinstance(each, list) else [each])
    return left


class State(TypedDict, total=False):
    text: str
    log: Annotated[list[Any], DeltaChannel(append)]
    short: Annotated[list[Any], DeltaChannel(append, snapshot_frequency=2)]
    big: str
    late: Annotated[list[Any], DeltaChannel(append)]


class Sent(TypedDict):
    number: int


def begin(state: State) -> State:
    return {"log": ["begin"], "short": ["begin"], "big": "x" * 2000}


def fan_out(state: State) -> list[Send]:
    return [Send("work", {"number": number}) for number in range(3)]


def work(sent: Sent) -> State:
    return {"log": [f"work {sent['number']}"], "short": [{"number": sent["number"]}]}


def ask(state: State) -> State:
    return {"log": [interrupt({"question": len(state["log"])})]}


def reset(state: State) -> dict[str, Any]:
    return {"short": Overwrite(["reset"]), "late": ["y" * 1000]}


def fail(state: State) -> State:
    if state.get("text") == "fail":
        raise ValueError("no")
    return {"log": ["end"], "late": ["late"]}


inner = (
    StateGraph(State)
    .add_node("begin", begin)
    .add_node("ask", ask)
    .add_edge(START, "begin")
    .add_edge("begin", "ask")
    .compile()
)
changes = (
    StateGraph(State)
    .add_node("begin", begin)
    .add_node("work", work)
    .add_node("inner", inner)
    .add_node("reset", reset)
    .add_node("fail", fail)
    .add_edge(START, "begin")
    .add_conditional_edges("begin", fan_out, ["work"])
    .add_edge("work", "inner")
    .add_edge("inner", "reset")
    .add_edge("reset", "fail")
    .add_edge("fail", END)
    .compile()
)
