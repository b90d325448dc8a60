"""A digest of the notes that were stored since the last one. Made for a cron: it needs no input."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from model import chat_model
from typing_extensions import TypedDict  # pydantic rejects typing.TypedDict before Python 3.12

NOTES, DIGESTS = ("notes",), ("digests",)  # namespaces of the store
PAGE = 100
PROMPT = "Write a digest of these notes in at most three sentences."


class Input(TypedDict, total=False):
    title: str


class State(Input, total=False):
    notes: dict[str, str]
    digest: str


async def collect(state: State, runtime: Runtime[None]) -> dict[str, Any]:
    store = _store(runtime)
    items = await store.asearch(NOTES, limit=PAGE)
    return {"notes": {item.key: item.value["text"] for item in items}, "digest": ""}


def is_empty(state: State) -> str:
    return "write" if state["notes"] else END


async def write(state: State) -> dict[str, str]:
    notes = "\n".join(f"- {text}" for text in state["notes"].values())
    reply = await chat_model(fake_reply).ainvoke([SystemMessage(PROMPT), HumanMessage(notes)])
    return {"digest": f"{state.get('title', 'Digest')}: {reply.text}"}


async def file(state: State, runtime: Runtime[None]) -> None:
    """Store the digest, then delete its notes. A run that is interrupted in between repeats a note, and loses none."""
    store = _store(runtime)
    await store.aput(DIGESTS, datetime.now(UTC).isoformat(timespec="seconds"), {"text": state["digest"]})
    for key in state["notes"]:
        await store.adelete(NOTES, key)


def fake_reply(messages: Sequence[BaseMessage], tools: Sequence[BaseTool]) -> AIMessage:
    lines = messages[-1].text.splitlines()
    return AIMessage(f"Notes: {len(lines)}. The first: {lines[0].removeprefix('- ')}")


def _store(runtime: Runtime[None]) -> BaseStore:
    assert runtime.store is not None
    return runtime.store


graph = (
    StateGraph(State, input_schema=Input)
    .add_node("collect", collect)
    .add_node("write", write)
    .add_node("file", file)
    .add_edge(START, "collect")
    .add_conditional_edges("collect", is_empty, ["write", END])
    .add_edge("write", "file")
    .compile(name="digest")
)
