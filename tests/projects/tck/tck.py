"""The agent that the A2A test kit calls: the beginning of a message's id selects what the agent does."""

import asyncio
import base64
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt

OUTPUT = {"type": "file", "mime_type": "text/plain", "extras": {"filename": "output.txt"}}
ANSWERS: dict[str, Any] = {
    "tck-artifact-text": "Generated text content",
    "tck-artifact-file-url": [{**OUTPUT, "url": "https://example.com/output.txt"}],
    "tck-artifact-file": [{**OUTPUT, "base64": base64.b64encode(b"output").decode()}],
    "tck-artifact-data": [{"type": "data", "data": {"key": "value", "count": 42}}],
}


class Chat(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]


async def act(state: Chat) -> Chat:
    message = next(message for message in reversed(state["messages"]) if message.type == "human")
    if message.id.startswith("tck-input-required"):
        answer = interrupt("Which one?")
        return {"messages": [AIMessage(f"You said {answer}")]}
    if message.id.startswith("tck-delayed-complete"):
        await asyncio.sleep(2)
        return {"messages": [AIMessage("Done after delay")]}
    if message.id.startswith("tck-reject-task"):
        raise ValueError("rejected")
    for prefix, content in ANSWERS.items():
        if message.id.startswith(prefix):
            return {"messages": [AIMessage(content)]}
    model = GenericFakeChatModel(messages=iter([AIMessage("Hello from TCK")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


builder = StateGraph(Chat)
builder.add_node("act", act)
builder.add_edge(START, "act")
builder.add_edge("act", END)
graph = builder.compile()
