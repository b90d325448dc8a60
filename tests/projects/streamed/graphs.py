"""Graphs whose streams are compared whole: each shows what the order and the names of events depend on."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, TypedDict

from langchain_core.callbacks.manager import adispatch_custom_event
from langchain_core.language_models.chat_models import BaseChatModel, agenerate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Send, interrupt


class State(TypedDict, total=False):
    text: str
    log: Annotated[list[Any], operator.add]


class Chat(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]


class Speaker(BaseChatModel):
    """A model that says these words; one with a tool calls it first."""

    words: list[str]
    tool: str | None = None
    before: Callable[[str], Awaitable[None]] | None = None  # awaited before each word

    @property
    def _llm_type(self) -> str:
        return "speaker"

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages))

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        if self.tool is not None and not isinstance(messages[-1], ToolMessage):
            for args in ("", '{"city": ', '"Rome"}'):
                call = {
                    "name": None if args else self.tool,
                    "args": args,
                    "id": None if args else "call-1",
                    "index": 0,
                }
                yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=[call]))
            return
        for word in self.words:
            if self.before is not None:
                await self.before(word)
            yield ChatGenerationChunk(message=AIMessageChunk(word))


# A model that calls a tool, which writes


@tool
async def weather(city: str) -> str:
    """The weather of a city."""
    get_stream_writer()({"looks at": city})
    return f"sunny in {city}"


async def think(state: Chat) -> Chat:
    return {"messages": [await Speaker(words=["it ", "is"], tool="weather").ainvoke(state["messages"])]}


_agent = StateGraph(Chat)
_agent.add_node(think)
_agent.add_node("tools", ToolNode([weather]))
_agent.add_edge(START, "think")
_agent.add_conditional_edges("think", tools_condition)
_agent.add_edge("tools", "think")
agent = _agent.compile()

# Two floors of subgraphs: a model below, a message returned whole above it


async def prepare(state: Chat) -> Chat:
    get_stream_writer()("prepared")
    return {}


async def speak(state: Chat) -> Chat:
    return {"messages": [await Speaker(words=["in", "side"]).ainvoke(state["messages"])]}


async def say(state: Chat) -> Chat:
    return {"messages": [AIMessage("whole", id="whole")]}


_inner = StateGraph(Chat).add_node(prepare).add_node(speak)
_inner.add_edge(START, "prepare")
_inner.add_edge("prepare", "speak")
_outer = StateGraph(Chat).add_node("inner", _inner.compile()).add_node(say)
_outer.add_edge(START, "inner")
_outer.add_edge("inner", "say")
_nested = StateGraph(Chat).add_node("outer", _outer.compile())
_nested.add_edge(START, "outer")
nested = _nested.compile()

# An interrupt in the root, then one in a subgraph


async def one(state: State) -> State:
    return {"log": ["one"]}


async def ask(state: State) -> State:
    return {"log": [interrupt("above?")]}


async def ask_below(state: State) -> State:
    return {"log": [interrupt({"question": "below?"})]}


_below = StateGraph(State).add_node(one).add_node(ask_below)
_below.add_edge(START, "one")
_below.add_edge("one", "ask_below")
_asks = StateGraph(State).add_node(ask).add_node("below", _below.compile())
_asks.add_edge(START, "ask")
_asks.add_edge("ask", "below")
asks = _asks.compile()

# Two models at once, which take turns


async def talk(state: Chat) -> Chat:
    order = ["l1", "r1", "l2", "left is over", "r2"]
    moved = asyncio.Condition()

    async def turn(word: str) -> None:
        async with moved:
            await moved.wait_for(lambda: order[0] == word)
            order.pop(0)
            moved.notify_all()

    async def left() -> Any:
        said = await Speaker(words=["l1", "l2"], before=turn).ainvoke("hi")
        await turn("left is over")
        return said

    right = Speaker(words=["r1", "r2"], before=turn).ainvoke("hi")
    return {"messages": await asyncio.gather(left(), right)}


both = StateGraph(Chat).add_node(talk).add_edge(START, "talk").compile()

# What nodes write themselves, and how they send work on


async def write(state: State) -> Command[Any]:
    writer = get_stream_writer()
    writer({"n": 1})
    writer("text")
    writer(None)
    await adispatch_custom_event("mine", {"x": 1})
    await RunnableLambda(lambda number: number + 1).with_config(run_name="plus", tags=["mine"]).ainvoke(1)
    return Command(update={"log": ["write"]}, goto=[Send("leaf", {"text": "a"})])


async def leaf(state: State) -> State:
    get_stream_writer()([1, 2])
    return {"log": [f"leaf {state['text']}"]}


async def silent(state: State) -> None:
    return None


writes = StateGraph(State).add_node("write", write, destinations=("leaf",)).add_node(leaf).add_node(silent)
writes = writes.add_edge(START, "write").add_edge("leaf", "silent").compile()

# Three parallel nodes, two of which interrupt, before a node that interrupts twice


async def left(state: State) -> State:
    return {"log": [interrupt("left?")]}


async def right(state: State) -> State:
    return {"log": [interrupt("right?")]}


async def third(state: State) -> State:
    return {"log": ["third"]}


async def twice(state: State) -> State:
    return {"log": [interrupt("first?"), interrupt("second?")]}


parallels = StateGraph(State).add_node(left).add_node(right).add_node(third).add_node(twice)
for name in ("left", "right", "third"):
    parallels = parallels.add_edge(START, name).add_edge(name, "twice")
parallels = parallels.compile()

# Keys that LangChain's events treat as whole values; run with breakpoints and from earlier checkpoints


class Asked(TypedDict, total=False):
    input: str
    output: str


async def first(state: Asked) -> Asked:
    return {"output": f"{state['input']} first"}


async def second(state: Asked) -> Asked:
    return {"output": f"{state['output']} second"}


steps = StateGraph(Asked).add_node(first).add_node(second).add_edge(START, "first").add_edge("first", "second")
steps = steps.compile()

# A subgraph that hands over to its parent, and one that fails


class BrokenError(Exception):
    """An error that has the same name in JavaScript."""


async def hand_over(state: State) -> Command[Any]:
    return Command(graph=Command.PARENT, update={"log": ["handed over"]}, goto="breaks")


async def broken(state: State) -> State:
    raise BrokenError("it broke")


_hands = StateGraph(State).add_node(one).add_node(hand_over)
_hands.add_edge(START, "one").add_edge("one", "hand_over")
_breaks = StateGraph(State).add_node(one).add_node(broken).add_edge(START, "one").add_edge("one", "broken")
fails = StateGraph(State).add_node("hands", _hands.compile(), destinations=("breaks",))
fails = fails.add_node("breaks", _breaks.compile()).add_edge(START, "hands").compile()

# A model whose stream is hidden: the node returns its answer whole


async def whisper(state: Chat) -> Chat:
    hidden = Speaker(words=["in ", "secret"]).with_config(tags=["nostream"])
    return {"messages": [await hidden.ainvoke("hi")]}


whispers = StateGraph(Chat).add_node("speak", whisper).add_edge(START, "speak").compile()


# A loop that ends after three rounds


async def count(state: State) -> State:
    get_stream_writer()({"round": len(state.get("log", []))})
    return {"log": [state["text"] * (len(state.get("log", [])) + 1)]}


def goes_on(state: State) -> str:
    return "count" if len(state["log"]) < 3 else END


loops = StateGraph(State).add_node("count", count).add_edge(START, "count")
loops = loops.add_conditional_edges("count", goes_on, ["count", END]).compile()


# A model whose answer has blocks: its reasoning, in two parts, and then its words


class Thinker(Speaker):
    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for word in self.words:
            kind = "text" if word == "so" else "reasoning"
            block = {"type": kind, kind: word, "index": int(kind == "text")}
            yield ChatGenerationChunk(message=AIMessageChunk([block]))


async def ponder(state: Chat) -> Chat:
    return {"messages": [await Thinker(words=["hm", ", yes", "so"]).ainvoke("hi")]}


thinks = StateGraph(Chat).add_node("ponder", ponder).add_edge(START, "ponder").compile()
