"""Descriptions of a revision's graphs and of its app, extracted once during the build.

A graph is described by its drawings and schemas, an app by its routes, documentation and middleware. Apps of Starlette
and of FastAPI, which is based on it, can be described. Any other ASGI app is described as one mount that serves all
paths.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NotRequired, Required, get_args, get_origin, get_type_hints, is_typeddict

from langchain_core.runnables.graph import Graph
from langgraph.pregel import Pregel
from pydantic import Field, TypeAdapter, create_model
from typing_extensions import TypedDict

from .loader import READ, LoadedGraph
from .output import short_traceback
from .serialization import dumps, loads

log = logging.getLogger("runyard")


Route = dict[str, Any]
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
WHOLE: Route = {"path": "", "methods": [], "kind": "mount"}

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
        reason = (
            f"{entry.location} gives no graph to describe; a run may succeed, or fail for the same reason"
        )
        return {**_undescribed(entry), "error": f"{reason}\n{short_traceback(error)}"}


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
        reason = f"{entry.location} cannot be drawn\n{short_traceback(error)}"
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
        context = _first_schema(
            lambda: graph.get_context_jsonschema(), lambda: _of_type(graph.context_schema)
        )
    return {
        "input_schema": _first_schema(
            lambda: graph.get_input_jsonschema(), lambda: _of_type(graph.builder.input_schema)
        ),
        "output_schema": _first_schema(
            lambda: graph.get_output_jsonschema(), lambda: _of_type(graph.builder.output_schema)
        ),
        "state_schema": _first_schema(
            lambda: _state_schema(graph), lambda: _of_type(graph.builder.state_schema)
        ),
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
        schema = _first_schema(lambda declared=each: _of_type(declared)) or {}
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


def _first_schema(*makers: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
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


def describe_app(app: Any) -> dict[str, Any]:
    """Return the app's routes in the order of matching, its OpenAPI document, its middleware with the path that it is for, and its CORS settings."""
    routes = getattr(app, "routes", None)
    used = list(getattr(app, "user_middleware", ()))
    cors = next((one for one in used if _is_cors(one)), None)
    return {
        "routes": [WHOLE] if routes is None else list(_describe_routes(routes)),
        "openapi": _openapi(app),
        "middleware": [[one.cls.__name__, "/"] for one in used if one is not cors],
        "cors": None if cors is None else _cors_settings(cors),
    }


def _describe_routes(routes: Iterable[Any]) -> Iterator[Route]:
    for route in routes:
        match _kind(route):
            case "included":  # an included router: FastAPI joins its paths lazily
                contexts = route.effective_route_contexts()
                yield from _describe_routes(each.starlette_route or each for each in contexts)
            case "host":
                yield from _describe_routes(route.routes)
            case "mount" if not route.path and route.routes:
                yield from _describe_routes(route.routes)
            case "unknown":
                log.warning("http.app: routes of the type %s cannot be served", type(route).__name__)
            case kind:
                methods = sorted(getattr(route, "methods", None) or ()) if kind == "http" else []
                yield {"path": route.path, "methods": methods, "kind": kind}


def _kind(route: Any) -> str:
    if hasattr(route, "effective_route_contexts"):
        return "included"
    routing = sys.modules.get("starlette.routing")
    for name, kind in (("Mount", "mount"), ("Host", "host"), ("WebSocketRoute", "websocket")):
        if isinstance(route, getattr(routing, name, ())):
            return kind
    return "http" if getattr(route, "path", None) else "unknown"


def _openapi(app: Any) -> dict[str, Any] | None:
    """Return the document that a FastAPI app publishes, or a document generated from a Starlette app's routes."""
    make = getattr(app, "openapi", None)
    if make is None:
        paths = dict(_paths(getattr(app, "routes", None) or ()))
        return {"openapi": "3.1.0", "paths": paths} if paths else None
    if not callable(make) or getattr(app, "openapi_url", None) is None:
        return None
    try:
        return loads(dumps(make()))
    except Exception:  # any error of the app's own models
        log.warning("http.app: its OpenAPI document cannot be made", exc_info=True)
        return None


def _paths(routes: Iterable[Any], prefix: str = "") -> Iterator[tuple[str, Route]]:
    """Yield each path with its operations. Leaves out mounted apps that have their own document."""
    for route in routes:
        kind = _kind(route)
        if kind == "host" or (kind == "mount" and not hasattr(route.app, "openapi")):
            yield from _paths(route.routes or (), prefix + (route.path if kind == "mount" else ""))
        elif kind == "http" and getattr(route, "include_in_schema", True):
            path = PARAMETER.sub(r"{\1}", prefix + route.path)
            yield path, {method.lower(): _operation(route, method, path) for method in _methods(route)}


def _methods(route: Any) -> list[str]:
    """Return the methods of a route. A class-based endpoint has one function for each method."""
    if route.methods is not None:
        return sorted(route.methods - {"HEAD", "OPTIONS"})
    return [method for method in METHODS if hasattr(route.endpoint, method.lower())]


def _operation(route: Any, method: str, path: str) -> Route:
    endpoint = route.endpoint
    described = endpoint if inspect.isroutine(endpoint) else getattr(endpoint, method.lower(), endpoint)
    text = inspect.getdoc(described) if described.__doc__ else None
    parameters = [
        {"in": "path", "name": name, "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    return {
        "operationId": re.sub(r"\W+", "_", f"app_{method.lower()}{path}").strip("_"),
        "summary": f"{method} {path}",
        "tags": ["App"],
        "parameters": parameters,
        "responses": {"default": {"description": "The answer of the app"}},
        **({"description": text} if text else {}),
    }


def _is_cors(middleware: Any) -> bool:
    """Whether this is Starlette's CORSMiddleware, whose settings the web process can apply itself."""
    cls = middleware.cls
    return (cls.__module__, cls.__name__) == ("starlette.middleware.cors", "CORSMiddleware")


def _cors_settings(cors: Any) -> Mapping[str, Any]:
    """Return the arguments of a CORSMiddleware by name, including defaults."""
    options = getattr(cors, "kwargs", None) or getattr(cors, "options", {})
    bound = inspect.signature(cors.cls).bind(None, *getattr(cors, "args", ()), **options)
    bound.apply_defaults()
    return loads(dumps({name: value for name, value in bound.arguments.items() if name != "app"}))
