"""What the MCP client of the second line makes of a deployment's tools, in the newest protocol and in an older one."""

import asyncio
import json
import os
from contextlib import asynccontextmanager

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

URL, KEY = os.environ["DEPLOYMENT_URL"], os.environ["DEPLOYMENT_KEY"]
MODERN, LEGACY = "2026-07-28", "2025-11-25"
LARGE = 1_200_000  # characters; an event of a stream may have 1,048,576 bytes
HEADERS = {"X-Api-Key": KEY}


@asynccontextmanager
async def connected(mode="auto", path="/mcp"):
    async with httpx2.AsyncClient(headers=HEADERS, timeout=60) as http:
        transport = streamable_http_client(f"{URL}{path}", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


async def check_it_negotiates_and_lists():
    for mode, version in (("auto", MODERN), (MODERN, MODERN), ("legacy", LEGACY)):
        for path in ("/mcp", "/mcp/"):
            async with connected(mode, path) as client:
                assert client.protocol_version == version, (mode, client.protocol_version)
                tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {"talks", "asks", "books", "counts", "draws", "sleeps", "fails", "shows"}
            assert tools["talks"].input_schema["properties"] == {"messages": {"type": "string"}}


async def check_it_calls():
    for mode in ("auto", "legacy"):
        async with connected(mode) as client:
            said = await client.call_tool("talks", {"messages": "hi"})
            assert said.content[0].text == "hello big world"
            assert json.loads(said.content[1].text)["messages"]
            failed = await client.call_tool("fails", {"messages": "hi"})
            assert failed.is_error
            assert failed.content[0].text == "ValueError: boom happened"
            for name in ("nothing", "日本語"):  # the client sends the second one as base64
                try:
                    await client.call_tool(name, {})
                    code = None
                except MCPError as error:
                    code = error.error.code
                assert code == -32602, (mode, name, code)


async def check_it_is_told_of_progress():
    for mode in ("auto", "legacy"):
        seen = []

        async def on_progress(progress, total, message, seen=seen):
            seen.append((progress, message))

        async with connected(mode) as client:
            said = await client.call_tool(
                "sleeps", {"messages": "hi", "seconds": 1}, progress_callback=on_progress
            )
        assert said.content[0].text == "awake"
        counts = [count for count, _ in seen]
        assert counts == list(range(1, len(seen) + 1))
        assert {message for _, message in seen} <= {None, "node"}


async def check_it_gets_files():
    async with connected() as client:
        shown = await client.call_tool("shows", {"messages": "hi"})
    assert [block.type for block in shown.content] == [
        "text",
        "image",
        "audio",
        "resource",
        "resource_link",
        "text",
    ]
    assert shown.content[1].mime_type == "image/png"


async def check_a_large_result_arrives_as_json_and_is_cut_in_a_stream():
    async def on_progress(progress, total, message):
        pass

    async with connected() as client:
        whole = await client.call_tool("shows", {"messages": "x" * LARGE})
        assert len(json.loads(whole.content[-1].text)["messages"][0]["content"]) == LARGE
        cut = await client.call_tool("shows", {"messages": "x" * LARGE}, progress_callback=on_progress)
        assert not cut.is_error
        assert "left out" in cut.content[-1].text
        assert cut.content[1].type == "image"


async def check_a_call_that_is_left_is_cancelled():
    async def on_progress(progress, total, message):
        pass

    async with httpx2.AsyncClient(headers=HEADERS, timeout=60) as http:
        # Not listed, since other tests compare the list, and of its own, since other tests call `sleeps`.
        tool = {"graph_id": "sleeps", "name": "left_by_python", "metadata": {"mcp": {"listed": False}}}
        created = (await http.post(f"{URL}/assistants", json=tool)).json()

        async def busy():
            body = {"metadata": {"assistant_id": created["assistant_id"]}, "status": "busy"}
            return (await http.post(f"{URL}/threads/count", json=body)).json()

        for callback in (None, on_progress):
            async with connected() as client:
                call = client.call_tool("left_by_python", {"messages": "hi"}, progress_callback=callback)
                calling = asyncio.create_task(call)
                while not await busy():
                    await asyncio.sleep(0.05)
                calling.cancel()
                while await busy():
                    await asyncio.sleep(0.05)
        await http.delete(f"{URL}/assistants/{created['assistant_id']}")
