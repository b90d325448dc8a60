"""Rows for the clients' assistant methods."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk.errors import ConflictError, NotFoundError

from tests.e2e.client_rows import ECHO, new, row


@row("assistants.get")
async def _(client: Any) -> None:
    found = await client.assistants.get(ECHO)
    assert (found["assistant_id"], found["graph_id"], found["version"]) == (ECHO, "echo", 1)


@row("assistants.get_graph")
async def _(client: Any) -> None:
    graph = await client.assistants.get_graph(ECHO, xray=1)
    assert {node["id"] for node in graph["nodes"]} == {"__start__", "node", "__end__"}
    assert {"source": "__start__", "target": "node"}.items() <= graph["edges"][0].items()
    (nested,) = await client.assistants.search(graph_id="nested")
    plain = await client.assistants.get_graph(nested["assistant_id"])
    opened = await client.assistants.get_graph(nested["assistant_id"], xray=True)
    assert {node["id"] for node in plain["nodes"]} == {"__start__", "child", "__end__"}
    assert {"child:before", "child:after"} <= {node["id"] for node in opened["nodes"]}


@row("assistants.get_schemas")
async def _(client: Any) -> None:
    schemas = await client.assistants.get_schemas(ECHO)
    assert schemas["graph_id"] == "echo"
    assert {"input_schema", "output_schema", "state_schema", "context_schema"} <= set(schemas)
    assert "text" in schemas["input_schema"]["properties"]


@row("assistants.get_subgraphs")
async def _(client: Any) -> None:
    (nested,) = await client.assistants.search(graph_id="nested")
    subgraphs = await client.assistants.get_subgraphs(nested["assistant_id"], recurse=True)
    one = await client.assistants.get_subgraphs(nested["assistant_id"], namespace="child")
    assert list(subgraphs) == list(one) == ["child"]


@row("assistants.create")
async def _(client: Any) -> None:
    id = str(uuid4())
    made = await client.assistants.create(
        "greets", context={"word": "hi"}, metadata={"a": 1}, assistant_id=id, name="n", description="d"
    )
    assert made["assistant_id"] == id
    assert (made["context"], made["metadata"]) == ({"word": "hi"}, {"a": 1})
    assert (made["name"], made["description"], made["version"]) == ("n", "d", 1)
    same = await client.assistants.create("greets", assistant_id=id, if_exists="do_nothing")
    assert same == made
    with pytest.raises(ConflictError):
        await client.assistants.create("greets", assistant_id=id)


@row("assistants.update")
async def _(client: Any) -> None:
    made = await client.assistants.create("greets", context={"word": "a", "loud": True})
    changed = await client.assistants.update(
        made["assistant_id"], context={"word": "b"}, metadata={"m": 1}, name="new", description="said"
    )
    assert (changed["version"], changed["context"]) == (2, {"word": "b"})
    assert (changed["name"], changed["description"], changed["metadata"]) == ("new", "said", {"m": 1})


@row("assistants.delete")
async def _(client: Any) -> None:
    made = await client.assistants.create("echo")
    await client.assistants.delete(made["assistant_id"])
    with pytest.raises(NotFoundError):
        await client.assistants.get(made["assistant_id"])
    made = await client.assistants.create("echo")
    thread_id = await new(client)
    await client.runs.wait(thread_id, made["assistant_id"], input={"text": "x"})
    await client.assistants.delete(made["assistant_id"], delete_threads=True)
    with pytest.raises(NotFoundError):
        await client.threads.get(thread_id)


@row("assistants.search")
async def _(client: Any) -> None:
    mark = str(uuid4())
    ids = [
        (await client.assistants.create("echo", metadata={"m": mark}, name=f"{i}"))["assistant_id"]
        for i in range(3)
    ]
    found = await client.assistants.search(
        metadata={"m": mark}, graph_id="echo", limit=2, sort_by="created_at", sort_order="asc"
    )
    assert [item["assistant_id"] for item in found] == ids[:2]
    page = await client.assistants.search(
        metadata={"m": mark}, limit=2, select=["assistant_id"], response_format="object"
    )
    assert (page["next"], [set(item) for item in page["assistants"]]) == ("2", [{"assistant_id"}] * 2)
    last = await client.assistants.search(metadata={"m": mark}, limit=2, offset=2, response_format="object")
    assert (last["next"], len(last["assistants"])) == (None, 1)


@row("assistants.count")
async def _(client: Any) -> None:
    mark = str(uuid4())
    await client.assistants.create("echo", metadata={"m": mark}, name=mark)
    assert await client.assistants.count(metadata={"m": mark}, graph_id="echo", name=mark) == 1


@row("assistants.get_versions")
async def _(client: Any) -> None:
    made = await client.assistants.create("greets", metadata={"m": 1})
    await client.assistants.update(made["assistant_id"], metadata={"m": 2})
    versions = await client.assistants.get_versions(made["assistant_id"], limit=5)
    assert [item["version"] for item in versions] == [2, 1]
    one = await client.assistants.get_versions(made["assistant_id"], metadata={"m": 1}, offset=0)
    assert [item["version"] for item in one] == [1]


@row("assistants.set_latest")
async def _(client: Any) -> None:
    made = await client.assistants.create("greets", context={"word": "one"})
    await client.assistants.update(made["assistant_id"], context={"word": "two"})
    latest = await client.assistants.set_latest(made["assistant_id"], 1)
    assert (latest["version"], latest["context"]) == (1, {"word": "one"})
    said = await client.runs.wait(None, made["assistant_id"], input={"text": ""})
    assert said["log"] == ["one"]
