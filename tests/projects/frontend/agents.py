"""Agents for clients of AG-UI: what the last message says decides what happens."""

import asyncio
import operator
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt

USAGE = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}


class Model(BaseChatModel):
    """Streams the given parts, a moment apart."""

    parts: list[Any]
    seconds: float = 0.01

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _chunks(self) -> Iterator[ChatGenerationChunk]:
        for part in self.parts:
            fields = part if isinstance(part, dict) else {"content": part}
            yield ChatGenerationChunk(message=AIMessageChunk(**{"content": "", **fields}))
        last = AIMessageChunk("", usage_metadata=USAGE, response_metadata={"model_name": "large"})
        yield ChatGenerationChunk(message=last)

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        whole = None
        for chunk in self._chunks():
            whole = chunk if whole is None else whole + chunk
        return ChatResult(generations=[ChatGeneration(message=AIMessage(**whole.message.model_dump()))])

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._chunks():
            yield chunk
            await asyncio.sleep(self.seconds)


def calling(name: str, id: str, *pieces: str) -> list[Any]:
    """Parts of a message that calls a tool, with its arguments in pieces."""
    first = {"name": name, "args": "", "id": id, "index": 0, "type": "tool_call_chunk"}
    rest = [
        {"name": None, "args": piece, "id": None, "index": 0, "type": "tool_call_chunk"} for piece in pieces
    ]
    return [{"tool_call_chunks": [chunk]} for chunk in (first, *rest)]


Chat = TypedDict(
    "Chat",
    {
        "messages": Annotated[list[AnyMessage], add_messages],
        "topic": str,
        "notes": Annotated[list[str], operator.add],
        "tools": list[Any],
        "ag-ui": dict[str, Any],
    },
    total=False,
)


def said(state: Chat) -> str:
    return next(message.text for message in reversed(state["messages"]) if message.type == "human")


async def answer(state: Chat) -> Chat:
    last = state["messages"][-1]
    name = f"{len(state['messages'])}"
    if last.type == "tool":
        return {"messages": [await Model(parts=["The ", f"answer is {last.text}"]).ainvoke("")]}
    match said(state).split():
        case ["weather", city]:
            parts = ["Let me look. ", *calling("weather", f"w-{name}", '{"city": ', f'"{city}"}}')]
        case ["colour", colour]:
            assert [tool["name"] for tool in state["tools"]] == ["set_colour"]
            parts = calling("set_colour", f"c-{name}", f'{{"colour": "{colour}"}}')
        case ["think"]:
            thought = {"type": "thinking", "index": 0}
            parts = [
                {"content": [{**thought, "thinking": "Hmm, "}]},
                {"content": [{**thought, "thinking": "yes."}]},
                {"content": [{**thought, "thinking": "", "signature": "c2lnbmVk"}]},
                {"content": [{"type": "text", "text": "Thought.", "index": 1}]},
            ]
        case ["buy", thing]:
            choice = interrupt({"question": f"Buy {thing}?", "response_schema": {"type": "boolean"}})
            parts = [f"Answer for {thing}: {choice}"]
        case ["fail"]:
            await Model(parts=["I will ", "fail"]).ainvoke("")
            raise ValueError("boom")
        case ["wait"]:
            parts = [f"word {number} " for number in range(2000)]
            return {"messages": [await Model(parts=parts, seconds=0.05).ainvoke("")]}
        case ["die"]:
            mark = Path.home() / "died"
            if mark.exists():
                parts = ["Alive ", "again"]
            else:
                mark.write_text("x")
                parts = ["Alive", " until"]
                await Model(parts=parts).ainvoke("")
                os.kill(os.getpid(), signal.SIGKILL)
        case ["note", *words]:
            get_stream_writer()({"name": "noted", "value": len(words)})
            return {
                "topic": " ".join(words),
                "notes": words,
                "messages": [AIMessage("Noted.", id=f"noted-{name}")],
            }
        case ["plain"]:
            return {"messages": [{"role": "assistant", "content": "A plain object."}]}
        case ["context"]:
            parts = [" ".join(item["value"] for item in state["ag-ui"]["context"])]
        case _:
            parts = ["Hello ", "from ", "the agent"]
    return {"messages": [await Model(parts=parts).ainvoke("")]}


async def tools(state: Chat) -> Chat:
    (call,) = state["messages"][-1].tool_calls
    return {"messages": [ToolMessage(f"sunny in {call['args']['city']}", tool_call_id=call["id"])]}


def route(state: Chat) -> str:
    calls = getattr(state["messages"][-1], "tool_calls", [])
    return "tools" if calls and calls[0]["name"] == "weather" else END


_chat = StateGraph(Chat)
_chat.add_node(answer)
_chat.add_node(tools)
_chat.add_edge(START, "answer")
_chat.add_conditional_edges("answer", route, ["tools", END])
_chat.add_edge("tools", "answer")
chat = _chat.compile()


async def outline(state: Chat) -> Chat:
    return {"topic": said(state)}


_team = StateGraph(Chat)
_team.add_node(outline)
_team.add_node("writer", _chat.compile())
_team.add_edge(START, "outline")
_team.add_edge("outline", "writer")
_team.add_edge("writer", END)
team = _team.compile()


class Trip(TypedDict, total=False):
    city: str
    plan: str


async def plan(state: Trip) -> Trip:
    return {"plan": f"a day in {state['city']}"}


_trips = StateGraph(Trip)
_trips.add_node(plan)
_trips.add_edge(START, "plan")
trips = _trips.compile()
