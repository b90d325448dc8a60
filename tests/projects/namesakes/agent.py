"""Packages of its own under the platform's names, and a secret it can read but nobody else should see."""

import os

from langgraph.graph import START, MessagesState, StateGraph

from shared import word
from web import other
from workers import last

print("loaded with", os.environ.get("COOKIE_RECIPE"))


class State(MessagesState):
    said: str


def say(state: State) -> dict[str, str]:
    recipe = os.environ.get("COOKIE_RECIPE", "")
    print("running with", recipe)
    return {"said": " ".join((word, other, last, str(len(recipe)), os.environ.get("VERSION", "")))}


graph = StateGraph(State).add_node(say).add_edge(START, "say").compile()
