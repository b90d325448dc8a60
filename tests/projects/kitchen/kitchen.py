"""Graphs for tests of the whole platform: each shows one behaviour, its input carries the knobs.

Files are in the home directory: the one place that user code may write to and that tests can look into.
"""

import asyncio
import ctypes
import json
import operator
import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import orjson
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.config import get_store, get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt
from langgraph_sdk import get_client, get_sync_client


class State(TypedDict, total=False):
    text: str
    n: int
    seconds: float
    how: str
    file: str
    log: Annotated[list[Any], operator.add]


class Words(TypedDict, total=False):
    word: str
    loud: bool


def chain(*nodes: Any, state: Any = State, **options: Any) -> Any:
    """A compiled graph of nodes one after the other."""
    builder = StateGraph(state, **options)
    before = START
    for node in nodes:
        builder.add_node(node)
        builder.add_edge(before, node.__name__)
        before = node.__name__
    builder.add_edge(before, END)
    return builder.compile()


async def node(state: State) -> State:
    return {"log": [state.get("text", "")]}


echo = chain(node)


async def greet(state: State, runtime: Runtime[Words]) -> State:
    context = runtime.context or {}
    word = context.get("word", "nothing")
    return {"log": [word.upper() if context.get("loud") else word]}


greets = chain(greet, context_schema=Words)


async def before(state: State) -> State:
    return {"log": ["before"]}


def ask(state: State) -> State:
    return {"log": [interrupt({"question": "may I?"})]}


async def after(state: State) -> State:
    return {"log": ["after"]}


asks = chain(before, ask, after)

async def choose(state: State) -> Command[Literal["after"]]:
    return Command(goto="after", update={"log": ["chosen"]})


_goes = StateGraph(State)
_goes.add_node(choose)
_goes.add_node(after)
_goes.add_edge(START, "choose")
goes = _goes.compile()

_outer = StateGraph(State)
_outer.add_node("child", chain(before, after))
_outer.add_edge(START, "child")
_outer.add_edge("child", END)
nested = _outer.compile()


class Chat(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]


async def speak(state: Chat) -> Chat:
    model = GenericFakeChatModel(messages=iter([AIMessage("hello big world")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


speaks = chain(speak, state=Chat)


@tool
async def look_up(word: str) -> str:
    """Look a word up."""
    await asyncio.sleep(0.05)
    return f"{word} means something"


async def research(state: State) -> State:
    return {"log": [await look_up.ainvoke({"word": state.get("text", "sea")})]}


async def draft(state: State) -> State:
    model = GenericFakeChatModel(messages=iter([AIMessage("a plan")]))
    return {"log": [(await model.ainvoke("plan")).text]}


# a subgraph with a tool and a model, then a question
_plans = StateGraph(State)
_plans.add_node("work", chain(research, draft))
_plans.add_node(ask)
_plans.add_node(after)
_plans.add_edge(START, "work")
_plans.add_edge("work", "ask")
_plans.add_edge("ask", "after")
plans = _plans.compile()


async def consume(state: State) -> State:
    """So many model calls, one after the other."""
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    for _ in range(state.get("n", 1)):
        answer = AIMessage("hello", usage_metadata=usage, response_metadata={"model_name": "large"})
        answer.usage_metadata["input_tokens"] = int(state.get("how", 1))  # more than the library would take
        await GenericFakeChatModel(messages=iter([answer])).ainvoke("hi")
        await asyncio.sleep(state.get("seconds", 0))
    return {}


consumes = chain(consume)


async def write(state: State) -> State:
    writer = get_stream_writer()
    for i in range(state.get("n", 3)):
        writer({"i": i})
        await asyncio.sleep(state.get("seconds", 0))
    return {"log": ["written"]}


writes = chain(write)


async def count(state: State) -> State:
    """One step: says which, takes a while, and notes in a file that it ran."""
    number = len(state.get("log", []))
    get_stream_writer()({"step": number})
    await asyncio.sleep(state.get("seconds", 0.1))
    if state.get("file"):
        with (Path.home() / state["file"]).open("a") as notes:
            notes.write(f"{number}\n")
    return {"log": [number]}


_counts = StateGraph(State)
_counts.add_node(count)
_counts.add_edge(START, "count")
_counts.add_conditional_edges("count", lambda state: END if len(state["log"]) >= state["n"] else "count")
counts = _counts.compile()


async def sleep(state: State) -> State:
    get_stream_writer()("asleep")
    await asyncio.sleep(state.get("seconds", 60))
    return {"log": ["woke"]}


sleeps = chain(before, sleep)


async def block(state: State) -> State:
    """What a careless author does: holds the event loop."""
    get_stream_writer()("blocking")
    await asyncio.sleep(0.2)
    time.sleep(state.get("seconds", 60))
    return {"log": ["done"]}


blocks = chain(block)


def boom(state: State) -> State:
    raise ValueError("boom happened")


fails = chain(before, boom)


async def die(state: State) -> State:
    """Ends the process, always or (with a file) only the first time."""
    if state.get("file"):
        mark = Path.home() / state["file"]
        if mark.exists():
            return {"log": ["survived"]}
        mark.write_text("x")
    await asyncio.sleep(0.2)
    if state.get("how") == "exit":
        os._exit(7)
    if state.get("how") == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


dies = chain(before, die)


async def break_host(state: State) -> State:
    """Leaves a host that answers pings and does nothing else: its encoder and decoder are gone."""
    orjson.dumps = orjson.loads = None
    if "file" in state:
        Path(state["file"]).write_text("broken")
    return {}


breaks = chain(before, break_host)


async def stop_clock(state: State) -> State:
    time.monotonic = lambda: None
    return {}


stops_clock = chain(before, stop_clock)


async def hoard(state: State) -> State:
    hoarded = []
    while True:
        hoarded.append(bytearray(16 * 1024 * 1024))
        await asyncio.sleep(0.01)


hoards = chain(hoard)


def multiply(state: State) -> State:
    """Every process starts another, again and again: 2,048 at most."""
    for _ in range(11):
        try:
            os.fork()
        except OSError:
            time.sleep(0.05)
    time.sleep(600)
    return {}


multiplies = chain(multiply)


def say(state: State) -> State:
    print("hello from the kitchen")
    for i in range(state.get("n", 0)):
        print(f"line {i} " + "x" * 200)
    return {"log": ["said"]}


prints = chain(say)


def peek(state: State) -> State:
    """What user code can see of the platform."""
    seen: dict[str, Any] = {"env": sorted(os.environ), "fds": sorted(os.listdir("/proc/self/fd"))}
    seen["kitchen"] = os.environ.get("KITCHEN")
    seen["credentials"] = []
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if b"\0DATABASE_URL=" in b"\0" + environ:
            seen["credentials"].append(environ.decode(errors="replace"))
    for module in ("shared.models", "workers.runner.execution", "web.app", "celery", "sqlalchemy"):
        try:
            __import__(module)
            seen[module] = "importable"
        except ImportError:
            seen[module] = "hidden"
    return {"log": [seen]}


peeks = chain(peek)


async def remember(state: State, runtime: Runtime[Words]) -> State:
    """Counts its visits in the store, and tells what is there."""
    store = runtime.store
    seen = await store.aget(("visits", state["text"]), "count")
    count = 1 if seen is None else seen.value["n"] + 1
    await store.aput(("visits", state["text"]), "count", {"n": count})
    found = await store.asearch(("visits",), filter={"n": {"$gte": 1}}, limit=100)
    return {"log": [count, sorted(item.namespace[1] for item in found)]}


def remember_blocking(state: State) -> State:
    return {"log": [get_store().get(("visits", state["text"]), "count").value["n"]]}


remembers = chain(remember, remember_blocking)


def call(state: State) -> State:
    """Asks its own deployment, whose address and key are `how`, to do the same one time less."""
    if state["n"] == 0:
        return {"log": ["bottom"]}
    url, key = state["how"].split()
    asked = {"assistant_id": "calls", "input": {"n": state["n"] - 1, "how": state["how"]}}
    headers = {"Content-Type": "application/json", "X-Api-Key": key}
    request = urllib.request.Request(f"{url}/runs/wait", json.dumps(asked).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return {"log": [*json.load(answer)["log"], "called"]}


calls = chain(call)


async def recurse(state: State) -> State:
    """Creates a run of its own graph, one level deeper, and waits for it or (`how`: "polls") looks for its end."""
    if not state["n"]:
        return {"log": ["bottom"]}
    client, asked = get_client(), {"n": state["n"] - 1, "how": state.get("how", "waits")}
    if asked["how"] == "waits":
        answer = await client.runs.wait(None, "recurses", input=asked)
        return {"log": [*answer["log"], "called"]}
    thread_id = (await client.threads.create())["thread_id"]
    run_id = (await client.runs.create(thread_id, "recurses", input=asked))["run_id"]
    while (await client.runs.get(thread_id, run_id))["status"] in ("pending", "running"):
        await asyncio.sleep(0.2)
    answer = (await client.threads.get_state(thread_id))["values"]
    return {"log": [*answer["log"], "called"]}


recurses = chain(recurse)


def pass_on(state: State) -> State:
    """A synchronous node that keeps its thread while it calls the first of two addresses, which calls the second."""
    if not state["n"]:
        return {"log": ["bottom"]}
    url, other, key = state["how"].split()
    asked = {"n": state["n"] - 1, "how": f"{other} {url} {key}"}
    answer = get_sync_client(url=url, api_key=key).runs.wait(None, "passes_on", input=asked)
    return {"log": [*answer["log"], "called"]}


passes_on = chain(pass_on)
