"""Graphs that say who asks, and call the deployment themselves."""

import asyncio
from typing import Any, TypedDict

import lobby
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.runnables import RunnableConfig
from langgraph.graph import MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph_sdk import get_client


class State(TypedDict, total=False):
    wish: str
    who: dict[str, Any]
    opened: list[str]
    threads: list[str]
    error: str


async def look(state: State, config: RunnableConfig, runtime: Runtime) -> State:
    """Everything that a node learns of its user."""
    configurable = config["configurable"]
    user = configurable.get("langgraph_auth_user")
    server = runtime.server_info
    return {
        "opened": list(lobby.opened),
        "who": {
            "identity": None if user is None else user.identity,
            "team": None if user is None else user.get("team") if hasattr(user, "get") else user["team"],
            "id": configurable.get("langgraph_auth_user_id"),
            "permissions": list(configurable.get("langgraph_auth_permissions") or ()),
            "server": server.user.identity if server and server.user else None,
            "headers": {name: configurable[name] for name in configurable if name.startswith("x-desk-")},
        },
    }


async def call(state: State) -> State:
    """What the deployment answers to its own code."""
    if state.get("wish") != "call":
        return {}
    client = get_client()
    found = await client.threads.search(limit=100)
    made = await client.threads.create(metadata={"by": "desk"})
    try:
        await client.threads.get("00000000-0000-0000-0000-000000000000")
    except Exception as error:
        return {
            "threads": sorted(thread["thread_id"] for thread in [*found, made]),
            "error": type(error).__name__,
        }
    return {}


desk = (
    StateGraph(State)
    .add_node("look", look)
    .add_node("call", call)
    .add_edge("__start__", "look")
    .add_edge("look", "call")
    .compile()
)


async def wait(state: State) -> State:
    await asyncio.sleep(60)
    return {}


waits = StateGraph(State).add_node("wait", wait).add_edge("__start__", "wait").compile()


async def talk(state: MessagesState) -> dict[str, Any]:
    model = GenericFakeChatModel(messages=iter(["One word after another."]))
    return {"messages": [await model.ainvoke(state["messages"])]}


talks = StateGraph(MessagesState).add_node("talk", talk).add_edge("__start__", "talk").compile()
