"""Layouts of JavaScript projects: pnpm with `createAgent`, yarn 1 with resolutions, a workspace, and an old LangGraph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.shared_stack import SharedStack

CORE, LANGGRAPH = "1.4.0", "1.7.3"
LIBRARIES = {"@langchain/core": CORE, "@langchain/langgraph": LANGGRAPH, "zod": "4.6.7"}
GRAPH = """
import { Annotation, END, START, StateGraph } from "@langchain/langgraph";
import { words } from "%s";
const State = Annotation.Root({ answer: Annotation<string> });
export const graph = new StateGraph(State)
  .addNode("say", () => ({ answer: words() }))
  .addEdge(START, "say")
  .addEdge("say", END)
  .compile();
"""
AGENT = """
import { FakeListChatModel } from "@langchain/core/utils/testing";
import { createAgent } from "langchain";
export const agent = createAgent({ model: new FakeListChatModel({ responses: ["hello"] }), tools: [] });
"""


def write(folder: Path, files: dict[str, Any]) -> Path:
    """Write the files of a project, objects as JSON, and return its folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def package(manager: str, dependencies: dict[str, str], **more: Any) -> dict[str, Any]:
    return {
        "private": True, "type": "module", "packageManager": manager, "dependencies": dependencies, **more,
    }  # fmt: skip


def answer(stack: SharedStack, name: str) -> Any:
    values: Any = stack.sdk(name).runs.wait(None, "agent", input={"answer": ""})
    return values["answer"]


def test_pnpm_installs_an_agent_that_does_not_depend_on_langgraph_itself(
    stack: SharedStack, tmp_path: Path
) -> None:
    files = {
        "langgraph.json": {"node_version": "22", "graphs": {"agent": "./src/agent.ts:agent"}},
        "package.json": package("pnpm@11.23.0", {"@langchain/core": CORE, "langchain": "1.5.14"}),
        "src/agent.ts": AGENT,
    }
    client = stack.sdk(stack.deploy(write(tmp_path, files), "layout-pnpm"))

    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    values: Any = client.runs.wait(None, "agent", input=asked)

    assert [message["content"] for message in values["messages"]] == ["hi", "hello"]


def test_yarn_1_installs_the_versions_of_resolutions(stack: SharedStack, tmp_path: Path) -> None:
    words = """
        import { readFileSync } from "node:fs";
        export const words = () => JSON.parse(readFileSync("node_modules/mustache/package.json", "utf8")).version;
    """
    files = {
        "langgraph.json": {"node_version": "20", "graphs": {"agent": "./src/graph.ts:graph"}},
        "package.json": package("yarn@1.22.22", LIBRARIES, resolutions={"mustache": "4.1.0"}),
        "src/graph.ts": GRAPH % "./words.js",
        "src/words.ts": words,
    }

    assert answer(stack, stack.deploy(write(tmp_path, files), "layout-yarn")) == "4.1.0"


def test_a_workspace_needs_the_command_that_builds_its_packages(stack: SharedStack, tmp_path: Path) -> None:
    build = "node -e \"fs.cpSync('src', 'dist', { recursive: true })\""
    shared = {"name": "@layout/shared", "version": "1.0.0", "main": "dist/index.js"}
    write(
        tmp_path,
        {
            "package.json": package("npm@11.0.0", {}, workspaces=["apps/*", "libs/*"]),
            "apps/agent/langgraph.json": {"graphs": {"agent": "./src/graph.ts:graph"}},
            "apps/agent/package.json": package("npm@11.0.0", {**LIBRARIES, "@layout/shared": "*"}),
            "apps/agent/src/graph.ts": GRAPH % "@layout/shared",
            "libs/shared/package.json": {**shared, "type": "module", "scripts": {"build": build}},
            "libs/shared/src/index.js": 'export const words = () => "from the workspace";\n',
        },
    )
    deploy = ("deploy", str(tmp_path), "--name", "layout-workspace", "-c", "apps/agent/langgraph.json")

    refused = stack.runyard(*deploy)
    config = {"source_config": {"build_command": "npm run build --workspace @layout/shared"}}
    address = f"/v2/deployments/{stack.record('layout-workspace')['id']}"
    assert stack.client.patch(address, json=config).is_success
    deployed = stack.runyard(*deploy)

    reason = "graphs: '@layout/shared' has no dist/index.js: give a build_command that builds it"
    assert reason in refused.stderr
    assert deployed.returncode == 0, deployed.stdout
    assert answer(stack, "layout-workspace") == "from the workspace"


def test_a_langgraph_below_the_oldest_version_is_refused(stack: SharedStack, tmp_path: Path) -> None:
    old = {"@langchain/core": "0.3.80", "@langchain/langgraph": "0.2.74"}
    files = {
        "langgraph.json": {"graphs": {"agent": "./src/graph.ts:graph"}},
        "package.json": package("yarn@1.22.22", old),
        "src/graph.ts": GRAPH % "./words.js",
        "src/words.ts": 'export const words = () => "old";\n',
    }

    refused = stack.runyard("deploy", str(write(tmp_path, files)), "--name", "layout-old")

    assert (
        "graphs: @langchain/langgraph 1.0 or newer is needed: the project has 0.2.74:"
        " update it and @langchain/core"
    ) in refused.stderr
