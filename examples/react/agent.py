"""A chat that asks before it sends something. It needs no API key because its model has prepared answers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import BaseMessage
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


async def answer(state: MessagesState) -> dict[str, list[BaseMessage]]:
    text = state["messages"][-1].text
    if text.lower().startswith("send"):
        decision = interrupt({"question": f"May I do this: {text}"})
        reply = (
            "Done, I have sent it." if decision == {"approve": True} else "All right, I have sent nothing."
        )
    else:
        reply = f'You said: "{text}". Write "Send a letter to Ada", and I will ask you before I do it.'
    return {"messages": [await FakeModel(messages=iter([reply])).ainvoke(state["messages"])]}


graph = (
    StateGraph(MessagesState)
    .add_node("answer", answer)
    .add_edge(START, "answer")
    .add_edge("answer", END)
    .compile(name="react")
)
