"""Every method of the Python clients, the asynchronous one and the synchronous, against the whole platform.

Each row (tests/e2e/client_rows) calls one method and checks the fields that callers read.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from langgraph_sdk import get_client

from tests.e2e.client_rows import ROWS, assistants, crons_and_store, runs, threads
from tests.support.stack import Stack

__all__ = ["assistants", "crons_and_store", "runs", "threads"]  # importing them adds their rows to ROWS

ELSEWHERE = {"threads.stream"}  # covered by tests/e2e/test_protocol_python.py


class Synchronous:
    """Wraps the synchronous client, or a part of it, in the interface of the asynchronous one."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return Synchronous(found)

        def call(*args: Any, **more: Any) -> Any:
            if name.endswith("stream"):
                return _each(found(*args, **more))
            return _answered(found, *args, **more)

        return call


async def _answered(method: Callable[..., Any], *args: Any, **more: Any) -> Any:
    return method(*args, **more)


async def _each(parts: Iterator[Any]) -> AsyncIterator[Any]:
    for part in parts:
        yield part


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("kind", ["async", pytest.param("sync", marks=pytest.mark.release)])
def test_each_method_does_what_it_says(stack: Stack, kitchen: str, kind: str, name: str) -> None:
    async def call() -> None:
        if kind == "sync":
            await ROWS[name](Synchronous(stack.sdk(kitchen)))
            return
        async with get_client(url=f"{stack.url}/d/{kitchen}", api_key=stack.api_key) as client:
            await ROWS[name](client)

    asyncio.run(call())


def test_every_method_has_a_row() -> None:
    client = get_client(url="http://nowhere", api_key="x")
    methods = {
        f"{part}.{name}"
        for part in ("assistants", "threads", "runs", "crons", "store")
        for name, _ in inspect.getmembers(type(getattr(client, part)), inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods - set(ROWS) == ELSEWHERE
