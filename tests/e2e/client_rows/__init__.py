"""Rows of the test of the Python clients. Each row calls one method and checks the fields that callers read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

ECHO = "046b5dc7-2108-582c-9c6c-31d556d138f0"

Row = Callable[[Any], Awaitable[None]]
ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        ROWS[name] = function
        return function

    return add


async def new(client: Any, **more: Any) -> str:
    return (await client.threads.create(**more))["thread_id"]


async def running(client: Any, thread_id: str | None) -> dict[str, Any]:
    """Start a run that lasts until it is cancelled."""
    return await client.runs.create(thread_id, "sleeps", input={"text": "x"})
