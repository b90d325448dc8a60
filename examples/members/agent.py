"""A chat that knows the signed-in user. It needs no API key because its model has a prepared answer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph

WORD_SECONDS = 0.05  # about the pace of a real model


class FakeModel(GenericFakeChatModel):
    """Streams a prepared answer word by word. Replace it with a provider's model."""

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(*args, **kwargs):
            await asyncio.sleep(WORD_SECONDS)
            yield chunk


async def answer(state: MessagesState, config: RunnableConfig) -> dict[str, list[BaseMessage]]:
    user = config["configurable"].get("langgraph_auth_user")
    name = user.display_name if user is not None else "stranger"
    asked = sum(message.type == "human" for message in state["messages"])
    text = f'Hello {name}! You said: "{state["messages"][-1].text}". That was your message {asked} here.'
    return {"messages": [await FakeModel(messages=iter([text])).ainvoke(state["messages"])]}


graph = (
    StateGraph(MessagesState)
    .add_node("answer", answer)
    .add_edge(START, "answer")
    .add_edge("answer", END)
    .compile(name="members")
)
