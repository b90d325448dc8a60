"""The subgraph that investigates one question: a slow search that reports its progress, then a summary."""

import asyncio
from dataclasses import dataclass

from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from typing_extensions import TypedDict  # pydantic rejects typing.TypedDict before Python 3.12


@dataclass
class Context:
    """Settings of an assistant of this graph."""

    search_seconds: float = 2.0  # duration of the search for one question
    sources: int = 4  # number of sources it finds


class Question(TypedDict):
    question: str


class Investigation(Question, total=False):
    found: list[str]
    findings: list[str]  # copied to the parent graph's channel of the same name


async def search(state: Investigation, runtime: Runtime[Context]) -> dict[str, list[str]]:
    """Stand in for calls to a slow service. Each result is streamed as soon as it is found."""
    context = runtime.context or Context()
    write = get_stream_writer()
    found: list[str] = []
    for number in range(1, context.sources + 1):
        await asyncio.sleep(context.search_seconds / context.sources)
        found.append(f"source {number}")
        write({"question": state["question"], "found": number, "of": context.sources})
    return {"found": found}


def summarise(state: Investigation) -> dict[str, list[str]]:
    return {"findings": [f"{state['question']} According to {', '.join(state['found'])}: it depends."]}


investigation = (
    StateGraph(Investigation, input_schema=Question, context_schema=Context)
    .add_node("search", search)
    .add_node("summarise", summarise)
    .add_edge(START, "search")
    .add_edge("search", "summarise")
    .add_edge("summarise", END)
    .compile(name="investigation")
)
