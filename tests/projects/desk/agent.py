"""A shop's support as its pictures show it: what is asked is sorted, orders are looked up, answers come word by word.

While the store has an item `paused` under `desk`, answers stop before their last sentence.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import agenerate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

MODEL = "gpt-5-mini"
UNKNOWN = "4040"
log = logging.getLogger("support")

TRACKED = """\
Order **{number}** left our warehouse on Tuesday:

- **2 × desk lamp**: with the carrier, due tomorrow before noon
- **1 × lamp shade**: follows from the supplier on Friday

"""
LAST = "Shall I have the shade sent together with the lamps?"
GENERAL = "Lamps can be sent back within **30 days**, the shade too, as long as it is in its box. "
LAST_GENERAL = "I have put a label for the parcel into your account."


class State(MessagesState):
    topic: str


class Clerk(BaseChatModel):
    """Looks an order up where one is named, then answers."""

    @property
    def _llm_type(self) -> str:
        return "clerk"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return asyncio.run(self._agenerate(messages))

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages))

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        number = order_in(messages)
        if number and messages[-1].type != "tool":
            calls = [_call(0, "find_order", number), _call(1, "track_parcel", number)]
            chunks = [AIMessageChunk("", tool_call_chunks=calls)]
        else:
            text, last = (TRACKED.format(number=number), LAST) if number else (GENERAL, LAST_GENERAL)
            chunks = [AIMessageChunk(word) for word in re.findall(r"\S+\s*", text)]
            chunks += [AIMessageChunk(word) for word in re.findall(r"\S+\s*", last)]
        for chunk in chunks:
            if chunk.content and str(chunk.content).strip() in ("Shall", "I"):
                await _unpaused()
            yield ChatGenerationChunk(message=chunk)
            await asyncio.sleep(0.02)
        yield ChatGenerationChunk(message=_usage(messages, chunks))


def order_in(messages: list[BaseMessage]) -> str | None:
    """The order that the newest question names."""
    asked = next(message for message in reversed(messages) if message.type == "human")
    found = re.search(r"\b\d{4}\b", str(asked.content))
    return found and found.group()


def _call(index: int, name: str, number: str) -> Any:
    return tool_call_chunk(
        name=name, args=json.dumps({"number": number}), id=f"call_{name}_{number}", index=index
    )


def _usage(messages: list[BaseMessage], chunks: list[AIMessageChunk]) -> AIMessageChunk:
    given, made = 180 + 90 * len(messages), 12 + 2 * len(chunks)
    usage = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
    return AIMessageChunk("", usage_metadata=usage, response_metadata={"model_name": MODEL})


async def _unpaused() -> None:
    while await get_store().aget(("desk",), "paused") is not None:
        await asyncio.sleep(0.05)


@tool
async def find_order(number: str) -> str:
    """What is in an order."""
    await asyncio.sleep(0.3)
    log.info("looked up order %s", number)
    if number == UNKNOWN:
        raise TimeoutError("the warehouse did not answer within 10 s")
    return json.dumps({"order": number, "items": ["2 × desk lamp", "1 × lamp shade"], "paid": True})


@tool
async def track_parcel(number: str) -> str:
    """Where the parcels of an order are."""
    await asyncio.sleep(0.5)
    return json.dumps({"carrier": "Northern Parcel", "due": "tomorrow before noon"})


async def classify(state: State) -> dict[str, str]:
    await asyncio.sleep(0.15)
    topic = "delivery" if order_in(state["messages"]) else "returns"
    log.info("a question about %s", topic)
    return {"topic": topic}


async def agent(state: State) -> dict[str, list[AIMessage]]:
    return {"messages": [await Clerk().ainvoke(state["messages"])]}


def after_agent(state: State) -> Literal["tools", "__end__"]:
    return "tools" if state["messages"][-1].tool_calls else END


support = (
    StateGraph(State)
    .add_node("classify", classify)
    .add_node("agent", agent)
    .add_node("tools", ToolNode([find_order, track_parcel], handle_tool_errors=False))
    .add_edge(START, "classify")
    .add_edge("classify", "agent")
    .add_conditional_edges("agent", after_agent)
    .add_edge("tools", "agent")
    .compile()
)
