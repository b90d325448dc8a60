"""The graphs that the benchmark runs: no model, no network, and constant state size.

The input says how much work a graph does, so one deployment serves every scenario.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NotRequired, TypedDict

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph


class EchoState(TypedDict):
    text: str
    reply: NotRequired[str]


class StepsState(TypedDict):
    steps_left: int


class TokensState(TypedDict):
    count: int
    interval_seconds: float  # 0: as fast as the graph can
    written: NotRequired[int]


class SecondsState(TypedDict):
    seconds: float
    spent_seconds: NotRequired[float]


def single_node(state: type, node: Callable[..., Any]) -> CompiledStateGraph:
    graph = StateGraph(state)
    graph.add_node("work", node)
    graph.add_edge(START, "work")
    graph.add_edge("work", END)
    return graph.compile()


async def paced(count: int, interval_seconds: float) -> AsyncIterator[int]:
    """Yield the numbers below `count` on a fixed schedule: a late tick does not delay the following ones."""
    start = time.monotonic()
    for index in range(count):
        await asyncio.sleep(max(start + index * interval_seconds - time.monotonic(), 0))
        yield index


async def repeat_text(state: EchoState) -> dict[str, Any]:
    return {"reply": f"echo: {state['text']}"}


async def count_down(state: StepsState) -> dict[str, Any]:
    return {"steps_left": state["steps_left"] - 1}


async def write_tokens(state: TokensState) -> dict[str, Any]:
    write = get_stream_writer()
    async for index in paced(state["count"], state["interval_seconds"]):
        write({"index": index, "made_at": time.time()})
    return {"written": state["count"]}


class TickingModel(BaseChatModel):
    """A chat model whose chunks read `index:made_at`, so that message streams can be timed too."""

    count: int
    interval_seconds: float

    @property
    def _llm_type(self) -> str:
        return "ticking"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content="not streamed"))])

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        async for index in paced(self.count, self.interval_seconds):
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{index}:{time.time():.6f} "))


async def ask_model(state: TokensState) -> dict[str, Any]:
    model = TickingModel(count=state["count"], interval_seconds=state["interval_seconds"])
    await model.ainvoke("go")
    return {"written": state["count"]}


async def sleep(state: SecondsState) -> dict[str, Any]:
    await asyncio.sleep(state["seconds"])
    return {"spent_seconds": state["seconds"]}


def block_thread(state: SecondsState) -> dict[str, Any]:
    time.sleep(state["seconds"])
    return {"spent_seconds": state["seconds"]}


def burn_cpu(state: SecondsState) -> dict[str, Any]:
    """Use the given number of CPU seconds, however long the wall time."""
    end = time.thread_time() + state["seconds"]
    while time.thread_time() < end:
        pass
    return {"spent_seconds": state["seconds"]}


def countdown() -> CompiledStateGraph:
    graph = StateGraph(StepsState)
    graph.add_node("step", count_down)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: "step" if state["steps_left"] > 0 else END)
    return graph.compile()


echo = single_node(EchoState, repeat_text)
steps = countdown()
tokens = single_node(TokensState, write_tokens)
llm = single_node(TokensState, ask_model)
idle = single_node(SecondsState, sleep)
block = single_node(SecondsState, block_thread)
burn = single_node(SecondsState, burn_cpu)
