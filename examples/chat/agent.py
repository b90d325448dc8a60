"""A chat that streams its answer. Without a provider's API key it uses a fake model."""

import asyncio
import importlib
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime

log = logging.getLogger(__name__)

# API key variable → package, chat model class, variable that names the model, default model
PROVIDERS = {
    "OPENAI_API_KEY": ("langchain_openai", "ChatOpenAI", "OPENAI_MODEL", "gpt-4o-mini"),
    "ANTHROPIC_API_KEY": ("langchain_anthropic", "ChatAnthropic", "ANTHROPIC_MODEL", "claude-haiku-4-5"),
}

WORD_SECONDS = 0.03  # about the pace of a real model


@dataclass
class Context:
    """Settings of an assistant of this graph."""

    instructions: str = "You are a friendly assistant. Keep it short."


class FakeModel(GenericFakeChatModel):
    """Streams a prepared answer word by word, at about the pace of a real model."""

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(*args, **kwargs):
            await asyncio.sleep(WORD_SECONDS)
            yield chunk


def model_for(messages: list[BaseMessage]) -> BaseChatModel:
    """Return the model of the first provider with an API key and an installed package, or a fake model."""
    for key, (package, model, variable, default) in PROVIDERS.items():
        if not os.environ.get(key):
            continue
        if find_spec(package) is None:
            log.warning("%s is set, but %s is not installed: add it to requirements.txt", key, package)
            continue
        return getattr(importlib.import_module(package), model)(model=os.environ.get(variable, default))
    return fake_model(messages)


def fake_model(messages: list[BaseMessage]) -> BaseChatModel:
    """Return a model with a prepared answer to the last message."""
    asked = sum(message.type == "human" for message in messages)
    answer = (
        f'You said: "{messages[-1].text}". That was message {asked} of this thread. '
        "I am a fake model: set OPENAI_API_KEY or ANTHROPIC_API_KEY to talk to a real one."
    )
    return FakeModel(messages=iter([answer]))


async def answer(state: MessagesState, runtime: Runtime[Context]) -> dict[str, list[BaseMessage]]:
    context = runtime.context or Context()
    messages = state["messages"]
    reply = await model_for(messages).ainvoke([SystemMessage(context.instructions), *messages])
    return {"messages": [reply]}


graph = (
    StateGraph(MessagesState, context_schema=Context)
    .add_node("answer", answer)
    .add_edge(START, "answer")
    .add_edge("answer", END)
    .compile(name="chat")
)
