"""Graphs with the names and the behaviour that the conformance kit of MCP asks for."""

import asyncio
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
NOTE = "SGVsbG8="
PROGRESS_SECONDS = 0.6  # longer than the service waits between two notifications


class Nothing(TypedDict, total=False):
    note: str


class Said(Nothing, total=False):
    messages: Annotated[list[Any], add_messages]


class Name(TypedDict):
    name: str


class Work(TypedDict, total=False):
    seconds: float
    label: str
    result: str


CONTACT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": {"type": "string"}}}},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


class Contact(BaseModel):
    """Input whose schema has keywords that a Python type does not express."""

    name: str = ""

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return CONTACT


def chain(*nodes: Any, state: Any, takes: Any = None) -> Any:
    """Return a graph whose nodes run one after the other."""
    builder = StateGraph(state, input_schema=takes or state)
    names = [f"{node.__name__}_{number}" for number, node in enumerate(nodes)]
    for name, node in zip(names, nodes, strict=True):
        builder.add_node(name, node)
    for one, next_one in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(one, next_one)
    return builder.compile()


def saying(*blocks: Any) -> Any:
    """Return a graph whose last message has these content blocks."""

    def say(state: Nothing) -> Said:
        return {"messages": [AIMessage([*blocks])]}

    return chain(say, state=Said, takes=Nothing)


IMAGE = {"type": "image", "base64": PIXEL, "mime_type": "image/png"}
AUDIO = {"type": "audio", "base64": SILENCE, "mime_type": "audio/wav"}
FILE = {"type": "file", "base64": NOTE, "mime_type": "text/plain", "extras": {"filename": "note.txt"}}


def hello(state: Name) -> Said:
    return {"messages": [AIMessage(f"Hello, {state['name']}!")]}


async def compute(state: Work) -> Work:
    await asyncio.sleep(state.get("seconds", 0))
    return {"result": f"computed {state.get('label', '')}"}


def fail(state: Nothing) -> Nothing:
    raise ValueError("This tool intentionally returns an error for testing")


async def step(state: Nothing) -> Nothing:
    await asyncio.sleep(PROGRESS_SECONDS)
    return {"note": "done"}


def keep(state: Any) -> Any:
    return state


greet = chain(hello, state=Said, takes=Name)
slow_compute = chain(compute, state=Work)
simple_text = saying({"type": "text", "text": "This is a simple text response for testing."})
image_content = saying(IMAGE)
audio_content = saying(AUDIO)
embedded_resource = saying(FILE)
multiple_content_types = saying({"type": "text", "text": "Multiple content types test:"}, IMAGE, FILE)
error_handling = chain(fail, state=Nothing)
tool_with_progress = chain(step, step, step, step, state=Nothing)
contact = chain(keep, state=Contact)
