"""Clients of Python and JavaScript against a deployment of TypeScript graphs, which they cannot tell from Python graphs.

The tests are those of the ring `e2e`, with the project `galley` in place of `kitchen` and `chatroom`.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.machine.procfile import PROJECT
from tests.e2e.test_clients_python import *  # noqa: F403
from tests.e2e.test_clients_remote_graph import *  # noqa: F403
from tests.e2e.test_protocol_python import *  # noqa: F403
from tests.support.javascript import JS, NEWEST, check, names_of_tests
from tests.support.stack import Stack

GALLEY = Path(__file__).parents[1] / "projects" / "galley"
METHODS = re.findall(r'^(?:row|newer)\("([^"]+)"', (JS / "rows.mjs").read_text(), re.MULTILINE)


@pytest.fixture(scope="session")
def kitchen(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of a deployment with one TypeScript graph for each behaviour, and the packages of the example."""
    folder = shutil.copytree(GALLEY, tmp_path_factory.mktemp("galley") / "project")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PROJECT / "examples" / "typescript" / name, folder)
    return stack.deploy(folder, "galley")


@pytest.fixture(scope="session")
def chatroom(kitchen: str) -> str:
    return kitchen


@pytest.fixture
def deployment(stack: Stack, kitchen: str) -> tuple[str, str]:
    """Return `(address, API key)`."""
    return f"{stack.url}/d/{kitchen}", stack.api_key


@pytest.mark.parametrize("row", METHODS)
def test_each_method_of_the_newest_javascript_client_does_what_it_says(
    deployment: tuple[str, str], row: str
) -> None:
    check(row, NEWEST, "rows.mjs", *deployment)


@pytest.mark.parametrize("transport", ["websocket", "sse"])
@pytest.mark.parametrize("row", names_of_tests("protocol.mjs"))
def test_the_newest_javascript_client_streams_threads(
    deployment: tuple[str, str], row: str, transport: str
) -> None:
    check(row, NEWEST, "protocol.mjs", *deployment, TRANSPORT=transport, CHATROOM_URL=deployment[0])


@pytest.mark.parametrize("row", names_of_tests("remote.mjs"))
def test_a_javascript_program_uses_a_deployed_graph(deployment: tuple[str, str], row: str) -> None:
    check(row, "graphs", "remote.mjs", *deployment)


def test_a_graph_calls_its_own_deployment_without_an_address(stack: Stack, kitchen: str) -> None:
    client = stack.sdk(kitchen)

    answer: Any = client.runs.wait(None, "recurses", input={"n": 2})
    assert answer["log"] == ["bottom", "called", "called"]
    remote: Any = client.runs.wait(None, "far", input={"text": "x", "how": "nested"})
    assert remote["log"] == ["before", "after", "near"]
