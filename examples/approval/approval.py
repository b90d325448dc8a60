"""A person in the loop: the graph stops with a question and goes on with the answer.

Start a run with `{"topic": "…"}`: it ends as interrupted. Resume it on the same thread with
`command={"resume": {"approved": true}}`, or `{"approved": false, "why": "…"}` to have it written again.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class State(TypedDict, total=False):
    topic: str
    remarks: list[str]
    draft: str
    sent: bool


def write(state: State) -> State:
    remarks = "".join(f" (now {remark})" for remark in state.get("remarks", []))
    return {"draft": f"Dear team, a word about {state['topic']}{remarks}.", "sent": False}


def review(state: State) -> Command[Literal["send", "write"]]:
    answer: dict[str, Any] = interrupt({"question": "Send this?", "draft": state["draft"]})
    if answer.get("approved"):
        return Command(goto="send")
    return Command(
        goto="write", update={"remarks": [*state.get("remarks", []), answer.get("why", "shorter")]}
    )


def send(state: State) -> State:
    return {"sent": True}


graph = (
    StateGraph(State)
    .add_node("write", write)
    .add_node("review", review)
    .add_node("send", send)
    .add_edge(START, "write")
    .add_edge("write", "review")
    .add_edge("send", END)
    .compile()
)
