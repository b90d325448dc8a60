"""Clients whose connection breaks lose no event and no result, and start no second run."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

from tests.support.cutting_proxy import Break, Proxy, proxy
from tests.support.javascript import LINES, NEWEST, outcomes
from tests.support.stack import Stack

NUMBERS = {"n": 60, "seconds": 0.02}
MODES: Any = ["custom", "values"]


@pytest.fixture
def broken(stack: Stack) -> Iterator[Proxy]:
    """A proxy in front of the platform that breaks connections as the test tells it."""
    with proxy("127.0.0.1", stack.port) as made:
        yield made


@pytest.fixture
def sdk(stack: Stack, kitchen: str, broken: Proxy) -> SyncLangGraphClient:
    return get_sync_client(url=f"{broken.url}/d/{kitchen}", api_key=stack.api_key)


def asked(broken: Proxy, ending: str) -> list[str]:
    """Return the methods of the requests whose path has this ending."""
    return [line.split()[0] for line in broken.requests if line.partition("?")[0].endswith(ending)]


def check_whole(parts: list[Any]) -> None:
    """Assert that every event arrived once and in order."""
    assert [part.data["i"] for part in parts if part.event == "custom"] == list(range(NUMBERS["n"]))
    assert [part.event for part in parts if part.event != "custom"] == ["metadata", "values", "values"]
    ids = [int(part.id) for part in parts]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("thread", [True, False])
def test_a_resumable_stream_goes_on_after_each_cut(
    sdk: SyncLangGraphClient, broken: Proxy, thread: bool
) -> None:
    thread_id = sdk.threads.create()["thread_id"] if thread else None
    broken.breaks = [Break(b"/runs/stream", b'"i":15}'), Break(b"/stream ", b'"i":40}')]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the client warns about events that were not replayed
        stream = sdk.runs.stream(
            thread_id, "writes", input=NUMBERS, stream_mode=MODES, stream_resumable=True, on_completion="keep"
        )
        check_whole(list(stream))
    assert asked(broken, "/stream") == ["POST", "GET", "GET"], "a run is over before its stream is"


def test_an_asynchronous_client_goes_on_too(stack: Stack, kitchen: str, broken: Proxy) -> None:
    broken.breaks = [Break(b"/runs/stream", b'"i":15}')]

    async def call() -> list[Any]:
        async with get_client(url=f"{broken.url}/d/{kitchen}", api_key=stack.api_key) as client:
            thread_id = (await client.threads.create())["thread_id"]
            stream = client.runs.stream(
                thread_id, "writes", input=NUMBERS, stream_mode=MODES, stream_resumable=True
            )
            return [part async for part in stream]

    check_whole(asyncio.run(call()))
    assert asked(broken, "/stream") == ["POST", "GET"]


def test_a_run_is_over_before_its_stream_closes(sdk: SyncLangGraphClient, broken: Proxy) -> None:
    """When a stream closes, the client reads the run and reconnects while the run is live."""
    thread_id = sdk.threads.create()["thread_id"]
    for _ in range(10):
        list(sdk.runs.stream(thread_id, "echo", input={"text": "x"}))
    assert asked(broken, "/stream") == ["POST"] * 10


@pytest.mark.parametrize("thread", [True, False])
def test_a_wait_that_is_cut_off_joins_its_run(sdk: SyncLangGraphClient, broken: Proxy, thread: bool) -> None:
    thread_id = sdk.threads.create()["thread_id"] if thread else None
    broken.breaks = [Break(b"/runs/wait")]
    with pytest.warns(UserWarning, match="attempting reconnect"):
        output = sdk.runs.wait(
            thread_id, "counts", input={"n": 4, "seconds": 0.2}, durability="exit", on_completion="keep"
        )
    assert output["log"] == [0, 1, 2, 3]
    assert (asked(broken, "/wait"), asked(broken, "/join")) == (["POST"], ["GET"])


@pytest.mark.parametrize("path", ["/runs", "/runs/wait", "/runs/stream"])
def test_a_run_whose_answer_was_lost_is_asked_for_again_under_its_key(
    stack: Stack, kitchen: str, broken: Proxy, path: str
) -> None:
    headers = {"x-api-key": stack.api_key, "Idempotency-Key": str(uuid4())}
    body = {"assistant_id": "echo", "input": {"text": "once"}, "stream_resumable": True}
    broken.breaks = [Break(f"{path} ".encode(), hides=True)]
    with httpx.Client(base_url=f"{broken.url}/d/{kitchen}", headers=headers, timeout=30) as client:
        thread_id = stack.sdk(kitchen).threads.create()["thread_id"]
        answers = [client.post(f"/threads/{thread_id}{path}", json=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [502, 200, 200]
    assert answers[1].headers["Content-Location"] == answers[2].headers["Content-Location"]
    (run,) = stack.sdk(kitchen).runs.list(thread_id)
    assert answers[1].headers["Content-Location"].endswith(run["run_id"])


@pytest.mark.parametrize(
    "line", [NEWEST, *(pytest.param(line, marks=pytest.mark.release) for line in LINES if line != NEWEST)]
)
def test_the_javascript_client_goes_on_and_makes_no_second_run(
    stack: Stack, kitchen: str, broken: Proxy, line: str
) -> None:
    broken.breaks = [
        Break(b'"mark":"cut"', b'"i":15}'),
        Break(b'"mark":"hidden"', hides=True),
    ]
    failures = outcomes(line, "transport.mjs", f"{broken.url}/d/{kitchen}", stack.api_key)
    assert failures
    assert [failure for failure in failures.values() if failure] == []
