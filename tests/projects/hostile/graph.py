"""A graph that returns its input."""

from typing import TypedDict

from langgraph.graph import StateGraph


class State(TypedDict, total=False):
    text: str


graph = StateGraph(State).add_node("echo", lambda state: state).add_edge("__start__", "echo").compile()
