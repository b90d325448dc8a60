"""One graph that leaves a mark of every step it took, and ends as its input says."""

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt


class State(TypedDict, total=False):
    label: str
    steps: int
    seconds: float
    how: str
    done: int
    log: Annotated[list[str], operator.add]


async def work(state: State) -> State:
    mark = f"{state['label']}.{state['done']}"
    get_stream_writer()(mark)
    await asyncio.sleep(state["seconds"])
    return {"log": [mark], "done": state["done"] + 1}


def finish(state: State) -> dict[str, Any]:
    if state["how"] == "fail":
        raise ValueError("told to fail")
    if state["how"] == "ask":
        interrupt(state["label"])
    return {}


_mill = StateGraph(State)
_mill.add_node(work)
_mill.add_node(finish)
_mill.add_edge(START, "work")
_mill.add_conditional_edges("work", lambda state: "work" if state["done"] < state["steps"] else "finish")
_mill.add_edge("finish", END)
mill = _mill.compile()
