"""Inspection and loading of JavaScript projects in the Node host."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import Checkpointed
from tests.support.node_hosts import node_host

NAMES = ("steps", "described", "checks_context", "echo", "made")


@pytest.fixture(scope="module")
def found(node_project: Path) -> Mapping[str, Any]:
    graphs = {name: f"./graphs.ts:{name}" for name in NAMES}
    graphs["steps"] = {"path": "./graphs.ts:steps", "description": "three steps"}  # type: ignore[assignment]
    graphs["throws"] = "./throws.ts:graph"
    (node_project / "throws.ts").write_text("export const graph = () => { throw new Error('no wish'); };\n")
    with node_host(node_project, graphs, inspect=True) as host:
        assert "error" not in host.ready, host.ready
        assert host.ready["user_code"] == {"auth": None, "app": None}
        return host.ready["graphs"]


def test_a_graph_is_drawn_as_python_draws_it(found: Mapping[str, Any]) -> None:
    drawings = found["steps"]["drawings"]

    assert found["steps"]["description"] == "three steps"
    assert drawings["all"] == drawings["0"] == drawings["1"]
    assert drawings["all"]["nodes"] == [
        {"id": "__start__", "type": "runnable", "data": {"name": "__start__"}},
        *({"id": name, "type": "runnable", "data": {"name": name}} for name in ("one", "two", "three")),
        {"id": "__end__"},
    ]
    assert drawings["all"]["edges"][0] == {"source": "__start__", "target": "one"}


def test_a_drawing_shows_the_inside_of_subgraphs_by_depth(found: Mapping[str, Any]) -> None:
    drawings = found["described"]["drawings"]

    assert [node["id"] for node in drawings["0"]["nodes"]][1:3] == ["inner", "end"]
    assert "inner:two" in [node["id"] for node in drawings["all"]["nodes"]]
    assert found["described"]["subgraphs"].keys() == {"inner"}


def test_schemas_of_zod_are_read_at_run_time(found: Mapping[str, Any]) -> None:
    schemas = found["described"]["schemas"]

    assert schemas["graph_id"] == "described"
    assert schemas["state_schema"]["properties"]["topic"] == {"type": "string", "description": "the topic"}
    assert schemas["input_schema"]["properties"].keys() == {"topic", "depth"}
    assert schemas["config_schema"] == {}
    assert schemas["context_schema"] is None
    context = found["checks_context"]["schemas"]
    assert context["context_schema"]["properties"] == {
        "depth": {"type": "number"},
        "tone": {"type": "string", "default": "plain"},
    }
    assert context["context_schema"]["required"] == ["depth"], "callers may leave out what has a default"
    assert context["config_schema"] == context["context_schema"]


def test_other_states_are_objects_of_their_channels(found: Mapping[str, Any]) -> None:
    assert found["steps"]["schemas"]["state_schema"]["properties"].keys() == {"text", "log", "kept"}
    messages = found["echo"]["schemas"]["input_schema"]["properties"]["messages"]
    assert messages["langgraph_type"] == "messages"
    assert found["steps"]["untyped"]
    assert found["described"]["untyped"], "its subgraph has no schema at run time"


def test_a_function_that_fails_is_described_by_its_error(found: Mapping[str, Any]) -> None:
    assert found["throws"]["error"].startswith("./throws.ts:graph gives no graph to describe")
    assert "no wish" in found["throws"]["error"]
    assert found["throws"]["schemas"]["input_schema"] is None
    assert "error" not in found["made"]


FILES = {
    "empty.ts": "export const graph = 1; export default {};\n",
    "broken.ts": "const x = ;\n",
    "missing.ts": "import 'no-such-package';\nexport const graph = 1;\n",
    "logs.ts": (
        "const logger = (globalThis as any)[Symbol.for('langgraph.api.sdk-logger')];\n"
        "logger.info('loaded', { n: 1 });\nthrow new TypeError('at the top');\n"
    ),
    "exits.ts": "process.exit(3);\n",
}
FAILURES = {
    "./nowhere.ts:graph": "graph 'it': no such file: ./nowhere.ts",
    "./empty.ts:nope": "graph 'it': ./empty.ts has no 'nope'; it exports default, graph",
    "./empty.ts:graph": "graph 'it': 'graph' in ./empty.ts is no graph: number",
    "./broken.ts:graph": "broken.ts:1:10: ERROR: Unexpected",
    "./missing.ts:graph": "Add 'no-such-package' to the dependencies of package.json.",
    "./logs.ts:graph": "TypeError: at the top",
    "./exits.ts:graph": "the project called process.exit(3)",
}


@pytest.mark.parametrize("location", FAILURES)
def test_a_graph_that_cannot_be_loaded_has_its_reason(node_project: Path, location: str) -> None:
    for name, content in FILES.items():
        (node_project / name).write_text(content)

    with node_host(
        node_project, {"it": location}, is_prepared=False
    ) as host:  # the build cannot prepare these
        assert host.ready["error"]["step"] == "load"
        message = host.ready["error"]["message"]
        assert FAILURES[location] in message
        assert not any(word in message for word in ("esbuild/lib", "tsx/dist", "node:internal")), message
        assert host.process.wait() == 3
        if location == "./logs.ts:graph":
            assert host.logs[0] == {"level": "INFO", "message": 'loaded {"n":1}', "logger": "langgraph"}


def test_a_project_without_langgraph_or_with_an_old_one_is_refused(
    node_project: Path, tmp_path: Path
) -> None:
    shutil.copy(node_project / "graphs.ts", tmp_path)
    with node_host(tmp_path, {"it": "./graphs.ts:steps"}) as host:
        assert host.ready["error"] == {
            "step": "environment",
            "message": "@langchain/langgraph cannot be found from './graphs.ts': add it to the dependencies",
        }

    package = tmp_path / "node_modules" / "@langchain" / "langgraph"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"version": "0.2.5"}')
    with node_host(tmp_path, {"it": "./graphs.ts:steps"}) as host:
        assert host.ready["error"]["message"] == (
            "@langchain/langgraph 1.0 or newer is needed: the project has 0.2.5: update it and @langchain/core"
        )


def test_a_commonjs_project_runs_with_its_own_copy_of_the_library(node_project: Path) -> None:
    (node_project / "common.cjs").write_text(
        'const { StateGraph, Annotation, START, Send, Command, interrupt } = require("@langchain/langgraph");\n'
        "const State = Annotation.Root({ text: Annotation, log: Annotation({"
        " reducer: (a, b) => a.concat(b), default: () => [] }) });\n"
        "exports.graph = new StateGraph(State)\n"
        '  .addNode("one", () => ({ log: [interrupt("?")] }))\n'
        '  .addNode("two", (state) => ({ log: [`two ${state.text}`] }))\n'
        '  .addEdge(START, "one").addConditionalEdges("one", () => [new Send("two", { text: "sent" })], ["two"])\n'
        "  .compile();\n"
    )
    with node_host(node_project, {"it": "./common.cjs:graph"}) as host:
        assert "error" not in host.ready, host.ready
        thread = Checkpointed(host)
        thread.run("it", {"text": "a"})
        done = thread.run("it", command={"resume": "yes"})
        sent = thread.run("it", command={"goto": {"node": "two", "input": {"text": "again"}}})

        assert done.values["log"] == ["yes", "two sent"]
        assert sent.values["log"][-1] == "two again"
