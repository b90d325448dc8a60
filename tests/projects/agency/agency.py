"""Graphs as other agents and models see them: conversations, typed input, questions, failures."""

import asyncio
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt


class Chat(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]


class Trip(TypedDict, total=False):
    city: str
    nights: int
    log: list[Any]


class Nap(Chat, total=False):
    seconds: float


def single(node: Any, state: Any) -> Any:
    builder = StateGraph(state)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile()


async def talk(state: Chat) -> Chat:
    """Streams its words one by one."""
    model = GenericFakeChatModel(messages=iter([AIMessage("hello big world")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


def ask(state: Chat) -> Chat:
    answer = interrupt("Which colour?")
    said = answer["colour"] if isinstance(answer, dict) else answer
    return {"messages": [AIMessage(f"You said {said}")]}


def book(state: Trip) -> Trip:
    answer = interrupt({"question": f"Book {state['city']}?"})
    return {"log": [answer]}


def count(state: Trip) -> Trip:
    return {"log": [state.get("city"), state.get("nights")]}


async def sleep(state: Nap) -> Chat:
    await asyncio.sleep(state.get("seconds", 60))
    return {"messages": [AIMessage("awake")]}


def draw(state: Chat) -> Chat:
    """Returns the files of the last message, with its text, and a document."""
    content = state["messages"][-1].content
    document = {"type": "file", "base64": "JVBERg==", "mime_type": "application/pdf", "extras": {"filename": "a.pdf"}}
    return {"messages": [AIMessage([*content, document])]}


def fail(state: Chat) -> Chat:
    raise ValueError("boom happened")


def show(state: Chat) -> Chat:
    """Answers with files: bytes of an image, of a sound and of a document, and an address."""
    blocks = [
        {"type": "text", "text": "look"},
        {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"},
        {"type": "audio", "base64": "UklGRg==", "mime_type": "audio/wav"},
        {"type": "file", "base64": "JVBERg==", "mime_type": "application/pdf", "extras": {"filename": "a.pdf"}},
        {"type": "image", "url": "https://files.example/picture.png"},
    ]
    return {"messages": [AIMessage(blocks)]}


def see(state: Any) -> Any:
    return state


talks = single(talk, Chat)
asks = single(ask, Chat)
books = single(book, Trip)
counts = single(count, Trip)
sleeps = single(sleep, Nap)
draws = single(draw, Chat)
fails = single(fail, Chat)
shows = single(show, Chat)
bare = single(see, Annotated[list, lambda old, new: new])
