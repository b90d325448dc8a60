"""A project whose store is searched by meaning; what it means by meaning is how often words come."""

from typing import Any, TypedDict

from langgraph.config import get_store
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

WORDS = ("tea", "coffee", "rain")


async def embed(texts: list[str]) -> list[list[float]]:
    if any("unreadable" in text for text in texts):
        raise ValueError("this cannot be embedded")
    return [[float(text.lower().count(word)) + 0.01 for word in WORDS] for text in texts]


class State(TypedDict, total=False):
    note: str
    question: str
    found: list[Any]


async def remember(state: State, runtime: Runtime) -> State:
    if state.get("note"):
        await runtime.store.aput(("notes",), state["note"], {"text": state["note"]})
    items = await get_store().asearch(("notes",), query=state["question"], limit=2)
    return {"found": [[item.key, round(item.score, 1)] for item in items]}


builder = StateGraph(State)
builder.add_node(remember)
builder.add_edge(START, "remember")
builder.add_edge("remember", END)
graph = builder.compile()
