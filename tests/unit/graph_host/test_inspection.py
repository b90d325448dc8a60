"""Inspection: a host that describes its graphs and exits."""

from __future__ import annotations

import sys

from tests.support.hosted import ALL, HOSTED
from tests.support.hosts import graph_host


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
        ready = host.wait_ready()
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
        found = host.wait_ready()["graphs"]
        assert host.process.wait() == 0

    assert set(found) == set(graphs)
    assert "RuntimeError" in found["failing_factory"]["error"]
    assert "NotAGraph" in found["wrong_factory"]["error"]
    assert found["failing_factory"]["drawings"] == {"all": {"nodes": [], "edges": []}}
    assert "error" not in found["steps"]
