"""Retrieval: find documents in the store by meaning, and answer from them."""

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.tools import BaseTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from model import chat_model

DOCUMENTS = ("documents",)  # namespace of the store
PROMPT = "Answer from these documents only, and name their keys:\n"


class State(MessagesState):
    found: list[dict[str, Any]]


async def retrieve(state: State, runtime: Runtime[None]) -> dict[str, Any]:
    assert runtime.store is not None
    items = await runtime.store.asearch(DOCUMENTS, query=state["messages"][-1].text, limit=2)
    return {"found": [{"key": item.key, "text": item.value["text"], "score": item.score} for item in items]}


def fake_reply(messages: Sequence[BaseMessage], tools: Sequence[BaseTool]) -> AIMessage:
    """Quote the first document of the prompt."""
    documents = messages[0].text.removeprefix(PROMPT)
    return AIMessage(documents.partition("\n")[0] or "There are no documents in the store.")


async def answer(state: State) -> dict[str, list[BaseMessage]]:
    prompt = PROMPT + "\n".join(f"[{document['key']}] {document['text']}" for document in state["found"])
    reply = await chat_model(fake_reply).ainvoke([SystemMessage(prompt), *state["messages"]])
    return {"messages": [reply]}


graph = (
    StateGraph(State, input_schema=MessagesState)
    .add_node("retrieve", retrieve)
    .add_node("answer", answer)
    .add_edge(START, "retrieve")
    .add_edge("retrieve", "answer")
    .compile(name="retrieval")
)
