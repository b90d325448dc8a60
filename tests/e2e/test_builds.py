"""Failed builds report the reason and leave nothing behind; a project's names and secrets do not leak or clash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.errors import CommandFailed
from tests.support.one_file import write
from tests.support.stack import Stack
from tests.support.waiting import wait_until

PROJECTS = Path(__file__).parent.parent / "projects"
NAMESAKES = PROJECTS / "namesakes"
RECIPE = "two-cups-of-sugar-4711"

AGENT = """
from langgraph.graph import START, MessagesState, StateGraph
class State(MessagesState):
    said: str
def say(state: State):
    return {"said": %r}
graph = StateGraph(State).add_node(say).add_edge(START, "say").compile()
"""

SHOWS_SECRET = "import os\nraise RuntimeError('bad ' + os.environ['COOKIE_RECIPE'])"
AUTH = """
from langgraph_sdk import Auth
auth = Auth()
"""


def build_log(stack: Stack, name: str) -> list[str]:
    """Return the build log lines of the newest revision."""
    deployment_id, revision_id = stack.record(name)["id"], stack.revisions(name)[0]["id"]
    path = f"/v1/projects/{deployment_id}/revisions/{revision_id}/build_logs"
    answer = stack.client.post(path, json={"order": "asc", "limit": 1000})
    return [line["message"] for line in answer.json()["logs"]]


def said(stack: Stack, name: str) -> str:
    values: Any = stack.sdk(name).runs.wait(None, "agent", input={"messages": []})
    return str(values["said"])


def fail(stack: Stack, folder: Path, name: str) -> str:
    """Deploy a folder that cannot be deployed. Returns the `status_message` of its revision."""
    with pytest.raises(CommandFailed):
        stack.deploy(folder, name=name)
    return str(stack.revisions(name)[0]["status_message"])


def test_a_project_may_have_packages_under_the_platform_s_names_and_secrets(
    stack: Stack, tmp_path: Path
) -> None:
    for path in NAMESAKES.rglob("*"):
        target = tmp_path / path.relative_to(NAMESAKES)
        if "__pycache__" not in path.parts:
            target.mkdir() if path.is_dir() else target.write_bytes(path.read_bytes())
    (tmp_path / ".env").write_text(f"COOKIE_RECIPE={RECIPE}\nVERSION=v1\n")

    stack.deploy(tmp_path, name="namesakes")

    assert said(stack, "namesakes") == f"own modules work {len(RECIPE)} v1"
    found = stack.record("namesakes")
    assert {secret["name"] for secret in found["secrets"]} == {"COOKIE_RECIPE", "VERSION"}
    answers = json.dumps([found, stack.revisions("namesakes"), build_log(stack, "namesakes")])
    assert RECIPE not in answers
    assert "loaded with ***" in answers

    def deploy_log() -> str:
        return stack.client.post(f"/v1/projects/{found['id']}/deploy_logs", json={}).text

    wait_until(lambda: "running with ***" in deploy_log())
    assert RECIPE not in deploy_log()
    assert RECIPE not in stack.log.read_text()


def test_what_cannot_be_built_says_why_and_the_old_revision_serves(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"COOKIE_RECIPE={RECIPE}\n")
    stack.deploy(write(tmp_path, AGENT % "old"), name="broken")

    reason = fail(stack, write(tmp_path, AGENT % "hello", "no-such-thing-anywhere-xyz==1\n"), "broken")

    assert reason.startswith("requirements: No solution found when resolving dependencies: Because")
    assert "no-such-thing-anywhere-xyz" in reason
    assert any("no-such-thing-anywhere-xyz was not found" in line for line in build_log(stack, "broken"))

    own_auth = {"path": "./agent.py:auth"}
    for code, config, expected in (
        (
            "import os; print('going'); os._exit(9)",
            {},
            "graphs: the process that loads them exited with code 9",
        ),
        (
            AGENT % "new" + AUTH,
            {"auth": own_auth},
            "graphs: auth.path: no function is registered with @auth.authenticate",
        ),
        (
            AGENT % "new",
            {"encryption": own_auth},
            "configuration: encryption: not supported: this server searches, sorts",
        ),
        (SHOWS_SECRET, {}, "graphs: graph 'agent': ./agent.py failed: RuntimeError: bad ***"),
    ):
        assert fail(stack, write(tmp_path, code, **config), "broken").startswith(expected)
        assert stack.revisions("broken")[0]["status"] == "BUILD_FAILED"
    told = build_log(stack, "broken")
    assert RECIPE not in json.dumps(told)
    assert any("raise RuntimeError('bad ' + " in line for line in told), "the traceback"
    assert any('File "agent.py", line 2' in line for line in told), "files as the project names them"

    assert said(stack, "broken") == "old"
    active = stack.record("broken")["active_revision_id"]
    assert active == stack.revisions("broken")[-1]["id"]
    wait_until(lambda: _left(stack, "broken") == {active}, what="the failed ones' files to go")


def _left(stack: Stack, name: str) -> set[str]:
    ids = {revision["id"] for revision in stack.revisions(name)}
    return ids & {path.stem for path in (stack.data_dir / "revisions").iterdir()}
