"""Graphs that show one behaviour each."""

from __future__ import annotations

import asyncio
import json
import builtins
import importlib.util
import logging
import operator
import os
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.types import Command, Send, interrupt

import shared
import web
import workers


class State(TypedDict, total=False):
    text: str
    log: Annotated[list[Any], operator.add]


def chain(*nodes: Any, state: Any = State, **options: Any) -> Any:
    """A compiled graph of nodes one after the other."""
    builder = StateGraph(state, **options)
    before = START
    for node in nodes:
        builder.add_node(node)
        builder.add_edge(before, node.__name__)
        before = node.__name__
    builder.add_edge(before, END)
    return builder


async def one(state: State) -> State:
    return {"log": ["one"]}


async def two(state: State) -> State:
    return {"log": ["two"]}


steps = chain(one, two).compile(checkpointer=InMemorySaver())
builder = chain(one)
named = chain(one).compile(name="a name of its own")
stops_before_two = chain(one, two).compile(interrupt_before=["two"])


class Log(TypedDict, total=False):
    log: list[Any]


async def retext(state: State) -> State:
    return {"text": "changed"}


shows_log = chain(one, retext, output_schema=Log).compile()
shows_little = chain(retext, output_schema=Log).compile()


def ask(state: State) -> State:
    return {"log": [interrupt({"question": state.get("text")})]}


asks = chain(one, ask, two).compile()
asks_and_shows_log = chain(one, ask, output_schema=Log).compile()


def ask_again(state: State) -> State:
    return {"log": [interrupt("again")]}


def done(state: State) -> State:
    return {"log": ["done"]}


_fan = StateGraph(State)
for _node in (ask, ask_again, done):
    _fan.add_node(_node)
    _fan.add_edge(START, _node.__name__)
asks_twice = _fan.compile()

child = chain(one, ask).compile()
_parent = StateGraph(State)
_parent.add_node(two)
_parent.add_node("child", child)
_parent.add_edge(START, "two")
_parent.add_edge("two", "child")
nested = _parent.compile()

_outer = StateGraph(State)
_outer.add_node("inner", chain(one, two).compile())
_outer.add_edge(START, "inner")
_outermost = StateGraph(State)
_outermost.add_node("outer", _outer.compile())
_outermost.add_edge(START, "outer")
deep = _outermost.compile()


def boom(state: State) -> State:
    raise ValueError("boom happened")


fails = chain(one, boom).compile()


async def forever(state: State) -> State:
    return forever_until_ten(state)


def forever_until_ten(state: State) -> State:
    return {"log": [len(state["log"])]}


_loop = StateGraph(State)
_loop.add_node(forever)
_loop.add_edge(START, "forever")
_loop.add_edge("forever", "forever")
loops = _loop.compile()


class Chat(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]


async def speak(state: Chat) -> Chat:
    model = GenericFakeChatModel(messages=iter([AIMessage("hello big world", id="answer")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


async def repeat(state: Chat) -> Chat:
    return {"messages": [AIMessage("said before", id="whole")]}


speaks = chain(speak, state=Chat).compile()
repeats = chain(repeat, state=Chat).compile()


@tool
async def look_up(word: str) -> str:
    """What a word means."""
    if word == "nothing":
        raise ValueError("no such word")
    return f"{word} means something"


async def use_tool(state: State) -> State:
    call = {"type": "tool_call", "id": "call-1", "name": "look_up", "args": {"word": state["text"]}}
    return {"log": [(await look_up.ainvoke(call)).content]}


uses_tool = chain(use_tool).compile()
uses_tool_inside = chain(one)
uses_tool_inside.add_node("inner", chain(use_tool).compile())
uses_tool_inside.add_edge("one", "inner")
uses_tool_inside = uses_tool_inside.compile()


async def write(state: State) -> State:
    writer, data = get_stream_writer(), {"n": 1}
    writer(data)
    data["n"] = 2  # an event has the value that was streamed
    writer("text")
    return {}


writes = chain(write).compile()


async def write_much(state: State) -> State:
    get_stream_writer()("x" * 2_000_000)
    return {"text": "went on"}


writes_much = chain(write_much).compile()


async def flood(state: State) -> State:
    writer = get_stream_writer()
    for number in range(30_000):  # more than 60 MB
        writer({"number": number, "padding": "x" * 2_000})
        await asyncio.sleep(0)
    return {}


floods = chain(flood).compile()


async def grow(state: State) -> State:
    return {"text": "x" * 3_000_000}


grows = chain(grow).compile()


async def sleep(state: State) -> State:
    get_stream_writer()("asleep")
    await asyncio.sleep(60)
    return {}


def sleep_in_thread(state: State) -> State:
    get_stream_writer()("asleep")
    time.sleep(20)
    return {}


async def swallow(state: State) -> State:
    get_stream_writer()("asleep")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


sleeps = chain(one, sleep).compile()
sleeps_in_thread = chain(one, sleep_in_thread).compile()
swallows = chain(one, swallow).compile()


def used(read: int, written: int, **details: Any) -> dict[str, Any]:
    """What a model says of one call of it."""
    return {"input_tokens": read, "output_tokens": written, "total_tokens": read + written, **details}


def model_of(*answers: AIMessage) -> Any:
    return GenericFakeChatModel(messages=iter(answers), disable_streaming=True)  # it would lose what is used


def ask_in_thread(state: State) -> State:
    """Its configuration is the model's own, and nobody sees the answer."""
    answer = AIMessage("a", id="thread", usage_metadata=used(1, 2), response_metadata={"model": "small"})
    model_of(answer).invoke("hi", config={"callbacks": []})
    return {}


async def ask_twice(state: State) -> State:
    first = AIMessage(
        "b",
        id="first",
        usage_metadata=used(10, 20, input_token_details={"cache_read": 4}),
        response_metadata={"model_name": "large"},
    )
    second = first.model_copy(update={"id": "second"})
    model = model_of(first, second, second, AIMessage("c", usage_metadata=used(5, 6)), AIMessage("d"))
    for _ in range(5):
        await model.ainvoke("hi")
    return {}


consumes = chain(ask_in_thread)
consumes.add_node("inner", chain(ask_twice).compile())
consumes.add_edge("ask_in_thread", "inner")
consumes = consumes.compile()
consumes_and_fails = chain(ask_in_thread, boom).compile()
consumes_and_sleeps = chain(ask_in_thread, sleep).compile()


def say(state: State) -> State:
    print("printed")
    print("bell\x07 and a half line", end="")
    sys.stderr.write("to stderr\n")
    logging.getLogger("project").info("logged %s", 1)
    return {}


says = chain(say).compile()


def say_much(state: State) -> State:
    for number in range(20_000):
        print(number, "x" * 10_000)
    return {}


says_much = chain(say_much).compile()


def leave(state: State) -> State:
    sys.exit(7)


async def leave_async(state: State) -> State:
    sys.exit(7)


def die(state: State) -> State:
    os._exit(9)


def patch(state: State) -> State:
    """What a careless author does to what all runs of the process use, too."""
    if state.get("text") == "files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
        return {"text": "patched"}
    json.dumps = json.loads = builtins.open = time.sleep = lambda *a, **k: None
    if state.get("text") == "modules":
        sys.modules.clear()
    return {"text": "patched"}


patches = chain(patch).compile()
leaves = chain(leave).compile()
leaves_async = chain(leave_async).compile()
dies = chain(die).compile()


def block(state: State) -> State:
    return {"text": "blocked"}


async def block_loop(state: State) -> State:
    time.sleep(60)
    return {}


blocks = chain(block_loop).compile()


def look(state: State, config: RunnableConfig) -> State:
    names = [name for name in ("graph_host", "frames", "server", "saver") if importlib.util.find_spec(name)]
    return {
        "log": [
            [shared.WORD, web.WORD, workers.WORD],
            names,
            dict(os.environ),
            {key: value for key, value in config["configurable"].items() if not key.startswith("__")},
            config["metadata"].get("topic"),
            config["tags"],
        ]
    }


looks = chain(look).compile()


@dataclass
class Settings:
    model: str = "small"


def show_context(state: State, runtime: Runtime[Settings]) -> State:
    return {"log": [runtime.context.model]}


shows_context = chain(show_context, context_schema=Settings).compile()


@dataclass
class Point:
    x: int
    tags: set[str] = field(default_factory=set)


class Places(TypedDict, total=False):
    anything: Any
    kinds: list[str]


async def make_point(state: Places) -> Places:
    return {"anything": Point(1, {"a"})}


async def check_point(state: Places) -> Places:
    interrupt("look")
    return {"kinds": [type(state["anything"]).__name__, str(isinstance(state["anything"], Point))]}


points = chain(make_point, check_point, state=Places).compile()


async def route(state: State) -> Command[Any]:
    return Command(goto=[Send("one", {"text": "sent"}), Send("one", {})], update={"log": ["routed"]})


_sends = StateGraph(State)
_sends.add_node(route)
_sends.add_node(one)
_sends.add_edge(START, "route")
sends = _sends.compile()


_at_once = 0


async def meet(state: State) -> State:
    """Says how many of it there are at once."""
    global _at_once
    _at_once += 1
    await asyncio.sleep(0.01)
    seen = _at_once
    await asyncio.sleep(0.01)
    _at_once -= 1
    return {"log": [seen]}


async def gather(state: State) -> Command[Any]:
    return Command(goto=[Send("meet", {}) for _ in range(3)])


_meets = StateGraph(State)
_meets.add_node(gather)
_meets.add_node(meet)
_meets.add_edge(START, "gather")
meets = _meets.compile()


@task
async def double(number: int) -> int:
    return number * 2


@entrypoint()
async def functional(number: int) -> int:
    return await double(number) + 1


async def invoke_inside(state: State) -> State:
    own = chain(one).compile()
    inner = await own.ainvoke({"text": "inner"}, {"configurable": {"thread_id": "my own thread"}})
    return {"log": inner["log"]}


invokes_inside = chain(invoke_inside).compile()


def invoke_child_blocking(state: State) -> State:
    return {"log": child_steps.invoke({"text": "inner"})["log"]}


async def invoke_child_blocking_on_loop(state: State) -> State:
    return {"log": child_steps.invoke({"text": "inner"})["log"]}


child_steps = chain(done).compile()
invokes_blocking = chain(invoke_child_blocking).compile()
invokes_blocking_on_loop = chain(invoke_child_blocking_on_loop).compile()


def plain_factory() -> Any:
    return chain(one)


entered: list[str] = []


@asynccontextmanager
async def managed_factory(config: dict[str, Any]) -> AsyncIterator[Any]:
    entered.append("in")
    yield chain(one).compile()
    entered.append("out")


def failing_factory() -> Any:
    raise RuntimeError("no graph today")


def wrong_factory() -> Any:
    return 42


def two_unannotated(a, b):
    return chain(one)


not_a_graph = 42
