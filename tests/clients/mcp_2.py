"""What the MCP client of the second line makes of a deployment's tools: it asks for a newer protocol first."""

import json
import os
from contextlib import asynccontextmanager

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

URL, KEY = os.environ["DEPLOYMENT_URL"], os.environ["DEPLOYMENT_KEY"]


@asynccontextmanager
async def connected():
    async with httpx2.AsyncClient(headers={"X-Api-Key": KEY}, timeout=60) as http:
        transport = streamable_http_client(f"{URL}/mcp", http_client=http)
        async with Client(transport, mode="auto") as client:
            yield client


async def check_it_connects_and_lists():
    async with connected() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {"talks", "asks", "books", "counts", "sleeps", "fails"}
    assert tools["talks"].input_schema["properties"] == {"messages": {"type": "string"}}


async def check_it_calls():
    async with connected() as client:
        said = await client.call_tool("talks", {"messages": "hi"})
        assert said.content[0].text == "hello big world"
        assert json.loads(said.content[1].text)["messages"]
        failed = await client.call_tool("fails", {"messages": "hi"})
        assert failed.is_error
        assert failed.content[0].text == "ValueError: boom happened"
        try:
            await client.call_tool("nothing", {})
            code = None
        except MCPError as error:
            code = error.error.code
        assert code == -32602


async def check_it_is_told_of_progress():
    seen = []

    async def on_progress(progress, total, message):
        seen.append(progress)

    async with connected() as client:
        said = await client.call_tool("talks", {"messages": "hi"}, progress_callback=on_progress)
    assert said.content[0].text == "hello big world"
