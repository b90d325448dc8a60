"""A graph that needs its user's consent at a provider: the run interrupts until it is there."""

import os
from typing import TypedDict

from langchain_auth import Client
from langgraph.graph import StateGraph


class State(TypedDict, total=False):
    user: str
    token: str


async def fetch(state: State) -> State:
    client = Client(api_key=os.environ["SERVICE_KEY"], api_url=os.environ["SERVICE_URL"])
    found = await client.authenticate("globex", ["read"], user_id=state["user"])
    return {"token": found.token or ""}


agent = StateGraph(State).add_node("fetch", fetch).add_edge("__start__", "fetch").compile()
