"""The chat model: a provider's if its API key is set, else a fake one. The same file is in several examples."""

import importlib
import logging
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Self

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool

log = logging.getLogger(__name__)

# API key variable → package, chat model class, variable that names the model, default model
PROVIDERS = {
    "OPENAI_API_KEY": ("langchain_openai", "ChatOpenAI", "OPENAI_MODEL", "gpt-4o-mini"),
    "ANTHROPIC_API_KEY": ("langchain_anthropic", "ChatAnthropic", "ANTHROPIC_MODEL", "claude-haiku-4-5"),
}

Reply = Callable[[Sequence[BaseMessage], Sequence[BaseTool]], AIMessage]


class FakeModel(BaseChatModel):
    """A model without a provider: a function of the example computes its replies."""

    reply: Reply
    tools: Sequence[BaseTool] = ()

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Self:
        return self.model_copy(update={"tools": tools})

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.reply(messages, self.tools))])

    @property
    def _llm_type(self) -> str:
        return "fake"


def chat_model(fake_reply: Reply) -> BaseChatModel:
    """Return the model of the first provider with an API key and an installed package, or a fake model."""
    for key, (package, model, variable, default) in PROVIDERS.items():
        if not os.environ.get(key):
            continue
        if find_spec(package) is None:
            log.warning("%s is set, but %s is not installed: add it to requirements.txt", key, package)
            continue
        return getattr(importlib.import_module(package), model)(model=os.environ.get(variable, default))
    log.warning("A fake model answers. Set %s for a real one.", " or ".join(PROVIDERS))
    return FakeModel(reply=fake_reply)


def call(tool: str, **arguments: Any) -> AIMessage:
    """Return a fake reply that calls a tool."""
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"call-{tool}"}])
