"""`threads.stream` of the newer JavaScript client against the whole platform; the rows are in `tests/js/protocol.mjs`."""

from __future__ import annotations

import pytest

from tests.support.javascript import check, names_of_tests
from tests.support.stack import Stack


@pytest.mark.parametrize("transport", ["websocket", pytest.param("sse", marks=pytest.mark.release)])
@pytest.mark.parametrize(
    "projects",
    [("kitchen", "chatroom"), pytest.param(("twins", "twins"), marks=pytest.mark.release)],
    ids="-".join,
)
@pytest.mark.parametrize("row", names_of_tests("protocol.mjs"))
def test_the_newer_client_streams_threads(
    request: pytest.FixtureRequest, stack: Stack, projects: tuple[str, str], row: str, transport: str
) -> None:
    address, more = (f"{stack.url}/d/{request.getfixturevalue(project)}" for project in projects)
    check(row, "v1", "protocol.mjs", address, stack.api_key, TRANSPORT=transport, CHATROOM_URL=more)
