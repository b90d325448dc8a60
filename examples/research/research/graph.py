"""Plan some questions, look them up side by side, write a report. Start it with `{"subject": "…"}`."""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from research import lookup


class State(TypedDict, total=False):
    subject: str
    questions: list[str]
    findings: Annotated[list[str], operator.add]
    report: str


def plan(state: State) -> State:
    return {
        "questions": [f"{word} {state['subject']}?" for word in ("What is", "Who uses", "What follows from")]
    }


def divide(state: State) -> list[Send]:
    return [Send("lookup", {"question": question}) for question in state["questions"]]


def write(state: State) -> State:
    return {"report": "\n".join([f"On {state['subject']}", *state["findings"]])}


graph = (
    StateGraph(State)
    .add_node("plan", plan)
    .add_node("lookup", lookup.graph)
    .add_node("write", write)
    .add_edge(START, "plan")
    .add_conditional_edges("plan", divide, ["lookup"])
    .add_edge("lookup", "write")
    .add_edge("write", END)
    .compile()
)
