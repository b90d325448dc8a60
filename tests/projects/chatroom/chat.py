"""Two chats as a page shows them: one that repeats what it hears word by word, one that asks before it answers.

What begins with `held` waits for an item of that name in the store, under `released`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.config import get_store
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt


class Parrot(BaseChatModel):
    """Repeats the last message; what begins with `slowly` comes a word every fifth of a second, twenty-five words of it."""

    @property
    def _llm_type(self) -> str:
        return "parrot"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        message = AIMessage("".join(_words(messages)))
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        heard = str(messages[-1].content)
        pause = 0.2 if heard.startswith("slowly") else 0
        for word in _words(messages):
            yield ChatGenerationChunk(message=AIMessageChunk(word))
            await asyncio.sleep(pause)
            await released(heard)


def _words(messages: list[BaseMessage]) -> list[str]:
    heard = str(messages[-1].content)
    count = 25 if heard.startswith("slowly") else 0
    return ["heard: ", heard, *(f" {number}" for number in range(count)), "."]


async def released(name: str) -> None:
    """Returns when this may go on."""
    while name.startswith("held") and await get_store().aget(("released",), name) is None:
        await asyncio.sleep(0.05)


async def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await Parrot().ainvoke(state["messages"])]}


def ask(state: MessagesState) -> dict[str, Any]:
    decision = interrupt({"question": "Answer this?"})
    return {"messages": [AIMessage(f"decided: {decision}")]}


def chain(*nodes: Any) -> Any:
    graph = StateGraph(MessagesState)
    names = [START, *(node.__name__ for node in nodes), END]
    for node in nodes:
        graph.add_node(node.__name__, node)
    for one, next in zip(names, names[1:], strict=False):
        graph.add_edge(one, next)
    return graph.compile()


chat = chain(answer)
approves = chain(ask)
