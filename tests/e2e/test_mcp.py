"""A deployment's tools, used by the MCP client and by the adapters for models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp import ClientSession, McpError
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from mcp.shared.session import ProgressFnT
from mcp.types import TextContent

from tests.support.stack import Stack
from tests.support.waiting import wait_until

TOOLS = {"talks", "asks", "books", "counts", "draws", "sleeps", "fails", "shows"}

Use = Callable[[ClientSession], Awaitable[Any]]


@pytest.fixture
def url(stack: Stack, agency: str) -> str:
    return f"{stack.url}/d/{agency}/mcp"


@asynccontextmanager
async def session(url: str, key: str, timeout: httpx.Timeout | None = None) -> AsyncIterator[ClientSession]:
    async with create_mcp_http_client(headers={"X-Api-Key": key}, timeout=timeout) as http:
        http.event_hooks["response"] = [refuse_redirects]
        async with (
            streamable_http_client(url, http_client=http) as (read, write, _),
            ClientSession(read, write) as opened,
        ):
            await opened.initialize()
            yield opened


async def refuse_redirects(response: httpx.Response) -> None:
    assert not response.is_redirect


def on_session(url: str, key: str, what: Use) -> Any:
    """Open a session and run a coroutine function on it."""

    async def inner() -> Any:
        async with session(url, key) as opened:
            return await what(opened)

    return asyncio.run(inner())


@pytest.fixture
def use(stack: Stack, url: str) -> Callable[[Use], Any]:
    return partial(on_session, url, stack.api_key)


def texts(result: Any) -> list[str]:
    assert all(isinstance(block, TextContent) for block in result.content)
    return [block.text for block in result.content]


@pytest.mark.parametrize("slash", ["", "/"])
def test_it_lists_assistants(stack: Stack, url: str, slash: str) -> None:
    found = on_session(url + slash, stack.api_key, lambda opened: opened.list_tools())
    tools = {tool.name: tool for tool in found.tools}
    assert set(tools) == TOOLS
    assert tools["talks"].description == "Answers in three words."
    assert tools["talks"].inputSchema["required"] == ["messages"]


def test_it_calls_them(use: Callable[[Use], Any]) -> None:
    said = use(lambda opened: opened.call_tool("talks", {"messages": "hi"}))
    assert not said.isError
    answer, state = texts(said)
    assert answer == "hello big world"
    assert [message["type"] for message in json.loads(state)["messages"]] == ["human", "ai"]
    (counted,) = texts(use(lambda opened: opened.call_tool("counts", {"city": "Rome", "nights": 2})))
    assert json.loads(counted) == {"city": "Rome", "nights": 2, "log": ["Rome", 2]}


def test_a_failing_graph_is_a_tools_error(use: Callable[[Use], Any]) -> None:
    failed = use(lambda opened: opened.call_tool("fails", {"messages": "hi"}))
    assert failed.isError
    assert texts(failed) == ["ValueError: boom happened"]


def test_a_question_is_part_of_the_state(use: Callable[[Use], Any]) -> None:
    asked = use(lambda opened: opened.call_tool("books", {"city": "Rome"}))
    assert not asked.isError
    (state,) = texts(asked)
    (interrupt,) = json.loads(state)["__interrupt__"]
    assert interrupt["value"] == {"question": "Book Rome?"}


@pytest.mark.parametrize("tool", ["nothing", "bare"])
def test_what_cannot_be_called_is_refused(use: Callable[[Use], Any], tool: str) -> None:
    async def refused(opened: ClientSession) -> int:
        with pytest.raises(McpError) as caught:
            await opened.call_tool(tool, {})
        return caught.value.error.code

    assert use(refused) == -32602


def test_arguments_that_do_not_fit_are_an_error_of_the_tool(use: Callable[[Use], Any]) -> None:
    refused = use(lambda opened: opened.call_tool("counts", {"city": 7}))
    assert refused.isError
    assert "do not match" in texts(refused)[0]


def test_a_long_call_outlasts_the_clients_patience(stack: Stack, url: str) -> None:
    """The client's read timeout is shorter than the run, like the default of 300 s with a run of ten minutes."""
    seen: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async def call(callback: ProgressFnT | None) -> Any:
        patience = httpx.Timeout(30, read=9)
        async with session(url, stack.api_key, patience) as opened:
            asked = {"messages": "hi", "seconds": 13}
            return await opened.call_tool("sleeps", asked, progress_callback=callback)

    async def inner() -> list[Any]:
        return await asyncio.gather(call(None), call(on_progress))

    assert [texts(answer)[0] for answer in asyncio.run(inner())] == ["awake", "awake"]
    assert seen, "the call that asks for progress hears of it"
    assert seen == sorted(set(seen))


def test_a_client_that_leaves_cancels_its_run(stack: Stack, agency: str) -> None:
    url, key = f"{stack.url}/d/{agency}", stack.api_key
    sdk = stack.sdk(agency)

    def threads() -> int:
        return sdk.threads.count(metadata={"mcp": True}, status="busy")

    async def leave() -> None:
        async with session(f"{url}/mcp", key) as opened:
            calling = asyncio.create_task(opened.call_tool("sleeps", {"messages": "hi"}))
            while not await asyncio.to_thread(threads):
                await asyncio.sleep(0.05)
            calling.cancel()

    asyncio.run(leave())
    wait_until(lambda: not threads(), 30)


def test_models_are_given_all_tools(stack: Stack, url: str) -> None:
    connection: Any = {"transport": "streamable_http", "url": url, "headers": {"X-Api-Key": stack.api_key}}

    async def inner() -> Any:
        tools = {tool.name: tool for tool in await MultiServerMCPClient({"agency": connection}).get_tools()}
        assert set(tools) == TOOLS
        bound: list[Any] = []

        class Model(GenericFakeChatModel):
            def bind_tools(self, tools: Any, **more: Any) -> Any:
                bound.extend(tools)
                return self

        Model(messages=iter([AIMessage("")])).bind_tools(list(tools.values()))
        assert {tool.name for tool in bound} == TOOLS
        said = await tools["talks"].ainvoke({"messages": "hi"})
        call = {"type": "tool_call", "id": "c", "name": "fails", "args": {"messages": "hi"}}
        return said, await tools["fails"].ainvoke(call)

    said, failed = asyncio.run(inner())
    assert said[0]["text"] == "hello big world"
    assert failed.status == "error"
    assert "boom happened" in str(failed.content)
