"""The subgraph: one question, searched and read. Searching is slow, and tells how far it is."""

from __future__ import annotations

import asyncio
from typing import TypedDict

from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph

SEARCH_SECONDS = 2.0
STEPS = 4


class Lookup(TypedDict, total=False):
    question: str
    sources: list[str]
    findings: list[str]


async def search(state: Lookup) -> Lookup:
    """A slow node: it reports its progress as custom events."""
    write = get_stream_writer()
    for step in range(1, STEPS + 1):
        await asyncio.sleep(SEARCH_SECONDS / STEPS)
        write({"question": state["question"], "searched": step / STEPS})
    return {"sources": [f"{state['question']} ({kind})" for kind in ("paper", "article")]}


def read(state: Lookup) -> Lookup:
    return {"findings": [f"What the {source} says." for source in state["sources"]]}


graph = (
    StateGraph(Lookup)
    .add_node("search", search)
    .add_node("read", read)
    .add_edge(START, "search")
    .add_edge("search", "read")
    .add_edge("read", END)
    .compile()
)
