"""Clients of AG-UI against a running deployment, and the page of examples/copilotkit in a real browser.

The rows are in `tests/js/ag_ui.mjs` and `tests/js/copilotkit.mjs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import orjson
import pytest

from cli.machine.procfile import PROJECT
from tests.support import example_pages
from tests.support.javascript import check, chromium, names_of_tests
from tests.support.stack import Stack

FRONTEND = Path(__file__).parents[1] / "projects" / "frontend"
EXAMPLE = PROJECT / "examples" / "copilotkit"
QUIET = {"COPILOTKIT_TELEMETRY_DISABLED": "true"}


@pytest.fixture(scope="module")
def frontend(stack: Stack) -> str:
    return stack.deploy(FRONTEND, "frontend")


@pytest.mark.parametrize("row", names_of_tests("ag_ui.mjs"))
def test_clients_of_ag_ui_do_what_people_expect(stack: Stack, frontend: str, row: str) -> None:
    check(row, "ag_ui", "ag_ui.mjs", f"{stack.url}/d/{frontend}", stack.api_key, **QUIET)


def test_a_lost_graph_process_does_not_end_the_stream(stack: Stack, frontend: str) -> None:
    message = {"id": str(uuid4()), "role": "user", "content": "die"}
    body = {"threadId": str(uuid4()), "runId": "r", "protocolVersion": "1.0", "messages": [message]}
    url, headers = f"{stack.url}/d/{frontend}/ag-ui/chat", {"X-Api-Key": stack.api_key}
    answer = httpx.post(url, json=body, headers=headers, timeout=120)
    events = [
        orjson.loads(part.removeprefix("data: ")) for part in answer.text.split("\n\n") if part[:5] == "data:"
    ]
    types = [event["type"] for event in events]
    assert types.count("TEXT_MESSAGE_START") == types.count("TEXT_MESSAGE_END") == 2
    assert types.count("MESSAGES_SNAPSHOT") == 2, "of the checkpoint, and of the end"
    assert [one["content"] for one in events[-2]["messages"]] == ["die", "Alive again"]
    assert events[-1]["outcome"] == {"type": "success"}


@pytest.fixture(scope="module")
def built_page() -> Path:
    return example_pages.built(EXAMPLE / "page")


@pytest.fixture(scope="module", params=["ag-ui", "langgraph"])
def page(request: pytest.FixtureRequest, stack: Stack, built_page: Path) -> Iterator[str]:
    """Address of the built page. Its runtime has the agent of AG-UI or CopilotKit's `LangGraphAgent`."""
    deployment_url = f"{stack.url}/d/{stack.deploy(EXAMPLE)}"
    more = {**QUIET, "AGENT": request.param}
    with example_pages.served(built_page, deployment_url, stack.api_key, **more) as url:
        yield url


@pytest.mark.parametrize("row", names_of_tests("copilotkit.mjs"))
def test_the_page_of_copilotkit_does_what_people_expect(page: str, row: str) -> None:
    check(row, "browser", "copilotkit.mjs", page, "", TMPDIR=str(chromium()))
