"""Clients of the kitchen on each module's platform."""

from __future__ import annotations

import pytest
from langgraph_sdk.client import SyncLangGraphClient

from tests.support.stack import Stack


@pytest.fixture
def sdk(stack: Stack) -> SyncLangGraphClient:
    return stack.sdk("kitchen")


@pytest.fixture
def thread_id(sdk: SyncLangGraphClient) -> str:
    return sdk.threads.create()["thread_id"]
