"""A factory in a package that depends on another local package, beside two plain directories."""

import os

from flat import flat_name
from langgraph.graph import START, StateGraph
from saw import cut
from toolbox import hammer
from typing_extensions import TypedDict

from bench import __name__ as bench_name


class State(TypedDict):
    said: str


def make() -> StateGraph:
    def say(state: State) -> State:
        return {"said": f"{bench_name} {hammer()} {flat_name} {cut()} {os.environ['GREETING']}"}

    return StateGraph(State).add_node(say).add_edge(START, "say")
