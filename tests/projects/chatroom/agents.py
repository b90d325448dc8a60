"""Agents as a page shows them: with tools, with others who work for them, with two questions at once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from chat import answer, chain, released
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime
from langgraph.types import Send, interrupt

listener = chain(answer)


class Planner(BaseChatModel):
    """Hears a tool's name and calls it for each word that follows, then says what came of it."""

    @property
    def _llm_type(self) -> str:
        return "planner"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        if messages[-1].type == "tool":
            results = [str(message.content) for message in messages if message.type == "tool"]
            chunks = [AIMessageChunk(text) for text in ("so: ", *results)]
        else:
            name, *words = str(messages[-1].content).split()
            chunks = [AIMessageChunk("", tool_call_chunks=[_call(name, *each)]) for each in enumerate(words)]
        for chunk in chunks:
            yield ChatGenerationChunk(message=chunk)


def _call(name: str, index: int, word: str) -> Any:
    args = {"description": word, "subagent_type": "listener"} if name == "task" else {"about": word}
    return tool_call_chunk(name=name, args=json.dumps(args), id=f"call-{uuid4()}", index=index)


@tool
async def find(about: str, runtime: ToolRuntime) -> str:
    """Tell what is known of something."""
    for word in ("looking ", "for ", about):
        runtime.emit_output_delta(word)
    await released(about)
    if about == "nothing":
        raise ValueError("nobody knows")
    return f"{about} is known"


@tool
async def task(description: str, subagent_type: str) -> str:
    """Have somebody else listen."""
    heard = await listener.ainvoke({"messages": [HumanMessage(description)]})
    return str(heard["messages"][-1].content)


async def plan(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await Planner().ainvoke(state["messages"])]}


def each_call(state: MessagesState) -> list[Send] | str:
    """Every call is a task of its own, as in the agents that people install."""
    calls = state["messages"][-1].tool_calls
    return [Send("tools", [{**call, "type": "tool_call"}]) for call in calls] or END


_helps = StateGraph(MessagesState)
_helps.add_node("plan", plan)
_helps.add_node("tools", ToolNode([find, task], handle_tool_errors=True))
_helps.add_edge(START, "plan")
_helps.add_conditional_edges("plan", each_call, ["tools", END])
_helps.add_edge("tools", "plan")
helps = _helps.compile()


async def research(state: MessagesState) -> dict[str, Any]:
    """What is said in the graph within stays there."""
    notes = await listener.ainvoke({"messages": [HumanMessage(f"{state['messages'][-1].content}")]})
    return {"messages": [AIMessage(f"notes taken: {len(notes['messages'])}")]}


researches = chain(research)


def ask_first(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"first: {interrupt({'question': 'first?'})}")]}


def ask_second(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"second: {interrupt({'question': 'second?'})}")]}


_asks = StateGraph(MessagesState)
for _ask in (ask_first, ask_second):
    _asks.add_node(_ask.__name__, _ask)
    _asks.add_edge(START, _ask.__name__)
    _asks.add_edge(_ask.__name__, END)
asks_twice = _asks.compile()
