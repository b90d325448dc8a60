"""A chat: one node asks a model and its tokens stream as they come.

Without a key the model is langchain-core's own fake one. With OPENAI_API_KEY or ANTHROPIC_API_KEY set it is a
real one; see README.md for the two lines to add.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.graph import END, START, MessagesState, StateGraph

PROVIDERS = {"OPENAI_API_KEY": "openai:gpt-4.1-mini", "ANTHROPIC_API_KEY": "anthropic:claude-haiku-4-5"}
TOKEN_SECONDS = 0.03


class Parrot(GenericFakeChatModel):
    """Tells what it was told, word by word, at the speed of a real model."""

    messages: Iterator[AIMessage | str] = iter(())

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        answering = type(self)(messages=iter([answer(messages)]))
        return super(Parrot, answering)._generate(messages, *args, **kwargs)

    async def _astream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        for chunk in self._stream(messages, *args, **kwargs):
            await asyncio.sleep(TOKEN_SECONDS)
            yield chunk


def answer(messages: list[BaseMessage]) -> AIMessage:
    return AIMessage(
        f"You wrote: {messages[-1].text!r}. I am a model made for demonstrations and repeat what I hear; "
        "give this deployment a key of a real one and it will answer."
    )


def choose_model() -> BaseChatModel:
    """The first provider whose key is there, else the fake one."""
    for variable, name in PROVIDERS.items():
        if os.environ.get(variable):
            from langchain.chat_models import init_chat_model  # an extra dependency: only with a key

            return init_chat_model(name)
    return Parrot()


model = choose_model()


async def respond(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = (
    StateGraph(MessagesState)
    .add_node("respond", respond)
    .add_edge(START, "respond")
    .add_edge("respond", END)
    .compile()
)
