"""A project for looking at what a deployment has: a context with a schema, and a store that is searched by meaning."""

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

WORDS = ("tea", "coffee", "rain")


async def embed(texts: list[str]) -> list[list[float]]:
    """What is meant, by how often words come."""
    return [[float(text.lower().count(word)) + 0.01 for word in WORDS] for text in texts]


class State(TypedDict, total=False):
    text: str
    log: Annotated[list[Any], operator.add]


class Words(TypedDict, total=False):
    word: str
    loud: bool


async def say(state: State) -> State:
    return {"log": [state.get("text", "")]}


async def greet(state: State, runtime: Runtime[Words]) -> State:
    context = runtime.context or {}
    word = context.get("word", "nothing")
    return {"log": [word.upper() if context.get("loud") else word]}


def graph_of(node: Any, **options: Any) -> Any:
    builder = StateGraph(State, **options)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile()


echo = graph_of(say)
greets = graph_of(greet, context_schema=Words)
