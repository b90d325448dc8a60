"""An agent that calls tools: a function of its own, and the tools of an MCP server if MCP_URL names one."""

import os
import re
from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langchain_mcp_adapters.client import MultiServerMCPClient
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from model import call, chat_model

ORDERS = {"1042": "sent on Monday", "1077": "waits for payment"}


@tool
def order_status(order: str) -> str:
    """Return the status of an order, by its number."""
    return ORDERS.get(order, "there is no such order")


async def all_tools() -> list[BaseTool]:
    """Return the function above and the tools of the MCP server, which are read at each step."""
    url, key = os.environ.get("MCP_URL"), os.environ.get("MCP_KEY", "")
    if not url:
        return [order_status]
    server = MultiServerMCPClient(
        {"server": {"transport": "streamable_http", "url": url, "headers": {"X-Api-Key": key}}}
    )
    return [order_status, *await server.get_tools()]


def fake_reply(messages: Sequence[BaseMessage], tools: Sequence[BaseTool]) -> AIMessage:
    """Reply as a model that knows two rules: a number is an order, anything else is for the MCP server."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage(f"{last.name} says: {last.text}")
    if number := re.search(r"\d+", last.text):
        return call("order_status", order=number[0])
    remote = [tool.name for tool in tools if tool.name != "order_status"]
    return call(remote[0], messages=last.text) if remote else AIMessage("Ask me about the order 1042.")


async def answer(state: MessagesState) -> dict[str, list[BaseMessage]]:
    model = chat_model(fake_reply).bind_tools(await all_tools())
    return {"messages": [await model.ainvoke(state["messages"])]}


async def use_tools(state: MessagesState, config: RunnableConfig) -> dict[str, list[BaseMessage]]:
    return await ToolNode(await all_tools()).ainvoke(state, config)


graph = (
    StateGraph(MessagesState)
    .add_node("answer", answer)
    .add_node("tools", use_tools)
    .add_edge(START, "answer")
    .add_conditional_edges("answer", tools_condition)
    .add_edge("tools", "answer")
    .compile(name="tools")
)
