"""A graph that shows a component of the folder `ui` with its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import MessagesState
from langgraph.graph.ui import AnyUIMessage, push_ui_message, ui_message_reducer


class State(MessagesState):
    ui: Annotated[Sequence[AnyUIMessage], ui_message_reducer]


class Answer(TypedDict):
    messages: list[AIMessage]


def forecast(state: State) -> Answer:
    answer = AIMessage(id="answer", content="The forecast:")
    push_ui_message("weather", {"city": "Lyon"}, message=answer)
    return {"messages": [answer]}


graph = StateGraph(State).add_node(forecast).add_edge(START, "forecast").compile()
