"""Graphs with models that stream, tools and subgraphs, for what is told of a run while it is executed."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages, push_message
from langgraph.prebuilt import ToolNode
from langgraph.types import Send, interrupt


class Scripted(BaseChatModel):
    """Says these chunks, whatever it is asked."""

    chunks: list[Any] = []
    id: str | None = None
    fails: bool = False

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for said in self.chunks:
            fields = {"content": said} if isinstance(said, str) else {"content": "", **said}
            chunk = ChatGenerationChunk(message=AIMessageChunk(id=self.id, **fields))
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
        if self.fails:
            raise ValueError("the model broke off")

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        whole = None
        for chunk in self._stream(messages):
            whole = chunk if whole is None else whole + chunk
        message = AIMessage(**{**whole.message.model_dump(exclude={"type", "tool_call_chunks", "chunk_position"})})
        return ChatResult(generations=[ChatGeneration(message=message)])


class Chat(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    text: str
    log: Annotated[list[Any], operator.add]


def chain(*nodes: Any) -> Any:
    builder = StateGraph(Chat)
    before = START
    for node in nodes:
        builder.add_node(node)
        builder.add_edge(before, node.__name__)
        before = node.__name__
    builder.add_edge(before, END)
    return builder


USAGE = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12, "input_token_details": {"cache_read": 2}}


def args(index: int, text: str | None, **known: Any) -> dict[str, Any]:
    """A piece of a tool call."""
    return {"tool_call_chunks": [{"index": index, "args": text, "id": None, "name": None, **known}]}


FIRST = [
    {"content": "Let me ", "response_metadata": {"model_name": "scripted-1", "model_provider": "nobody"}},
    "look.",
    args(1, "", id="call-1", name="look_up"),
    args(1, '{"word": '),
    args(1, '"sea"}'),
    {"usage_metadata": USAGE, "response_metadata": {"finish_reason": "tool_calls"}},
]
SECOND = ["It is ", "water."]


@tool
async def look_up(word: str) -> str:
    """What a word means."""
    return f"{word} means something"


async def agent(state: Chat) -> Chat:
    script = SECOND if isinstance(state["messages"][-1], ToolMessage) else FIRST
    return {"messages": [await Scripted(chunks=script).ainvoke(state["messages"])]}


def goes_on(state: Chat) -> str:
    return "tools" if state["messages"][-1].tool_calls else END


_react = StateGraph(Chat)
_react.add_node(agent)
_react.add_node("tools", ToolNode([look_up]))
_react.add_edge(START, "agent")
_react.add_conditional_edges("agent", goes_on, ["tools", END])
_react.add_edge("tools", "agent")
react = _react.compile()


async def tell(state: Chat) -> Chat:
    return {"messages": [await Scripted(chunks=["deep ", "inside"]).ainvoke("?")], "log": ["told"]}


async def note(state: Chat) -> Chat:
    return {"log": ["noted"]}


_middle = chain(note)
_middle.add_node("inner", chain(tell).compile())
_middle.add_edge("note", "inner")
_outer = chain(note)
_outer.add_node("middle", _middle.compile())
_outer.add_edge("note", "middle")
layers = _outer.compile()


_forgetful = chain(note)
_forgetful.add_node("child", chain(note).compile(checkpointer=False))
_forgetful.add_edge("note", "child")
forgetful = _forgetful.compile()


def ask(state: Chat) -> Chat:
    return {"log": [interrupt({"question": state.get("text")})]}


def ask_again(state: Chat) -> Chat:
    return {"log": [interrupt("again")]}


def ask_much(state: Chat) -> Chat:
    return {"log": [interrupt("x" * 2_000_000)]}


asks_much = chain(ask_much).compile()
asks = chain(note, ask).compile()
_both = StateGraph(Chat)
for _node in (ask, ask_again, note):
    _both.add_node(_node)
    _both.add_edge(START, _node.__name__)
asks_both = _both.compile()
_asking = chain(note)
_asking.add_node("child", chain(note, ask).compile())
_asking.add_edge("note", "child")
asks_inside = _asking.compile()


class Paced(Scripted):
    """Takes turns with the others that speak."""

    async def _astream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        for chunk in self._stream(messages):
            await asyncio.sleep(0.01)
            if manager := kwargs.get("run_manager"):
                await manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk


async def both(state: Chat) -> Chat:
    one = Paced(chunks=["one ", "two ", "three"]).ainvoke("?")
    other = Paced(chunks=["alpha ", "beta ", "gamma"]).ainvoke("?")
    return {"messages": list(await asyncio.gather(one, other))}


speaks_twice = chain(both).compile()


async def write(state: Chat) -> Chat:
    writer = get_stream_writer()
    writer({"name": "progress", "payload": {"percent": 50}})
    writer({"plain": True})
    writer("text")
    return {"log": ["written"]}


writes = chain(write).compile()


async def write_named(state: Chat) -> Chat:
    writer = get_stream_writer()
    writer({"name": "status", "percent": 50, "payload": None})
    writer({"name": "only"})
    writer({"name": 7, "payload": "numbered"})
    writer({"name": "", "payload": "nameless"})
    return {"log": ["written"]}


writes_named = chain(write_named).compile()


async def give(state: Chat) -> Chat:
    return {
        "messages": [
            SystemMessage("be kind", id="s"),
            HumanMessage("hello", id="h"),
            AIMessage("hi", id="a", tool_calls=[{"id": "c", "name": "look_up", "args": {"word": "x"}}]),
            ToolMessage("x means something", tool_call_id="c", id="t"),
        ]
    }


async def push(state: Chat) -> Chat:
    push_message(AIMessage("pushed", id="p"), state_key=None)
    push_message(ToolMessage("a result", tool_call_id="c", id="pt"), state_key=None)
    return {}


async def speak_whole(state: Chat) -> Chat:
    model = Scripted(chunks=FIRST, disable_streaming=True)
    return {"messages": [await model.ainvoke("?")]}


async def break_off(state: Chat) -> Chat:
    try:
        await Scripted(chunks=["half a "], fails=True).ainvoke("?")
    except ValueError:
        pass
    return {"messages": [await Scripted(chunks=["whole"]).ainvoke("?")]}


gives = chain(give).compile()
pushes = chain(push).compile()
speaks_whole = chain(speak_whole).compile()
breaks_off = chain(break_off).compile()


async def give_up(state: Chat) -> Chat:
    await Scripted(chunks=["half a "], fails=True).ainvoke("?")
    return {}


_sub = chain(give_up)
_failing = chain(note)
_failing.add_node("child", _sub.compile())
_failing.add_edge("note", "child")
fails_inside = _failing.compile()

_helper = chain(tell).compile().with_config(metadata={"lc_agent_name": "helper"})


@tool
async def delegate(word: str) -> str:
    """Have another agent look."""
    found = await _helper.ainvoke({"messages": []})
    return found["messages"][-1].text


async def boss(state: Chat) -> Chat:
    script = SECOND if isinstance(state["messages"][-1], ToolMessage) else [
        args(0, '{"word": "sea"}', id="call-9", name="delegate")
    ]
    return {"messages": [await Scripted(chunks=script).ainvoke(state["messages"])]}


def each_call(state: Chat) -> Any:
    calls = state["messages"][-1].tool_calls
    return [Send("tools", {"__type": "tool_call_with_context", "tool_call": call, "state": state}) for call in calls] or END


_delegates = StateGraph(Chat)
_delegates.add_node("agent", boss)
_delegates.add_node("tools", ToolNode([delegate]))
_delegates.add_edge(START, "agent")
_delegates.add_conditional_edges("agent", each_call, ["tools", END])
_delegates.add_edge("tools", "agent")
delegates = _delegates.compile()


async def write_much(state: Chat) -> Chat:
    get_stream_writer()("x" * 2_000_000)
    return {"log": ["went on"]}


writes_much = chain(write_much).compile()


async def wait(state: Chat) -> Chat:
    get_stream_writer()("waiting")
    model = Paced(chunks=["waits "] * 6000)
    return {"messages": [await model.ainvoke("?")]}


waits = chain(note, wait).compile()


@task
async def add_one(number: int) -> int:
    answer = await Scripted(chunks=["one ", "more"]).ainvoke("?")
    return number + len(answer.text.split()) - 1


@entrypoint()
async def numbers(number: int) -> int:
    return await add_one(number)


try:
    from langgraph.stream import StreamChannel, StreamTransformer
except ImportError:  # an older version
    StreamChannel = StreamTransformer = None


if StreamTransformer is not None:

    class Censor(StreamTransformer):
        """Hides what is said of water, counts what is left, and fails on what is custom."""

        def __init__(self, scope: tuple[str, ...] = ()) -> None:
            super().__init__(scope)
            self.seen = StreamChannel("seen")
            self.count = 0

        def init(self) -> dict[str, Any]:
            return {"seen": self.seen}

        async def aprocess(self, event: Any) -> bool:
            if event["method"] == "custom":
                raise ValueError("what is this?")
            if event["method"] != "messages":
                return event["method"] != "updates"
            said, _ = event["params"]["data"]
            delta = said.get("delta") or {}
            if "water" in delta.get("text", ""):
                delta["text"] = "***"
            self.count += 1
            if said["event"] == "message-finish":
                event["params"]["data"] = "nothing of the kind"
            return said["event"] != "content-block-finish"

        async def afinalize(self) -> None:
            self.seen.push({"messages": self.count})

    async def say(state: Chat) -> Chat:
        get_stream_writer()("a secret")
        return {"messages": [await Scripted(chunks=SECOND).ainvoke("?")]}

    def broken(scope: tuple[str, ...]) -> Censor:
        raise ValueError("no censor today")

    censored = chain(say).compile(transformers=[Censor])
    without_censor = chain(say).compile(transformers=[broken])
