"""`threads.stream` of the newer JavaScript client against the whole platform; the rows are in `tests/js/protocol.mjs`."""

from __future__ import annotations

import re

import pytest

from tests.support.javascript import JS, outcomes
from tests.support.stack import Stack

ROWS = re.findall(r'^  test\("([^"]+)"', (JS / "protocol.mjs").read_text(), re.MULTILINE)


@pytest.mark.parametrize("transport", ["websocket", pytest.param("sse", marks=pytest.mark.release)])
@pytest.mark.parametrize("row", ROWS)
def test_the_newer_client_streams_threads(
    stack: Stack, kitchen: str, chatroom: str, row: str, transport: str
) -> None:
    address, more = f"{stack.url}/d/{kitchen}", f"{stack.url}/d/{chatroom}"
    failures = outcomes("v1", "protocol.mjs", address, stack.api_key, TRANSPORT=transport, CHATROOM_URL=more)
    assert row in failures, "it was not run"
    assert failures[row] is None, failures[row]
