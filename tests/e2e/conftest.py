"""Fixtures: clients of the `kitchen` deployment, which has one graph per behaviour."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from langgraph_sdk.client import SyncLangGraphClient

from tests.support.stack import Stack


@pytest.fixture
def sdk(stack: Stack, kitchen: str) -> SyncLangGraphClient:
    return stack.sdk(kitchen)


@pytest.fixture
def http(stack: Stack, kitchen: str) -> Iterator[httpx.Client]:
    base, headers = f"{stack.url}/d/{kitchen}", {"x-api-key": stack.api_key}
    with httpx.Client(base_url=base, headers=headers, timeout=30) as client:
        yield client


@pytest.fixture
def thread_id(sdk: SyncLangGraphClient) -> str:
    return sdk.threads.create()["thread_id"]
