"""Drawings and schemas of a revision's graphs, extracted once during the build."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NotRequired, Required, get_args, get_origin, get_type_hints, is_typeddict

from langchain_core.runnables.graph import Graph
from langgraph.pregel import Pregel
from pydantic import Field, TypeAdapter, create_model
from typing_extensions import TypedDict

from .loader import READ, LoadedGraph, user_traceback
from .serialization import dumps, loads

MAX_DEPTH = 10
# Keywords of a field's schema that are taken from its channel: fields may be empty, and reducers change types.
OF_CHANNELS = frozenset(
    {"$ref", "additionalProperties", "allOf", "anyOf", "const", "default", "enum", "items", "oneOf"}
    | {"prefixItems", "properties", "required", "type"}
)
NO_DRAWING: dict[str, Any] = {"nodes": [], "edges": []}


async def describe_all(entries: dict[str, LoadedGraph]) -> dict[str, Any]:
    """Describe all graphs. A graph that cannot be described or drawn gets an `error`; runs can still execute it."""
    return {graph_id: await _described(entry) for graph_id, entry in entries.items()}


async def _described(entry: LoadedGraph) -> dict[str, Any]:
    try:
        return await _describe(entry)
    except Exception as error:  # any error of a graph factory
        reason = f"{entry.location} gives no graph to describe: a run may fare better or end so"
        return {**_undescribed(entry), "error": f"{reason}\n{user_traceback(error)}"}


def _undescribed(entry: LoadedGraph) -> dict[str, Any]:
    names = ("input_schema", "output_schema", "state_schema", "config_schema", "context_schema")
    return {
        "description": entry.description,
        "drawings": {"all": NO_DRAWING},
        "schemas": {"graph_id": entry.graph_id, **dict.fromkeys(names)},
        "subgraphs": {},
    }


async def _describe(entry: LoadedGraph) -> dict[str, Any]:
    async with _graph(entry) as graph:
        return {
            "description": entry.description,
            **await _drawn(entry, graph),
            "schemas": {"graph_id": entry.graph_id, **schemas(graph)},
            "subgraphs": {name: schemas(inner) async for name, inner in graph.aget_subgraphs(recurse=True)},
        }


@asynccontextmanager
async def _graph(entry: LoadedGraph) -> AsyncIterator[Pregel]:
    if entry.graph is not None:
        yield entry.graph
        return
    async with entry.opened({"configurable": {"graph_id": entry.graph_id}}, READ, None) as graph:
        yield graph


async def _drawn(entry: LoadedGraph, graph: Pregel) -> dict[str, Any]:
    """Return drawings by depth: "0" shows no subgraph's inside, "all" shows the inside of every subgraph.

    If a node cannot be drawn, the drawings are empty and an `error` is added.
    """
    try:
        return {"drawings": await _at_depths(_local(graph))}
    except Exception as error:  # any error of a node's code
        reason = f"{entry.location} cannot be drawn\n{user_traceback(error)}"
        return {"drawings": {"all": NO_DRAWING}, "error": reason}


async def _at_depths(graph: Pregel) -> dict[str, Any]:
    everything = _drawing(await graph.aget_graph(xray=True))
    drawings = {"0": _drawing(await graph.aget_graph(xray=False))}
    for depth in range(1, MAX_DEPTH + 1):
        drawings[str(depth)] = _drawing(await graph.aget_graph(xray=depth))
        if drawings[str(depth)] == everything:
            break
    drawings["all"] = everything
    return drawings


def _local(graph: Pregel) -> Pregel:
    """Return a copy of a graph whose drawing shows only the inside of subgraphs in this process.

    A RemoteGraph would otherwise be asked for its drawing over the network.
    """

    async def subgraphs(**options: Any) -> AsyncIterator[tuple[str, Pregel]]:
        async for name, inner in graph.aget_subgraphs(**options):
            if isinstance(inner, Pregel):
                yield name, _local(inner)

    local: Any = graph.copy()
    local.aget_subgraphs = subgraphs
    return local


def _drawing(drawn: Graph) -> dict[str, Any]:
    shape = drawn.to_json()
    return {
        "nodes": [_node(node) for node in shape["nodes"]],
        "edges": [loads(dumps(edge)) for edge in shape["edges"]],
    }


def _node(node: dict[str, Any]) -> dict[str, Any]:
    if node["id"] == "__end__":
        return {"id": "__end__"}
    data = node.get("data")
    name = data.get("name") if isinstance(data, dict) else None
    out = {"id": node["id"], "type": "runnable", "data": {"name": name or node["id"]}}
    if node.get("metadata"):
        out["metadata"] = loads(dumps(node["metadata"]))
    return out


def schemas(graph: Any) -> dict[str, Any]:
    """Return the five JSON Schemas of a graph. A schema that cannot be created is null.

    Without a context schema, the config schema is empty. A subgraph may be any runnable that LangGraph accepts as a
    graph, so a missing attribute makes only its own schema null.
    """
    has_context = getattr(graph, "context_schema", None) is not None
    context = None
    if has_context:
        context = _made(lambda: graph.get_context_jsonschema(), lambda: _of_type(graph.context_schema))
    return {
        "input_schema": _made(
            lambda: graph.get_input_jsonschema(), lambda: _of_type(graph.builder.input_schema)
        ),
        "output_schema": _made(
            lambda: graph.get_output_jsonschema(), lambda: _of_type(graph.builder.output_schema)
        ),
        "state_schema": _made(lambda: _state_schema(graph), lambda: _of_type(graph.builder.state_schema)),
        "config_schema": context if has_context else {},
        "context_schema": context,
    }


def _state_schema(graph: Pregel) -> dict[str, Any]:
    """Return the schema of a state as callers read it: the types of its channels, each of which may still be empty."""
    channels = {key: graph.channels[key] for key in graph.stream_channels_list}
    fields: dict[str, Any] = {
        f"field_{number}": (getattr(channel, "UpdateType", Any), Field(None, alias=key))
        for number, (key, channel) in enumerate(channels.items())
    }
    schema = create_model(graph.get_name("State"), **fields).model_json_schema()
    declared = _declared(graph)
    for key, field in schema.get("properties", {}).items():
        field |= {name: value for name, value in declared.get(key, {}).items() if name not in OF_CHANNELS}
    return schema


def _declared(graph: Any) -> dict[str, dict[str, Any]]:
    """Return the JSON Schemas of the fields of the state's classes, with descriptions and `json_schema_extra`."""
    builder = getattr(graph, "builder", None)
    classes = [] if builder is None else [*builder.schemas, builder.state_schema]
    fields: dict[str, dict[str, Any]] = {}
    for each in classes:
        schema = _made(lambda declared=each: _of_type(declared)) or {}
        fields |= schema.get("properties", {})
    return fields


def _of_type(declared: Any) -> dict[str, Any]:
    """Return the schema of a state class.

    pydantic refuses `typing.TypedDict` before Python 3.12, so such a class is rebuilt with that of typing_extensions.
    """
    if is_typeddict(declared):
        hints = get_type_hints(declared, include_extras=True)
        required = declared.__required_keys__
        keys = {
            key: _bare(hint) if key in required else NotRequired[_bare(hint)] for key, hint in hints.items()
        }
        declared = TypedDict(declared.__name__, keys)  # type: ignore[operator]
    return TypeAdapter(declared).json_schema()


def _bare(hint: Any) -> Any:
    """Return a field's type without `Required` or `NotRequired` around it."""
    return get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint


def _made(*makers: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return the result of the first maker that does not fail."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for make in makers:
            try:
                schema = make()
            except Exception:  # a user's type that pydantic cannot describe
                continue
            return None if schema is None else loads(dumps(schema))
    return None
