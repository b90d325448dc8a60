"""Interception of the calls of tools and chat models in replayed runs.

LangChain calls every tool through `BaseTool.run` or `arun`, and every chat model through `_generate_with_cache` or
`_agenerate_with_cache`. `install` wraps these once, when the process has its first replay. The wrappers look up the
replay in a context variable, so each run of a host has its own answers, and runs that are no replay pass through. Code
that calls a function of the project directly, or an object that is no `BaseTool`, is not intercepted.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, ToolException
from langchain_core.utils.pydantic import get_fields

from .. import frames
from ..output import current_run_id
from . import network
from .replay import RecordedTool, Replay, current_replay, service

# The tool, its input, and the context that permits connections to a tool that is executed.
Routed = tuple[BaseTool, Any, AbstractContextManager[Any]]


@functools.cache
def install() -> None:
    """Have the calls of all tools and chat models of this process pass through the replay of their run."""
    BaseTool.run = _tool_run(BaseTool.run)  # type: ignore[method-assign]
    BaseTool.arun = _tool_arun(BaseTool.arun)  # type: ignore[method-assign]
    BaseChatModel._generate_with_cache = _generate(BaseChatModel._generate_with_cache)  # type: ignore[method-assign]
    BaseChatModel._agenerate_with_cache = _agenerate(BaseChatModel._agenerate_with_cache)  # type: ignore[method-assign]
    BaseChatModel.stream = _stream(BaseChatModel.stream)  # type: ignore[method-assign]
    BaseChatModel.astream = _astream(BaseChatModel.astream)  # type: ignore[method-assign]
    network.watch()


def _replay_of_tool(tool: BaseTool) -> Replay | None:
    """Return the replay that answers a tool's call, None if it is executed without one.

    Code in a thread that a node has started without its context belongs to no run. It must not execute tools for a replay.
    """
    replay = current_replay.get()
    if replay is None and current_run_id.get() == frames.NOBODY:
        raise ToolException(f"the tool {tool.name!r} is called outside of its run, which is a replay")
    return None if isinstance(tool, RecordedTool) else replay


def _routed(tool: BaseTool, tool_input: Any, kwargs: Mapping[str, Any]) -> Routed:
    """Return the tool to run with its input: the tool itself, or a stand-in that answers from the recording."""
    replay = _replay_of_tool(tool)
    if replay is None:
        return tool, tool_input, nullcontext()
    visible = _visible(tool, tool_input)
    call_id = kwargs.get("tool_call_id")
    key = replay.key_of(tool.name, visible, call_id)
    if replay.is_live(tool.name, key):
        return tool, tool_input, service()
    stand_in = replay.stand_in(tool, key, visible, call_id, kwargs.get("config"))
    return stand_in, visible, nullcontext()


def _tool_run(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def replayed(self: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        tool, given, network_rule = _routed(self, tool_input, kwargs)
        with network_rule:
            return run(tool, given, *args, **kwargs)

    return replayed


def _tool_arun(arun: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(arun)
    async def replayed(self: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        tool, given, network_rule = _routed(self, tool_input, kwargs)
        with network_rule:
            return await arun(tool, given, *args, **kwargs)

    return replayed


def _visible(tool: BaseTool, tool_input: Any) -> Any:
    """Return the arguments that a model has given, without those that LangGraph injects."""
    if not isinstance(tool_input, dict):
        return tool_input
    without_injected = getattr(tool, "_filter_injected_args", None)  # newer versions of LangChain
    if without_injected is not None:
        return without_injected(tool_input)
    schema = tool.tool_call_schema
    names = schema.get("properties", {}) if isinstance(schema, dict) else get_fields(schema)
    return {name: value for name, value in tool_input.items() if name in names}


def _generate(generate: Callable[..., ChatResult]) -> Callable[..., ChatResult]:
    @functools.wraps(generate)
    def replayed(self: BaseChatModel, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        replay = current_replay.get()
        if replay is None:
            return generate(self, messages, *args, **kwargs)
        if (answer := replay.model_answer(messages)) is not None:
            return ChatResult(generations=[ChatGeneration(message=answer)])
        with service():
            return _learned(replay, generate(self, messages, *args, **kwargs))

    return replayed


def _agenerate(generate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(generate)
    async def replayed(
        self: BaseChatModel, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> ChatResult:
        replay = current_replay.get()
        if replay is None:
            return await generate(self, messages, *args, **kwargs)
        if (answer := replay.model_answer(messages)) is not None:
            return ChatResult(generations=[ChatGeneration(message=answer)])
        with service():
            return _learned(replay, await generate(self, messages, *args, **kwargs))

    return replayed


def _learned(replay: Replay, result: ChatResult) -> ChatResult:
    for generation in result.generations:
        replay.learn_calls(generation.message)
    return result


# In a replay a streamed answer is one chunk: `stream` would call the model by another way.


def _stream(stream: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(stream)
    def replayed(self: BaseChatModel, *args: Any, **kwargs: Any) -> Iterator[Any]:
        if current_replay.get() is None:
            yield from stream(self, *args, **kwargs)
        else:
            yield _chunk(self.invoke(*args, **kwargs))

    return replayed


def _astream(stream: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    @functools.wraps(stream)
    async def replayed(self: BaseChatModel, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        if current_replay.get() is None:
            async for chunk in stream(self, *args, **kwargs):
                yield chunk
        else:
            yield _chunk(await self.ainvoke(*args, **kwargs))

    return replayed


def _chunk(message: BaseMessage) -> BaseMessage:
    if isinstance(message, AIMessageChunk) or not isinstance(message, AIMessage):
        return message
    return AIMessageChunk(
        **{name: getattr(message, name) for name in AIMessage.model_fields if name != "type"}
    )
