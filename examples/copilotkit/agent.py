"""An agent for a page of CopilotKit: it streams, paints the page with a tool of the page, and asks before it orders.

It needs no API key because its model has prepared answers.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

WORD_SECONDS = 0.03  # about the pace of a real model


class FakeModel(GenericFakeChatModel):
    """Streams a prepared answer word by word. Replace it with a provider's model."""

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(*args, **kwargs):
            await asyncio.sleep(WORD_SECONDS)
            yield chunk


class State(MessagesState, total=False):
    tools: list[dict[str, Any]]  # tools of the page: pass them to a real model with `bind_tools`
    orders: list[str]  # the page shows them


async def answer(state: State) -> dict[str, Any]:
    last = state["messages"][-1]
    if last.type == "tool":
        return {"messages": [await reply(f"Done. The page says: {last.text}")]}
    verb, _, rest = last.text.partition(" ")
    thing = rest.rstrip(".!")
    match verb.lower():
        case "paint":
            call = {"id": f"call-{uuid4()}", "name": "paint_page", "args": {"colour": thing}}
            return {"messages": [AIMessage("", tool_calls=[call])]}
        case "order":
            return await order(thing, state.get("orders", []))
    return {"messages": [await reply(f'You said: "{last.text}". Try "Paint lightblue" or "Order tea".')]}


async def order(thing: str, orders: list[str]) -> dict[str, Any]:
    decision = interrupt({"message": f"May I order {thing}?", "response_schema": {"type": "boolean"}})
    if decision is not True:
        return {"messages": [await reply(f"All right, no {thing}.")]}
    return {"messages": [await reply(f"I have ordered {thing}.")], "orders": [*orders, thing]}


async def reply(text: str) -> BaseMessage:
    return await FakeModel(messages=iter([text])).ainvoke("")


graph = (
    StateGraph(State)
    .add_node("answer", answer)
    .add_edge(START, "answer")
    .add_edge("answer", END)
    .compile(name="copilotkit")
)
