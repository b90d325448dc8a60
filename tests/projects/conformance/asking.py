"""Graphs that ask the client or become a task, with the names and the behaviour that the conformance kit of MCP asks for."""

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from tools import Name, Nothing, Said, chain

SLOW_SECONDS = 1.0  # longer than its tool waits before it becomes a task


class File(TypedDict):
    filename: str


class Deletion(Said, total=False):
    filename: str


class Job(Said, total=False):
    name: str


class Both(TypedDict, total=False):
    note: str
    answers: Annotated[list[Any], operator.add]


def form(message: str, key: str, **properties: str) -> Any:
    """Ask for an object with properties of these types. `key` is the key of the question."""
    schema = {
        "type": "object",
        "properties": {name: {"type": type} for name, type in properties.items()},
        "required": [*properties],
    }
    return interrupt({"key": key, "message": message, "response_schema": schema})


def say(text: str) -> Any:
    return {"messages": [AIMessage(text)]}


def ask_name(state: Nothing) -> Said:
    return say(f"Hello, {form('What is your name?', 'user_name', name='string')['name']}!")


def ask_twice(state: Nothing) -> Said:
    name = form("Step 1: What is your name?", "step1", name="string")["name"]
    color = form("Step 2: What is your favorite color?", "step2", color="string")["color"]
    return say(f"{name} likes {color}")


def ask_to_confirm(state: Nothing) -> Said:
    return say("state-ok" if form("Please confirm", "confirm", ok="boolean")["ok"] else "not confirmed")


def delete(state: File) -> Said:
    confirmed = form(f"Delete {state['filename']}?", "delete", confirm="boolean")["confirm"]
    return say("deleted" if confirmed else "kept")


def one(state: Both) -> Both:
    return {"answers": [form("One?", "one", name="string")["name"]]}


def two(state: Both) -> Both:
    return {"answers": [form("Two?", "two", name="string")["name"]]}


def fail(state: Nothing) -> Nothing:
    raise ValueError("this job always fails")


def remember(state: Nothing) -> Name:
    return form("What is your name?", "user_name", name="string")


async def work(state: Name) -> Said:
    await asyncio.sleep(SLOW_SECONDS)
    return say(f"Done for {state['name']}")


elicitation = chain(ask_name, state=Said, takes=Nothing)
multi_round = chain(ask_twice, state=Said, takes=Nothing)
confirmation = chain(ask_to_confirm, state=Said, takes=Nothing)


confirm_delete = chain(delete, state=Deletion, takes=File)
failing_job = chain(fail, state=Nothing)
tool_with_task = chain(remember, work, state=Job, takes=Nothing)


def side_by_side() -> Any:
    builder = StateGraph(Both)
    for node in (one, two):
        builder.add_node(node)
        builder.add_edge(START, node.__name__)
    return builder.compile()


multi_input = side_by_side()
