"""The pipelines in `deploy/`, run step by step against a service: deploy, refusal, redeploy, removal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.actions import Action, Ran, commands_of, path_with
from tests.support.github import BOT, github
from tests.support.gitlab import Pipeline
from tests.support.stack import Stack

DEPLOY = Path(__file__).parents[2] / "deploy"
SECRET = "two-cups-of-sugar-4711"
AGENT = """
import os
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    said: str

print("::error::baked with", os.environ.get("RECIPE"))

def speak(state: State):
    return {"said": WORD}

graph = StateGraph(State).add_node(speak).add_edge(START, "speak").compile()
"""


def write(folder: Path, code: str) -> Path:
    folder.mkdir(exist_ok=True)
    config = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}
    (folder / "langgraph.json").write_text(json.dumps(config))
    (folder / "requirements.txt").touch()
    (folder / "agent.py").write_text(code)
    return folder


def names(stack: Stack) -> set[str]:
    return {row["name"] for row in json.loads(stack.cli("list", "--json").stdout)}


def said(stack: Stack, name: str) -> Any:
    values: Any = stack.sdk(name).runs.wait(None, "agent", input={})
    return values["said"]


def test_github_s_pull_request_is_served_until_it_is_closed(stack: Stack, tmp_path: Path) -> None:
    folder = write(tmp_path / "repository", AGENT)
    action = Action(DEPLOY / "github")
    repo = {"full_name": "acme/agents"}
    about = {"number": 12, "user": {"login": "ada"}, "head": {"ref": "$(touch pwned)", "repo": repo}}

    with github() as hub:

        def run(event: str) -> Ran:
            return action.run(
                folder,
                tmp_path / "runner",
                inputs={
                    "url": stack.url,
                    "api-key": stack.api_key,
                    "name": "Agents",
                    "env": f"RECIPE='{SECRET}'\n",
                    "package": "installed",
                },
                event={"action": event, "pull_request": {**about, "base": {"repo": repo}}},
                env={
                    "PATH": path_with(),
                    "HOME": str(tmp_path),
                    "GITHUB_API_URL": hub.url,
                    "GITHUB_REPOSITORY": "acme/agents",
                    "GITHUB_EVENT_NAME": "pull_request",
                },
                token="workflow-token",
            )

        write(folder, "raise ValueError('no flour')\n")
        failed = run("opened")
        assert (failed.has_failed, failed.outputs["status"]) == (True, "failed")
        (told,) = hub.by(BOT)
        assert "the step `graphs` failed" in told
        assert "ValueError: no flour" in told

        write(folder, AGENT.replace("WORD", "'one'"))
        passed = run("synchronize")
        assert not passed.has_failed, passed.log
        assert passed.outputs["status"] == "succeeded"
        assert passed.outputs["url"] == f"{stack.url}/d/agents-pr-12"
        assert said(stack, "agents-pr-12") == "one"
        assert "::error::baked with ***" in passed.log, "the project's line, which is only shown"
        assert all("baked" not in line for line in commands_of(passed.log))
        (told,) = hub.by(BOT)
        assert passed.outputs["url"] in told

        closed = run("closed")
        assert (closed.has_failed, closed.outputs["status"]) == (False, "deleted")
        assert "agents-pr-12" not in names(stack)
        assert not run("closed").has_failed
        assert len(hub.comments) == 1

    everything = failed.log + passed.log + closed.log + passed.summary + told
    assert SECRET not in everything
    assert stack.api_key not in everything
    assert not list(tmp_path.rglob("pwned"))


def test_gitlab_s_merge_request_is_served_until_it_is_merged(stack: Stack, tmp_path: Path) -> None:
    folder = write(tmp_path / "repository", AGENT.replace("WORD", "'lab'"))
    variables = tmp_path / "variables"
    variables.write_text(f"RECIPE={SECRET}\n")
    pipeline = Pipeline(DEPLOY / "gitlab" / "runyard.yml")
    env = {
        "PATH": path_with(),
        "HOME": str(tmp_path),
        "RUNYARD_URL": stack.url,
        "RUNYARD_API_KEY": stack.api_key,
        "RUNYARD_ENV_FILE": str(variables),
        "CI_PROJECT_NAME": "My.Lab",  # deploy derives a name from it
        "CI_COMMIT_REF_NAME": "$(touch pwned)",
    }
    of_request = {
        **env,
        "CI_MERGE_REQUEST_IID": "3",
        "CI_MERGE_REQUEST_PROJECT_ID": "1",
        "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "1",
    }

    preview = pipeline.run("runyard-preview", folder, of_request)
    assert preview.code == 0, preview.log
    assert preview.dotenv == {"RUNYARD_ADDRESS": f"{stack.url}/d/my-lab-mr-3"}
    assert said(stack, "my-lab-mr-3") == "lab"
    assert SECRET not in preview.log

    for _ in range(2):  # GitLab repeats the stop of an environment on request
        stopped = pipeline.run("runyard-preview-delete", folder, of_request)
        assert stopped.code == 0, stopped.log
        assert "my-lab-mr-3" not in names(stack)

    main = pipeline.run("runyard-deploy", folder, env)
    assert (main.code, main.dotenv) == (0, {"RUNYARD_ADDRESS": f"{stack.url}/d/my-lab"})

    write(folder, "raise ValueError('no flour')\n")
    failed = pipeline.run("runyard-deploy", folder, env)
    assert (failed.code, failed.dotenv) == (1, {})
    assert "failed: ValueError: no flour" in failed.log

    del of_request["RUNYARD_API_KEY"]
    forgotten = pipeline.run("runyard-preview", folder, of_request)
    assert (forgotten.code, "RUNYARD_API_KEY is not set" in forgotten.log) == (1, True)
    forked = pipeline.run(
        "runyard-preview", folder, {**of_request, "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "2"}
    )
    assert (forked.code, "a fork's merge request gets no" in forked.log) == (0, True)
    assert not list(tmp_path.rglob("pwned"))
