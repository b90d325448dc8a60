"""Inspection: a host describes its graphs and exits."""

from __future__ import annotations

import operator
import sys
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired

import pytest
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from tests.support.hosted import ALL, HOSTED
from tests.support.hosts import graph_host
from workers.graph_host.inspection import schemas


def test_inspection_describes_every_graph_and_exits() -> None:
    graphs = {
        "nested": {"path": "./graphs.py:nested", "description": "two floors"},
        "deep": "./graphs.py:deep",
        "shows_context": "./graphs.py:shows_context",
        "speaks": "./graphs.py:speaks",
        "functional": "./graphs.py:functional",
        "managed_factory": "./graphs.py:managed_factory",
    }
    with graph_host(HOSTED, graphs, inspect=True) as host:
        ready = host.ready
        code = host.process.wait()

    assert code == 0
    assert ready["versions"]["python"] == sys.version.split()[0]
    found = ready["graphs"]
    assert set(found) == set(graphs)
    nested = found["nested"]
    assert nested["description"] == "two floors"
    flat = nested["drawings"]["0"]
    assert flat["nodes"] == [
        {"id": "__start__", "type": "runnable", "data": {"name": "__start__"}},
        {"id": "two", "type": "runnable", "data": {"name": "two"}},
        {"id": "child", "type": "runnable", "data": {"name": "child"}},
        {"id": "__end__"},
    ]
    assert {"source": "__start__", "target": "two"} in flat["edges"]
    assert "child:one" in [node["id"] for node in nested["drawings"]["all"]["nodes"]]
    assert set(found["deep"]["drawings"]) == {"0", "1", "2", "all"}
    assert set(nested["schemas"]) == {
        "graph_id", "input_schema", "output_schema", "state_schema", "config_schema", "context_schema",
    }  # fmt: skip
    assert nested["schemas"]["state_schema"] == {
        "title": "nested_state",
        "type": "object",
        "properties": {
            "text": {"title": "Text", "type": "string", "default": None},
            "log": {"title": "Log", "type": "array", "items": {}, "default": None},
        },
    }
    assert set(found["functional"]["schemas"]["state_schema"]["properties"]) == {"__end__"}
    assert (nested["schemas"]["config_schema"], nested["schemas"]["context_schema"]) == ({}, None)
    assert set(nested["subgraphs"]) == {"child"}
    assert set(found["deep"]["subgraphs"]) == {"outer", "outer|inner"}
    context = found["shows_context"]["schemas"]["context_schema"]
    assert set(context["properties"]) == {"model"}
    assert found["shows_context"]["schemas"]["config_schema"] == context
    assert found["speaks"]["schemas"]["input_schema"]["properties"]["messages"]


def test_inspection_goes_on_when_a_factory_makes_no_graph() -> None:
    graphs = {name: ALL[name] for name in ("failing_factory", "wrong_factory", "steps")}
    with graph_host(HOSTED, graphs, inspect=True) as host:
        found = host.ready["graphs"]
        assert host.process.wait() == 0

    assert set(found) == set(graphs)
    assert "RuntimeError" in found["failing_factory"]["error"]
    assert "NotAGraph" in found["wrong_factory"]["error"]
    assert found["failing_factory"]["drawings"] == {"all": {"nodes": [], "edges": []}}
    assert "error" not in found["steps"]


REMOTE = """
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from langgraph.pregel.protocol import PregelProtocol
from langgraph.pregel.remote import RemoteGraph
from typing_extensions import TypedDict

class State(TypedDict, total=False):
    text: str

class Nameless(RunnableLambda):
    def get_name(self, *args, **kwargs):
        raise RuntimeError("no name")

class Foreign(RemoteGraph):
    def __getattribute__(self, name):
        if name in ("get_graph", "aget_graph", "get_input_jsonschema", "get_output_jsonschema", "config_schema"):
            raise AttributeError(name)
        return super().__getattribute__(name)

def node(state):
    return {}

def graph_of(**nodes):
    builder = StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder.compile()

inner = graph_of(inside=node)
remote = RemoteGraph("agent", url="http://127.0.0.1:9")
mixed = graph_of(far=remote, near=inner)
outer = graph_of(mixed=mixed)
foreign = graph_of(foreign=Foreign("agent", url="http://127.0.0.1:9"), near=inner)
nameless = graph_of(nameless=Nameless(node))

class Undrawn(type(inner)):
    async def aget_graph(self, *args, **kwargs):
        raise RuntimeError("cannot be drawn")

undrawn = graph_of(near=inner)
undrawn.__class__ = Undrawn

class Closed(type(inner)):
    async def aget_subgraphs(self, *args, **kwargs):
        raise RuntimeError("cannot be looked into")
        yield

closed = graph_of(near=inner)
closed.__class__ = Closed
"""


def test_a_node_that_runs_elsewhere_is_drawn_without_its_inside(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(REMOTE)
    names = ("mixed", "outer", "foreign", "nameless", "undrawn", "closed")
    with graph_host(tmp_path, {name: f"./agent.py:{name}" for name in names}, inspect=True) as host:
        found = host.ready["graphs"]
        assert host.process.wait() == 0

    def nodes(name: str) -> set[str]:
        ids = {node["id"] for node in found[name]["drawings"]["all"]["nodes"]}
        return {id for id in ids if not id.endswith(("__start__", "__end__"))}

    assert [name for name in names if "error" in found[name]] == ["undrawn", "closed"]
    assert nodes("mixed") == {"far", "near:inside"}
    assert nodes("outer") == {"mixed:far", "mixed:near:inside"}
    assert nodes("foreign") == {"foreign", "near:inside"}
    assert nodes("nameless") == {"nameless"}
    assert nodes("undrawn") == set()
    assert "cannot be drawn" in found["undrawn"]["error"]
    assert set(found["undrawn"]["subgraphs"]) == {"near"}
    assert set(found["outer"]["subgraphs"]) == {"mixed", "mixed|far", "mixed|near"}
    assert found["mixed"]["subgraphs"]["near"]["state_schema"]["properties"].keys() == {"text"}
    assert found["mixed"]["subgraphs"]["far"]["state_schema"] is None
    assert all(found[name]["schemas"]["state_schema"] for name in names[:-1])
    assert found["closed"]["error"].startswith("./agent.py:closed gives no graph to describe")
    assert 'agent.py", line ' in found["closed"]["error"]


EXTRAS = {"langgraph_nodes": ["node"], "langgraph_type": "prompt"}
Prompt = Annotated[str, Field(description="what to say", json_schema_extra={**EXTRAS})]
Numbers = Annotated[list[int], operator.add, Field(title="All of them", examples=[[1]])]


class Standard(typing.TypedDict):
    prompt: Prompt
    numbers: NotRequired[Numbers]


class Extended(TypedDict):
    prompt: Prompt
    numbers: NotRequired[Numbers]


class Model(BaseModel):
    prompt: str = Field("", description="what to say", json_schema_extra={**EXTRAS})
    numbers: Annotated[list[int], operator.add] = Field([], title="All of them", examples=[[1]])


@dataclass
class Data:
    prompt: Prompt
    numbers: Numbers


@pytest.mark.parametrize("state", [Standard, Extended, Model, Data])
def test_schemas_keep_what_is_said_of_declared_fields(state: Any) -> None:
    described = schemas(
        StateGraph(state).add_node("node", lambda state: {}).add_edge(START, "node").compile()
    )

    for name in ("input_schema", "output_schema", "state_schema"):
        prompt, numbers = (described[name]["properties"][field] for field in ("prompt", "numbers"))
        assert prompt.items() >= {"description": "what to say", "type": "string", **EXTRAS}.items(), name
        assert (numbers["title"], numbers["examples"], numbers["type"]) == ("All of them", [[1]], "array"), (
            name
        )
    assert [field["default"] for field in described["state_schema"]["properties"].values()] == [None, None]
