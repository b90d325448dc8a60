"""Deployments from a subdirectory of a password-protected git repository, over HTTP only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared.models import REVISION_ENDS
from tests.support import one_file
from tests.support.git_server import Repository, Server, serving
from tests.support.stack import Stack
from tests.support.waiting import wait_until

TOKEN = "a-token-nobody-else-gets-to-see"
AGENT = """
import os
from langgraph.graph import START, MessagesState, StateGraph
class State(MessagesState):
    said: str
def say(state: State):
    return {"said": "%s " + repr(os.environ.get("GIT_TOKEN")) + os.environ["COLOUR"]}
graph = StateGraph(State).add_node(say).add_edge(START, "say").compile()
"""
BUILD_SECONDS = 90


def test_a_branch_is_deployed_and_deployed_again_when_it_has_moved(stack: Stack, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "project.git")
    first = repository.commit(
        {f"apps/one/{name}": text for name, text in one_file.files(AGENT % "first").items()}
    )
    with serving(Server(tmp_path, password=TOKEN)) as address:
        body = {
            "name": "gitted",
            "source": "github",
            "source_config": {"repo_url": f"{address}/project.git", "deployment_type": "dev"},
            "source_revision_config": {
                "repo_ref": "main",
                "langgraph_config_path": "apps/one/langgraph.json",
            },
            "secrets": [{"name": "GIT_TOKEN", "value": TOKEN}, {"name": "COLOUR", "value": "blue"}],
        }
        made = stack.client.post("/v2/deployments", json=body)
        assert made.status_code == 201, made.text
        path = f"/v2/deployments/{made.json()['id']}"

        def newest() -> Any:
            return stack.client.get(f"{path}/revisions").json()["resources"][0]

        def said() -> str:
            values: Any = stack.sdk("gitted").runs.wait(None, "agent", input={"messages": []})
            return str(values["said"])

        wait_until(lambda: newest()["status"] in REVISION_ENDS, BUILD_SECONDS)
        assert newest()["status"] == "DEPLOYED", newest()
        assert newest()["source_revision_config"]["repo_commit_sha"] == first
        assert said() == "first Noneblue", "user code does not get the credentials"

        second = repository.commit({"apps/one/agent.py": AGENT % "second"})
        again = {"source_revision_config": {"repo_ref": "main"}}
        assert stack.client.patch(path, json=again).status_code == 200
        wait_until(lambda: newest()["status"] in REVISION_ENDS, BUILD_SECONDS)
        assert newest()["source_revision_config"]["repo_commit_sha"] == second
        assert said() == "second Noneblue"
        log = f"/v1/projects/{made.json()['id']}/revisions/{newest()['id']}/build_logs"
        lines = [line["message"] for line in stack.client.post(log, json={"order": "asc"}).json()["logs"]]
        assert f"the commit is {second}" in lines
        assert TOKEN not in json.dumps(lines) + stack.log.read_text()
