"""Schemas of states and contexts that exist as types only, extracted by the compiler of TypeScript in a step of its own.

The compiler runs no code of the project. A failure leaves the schemas without types, and never fails a build.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gevent
import orjson

from shared.infra.json_text import document_holds_nul
from shared.settings import MIB, Settings
from workers.builder import steps
from workers.builder.environments import Environment
from workers.builder.steps import WriteLine
from workers.builder.workspaces import read_untrusted
from workers.isolation import sandbox

EXTRACTOR = Path(__file__).with_suffix(".mjs")
UNTYPED = "untyped"  # a mark of the graph host in a graph's description
RESULT = "typed-states.json"
SECONDS = 60
MEMORY_MB = 1024
MAX_RESULT_BYTES = 4 * MIB


def add_types(
    settings: Settings, environment: Environment, graphs: Mapping[str, dict[str, Any]], write_line: WriteLine
) -> None:
    """Add the types of fields to the descriptions of graphs whose schemas consist of names."""
    untyped = {graph_id: graph for graph_id, graph in graphs.items() if graph.pop(UNTYPED, False)}
    if not untyped:
        return
    configured = environment.manifest.graphs
    found = _extracted(
        settings, environment, {graph_id: configured[graph_id]["path"] for graph_id in untyped}
    )
    if found is None:
        write_line(
            "WARNING", "the types of the graphs' states could not be read: their schemas have names alone"
        )
        return
    by_graph, by_node = (found.get(name) or {} for name in ("graphs", "subgraphs"))
    for graph_id, graph in untyped.items():
        complete(graph["schemas"], by_graph.get(graph_id))
        for name, schemas in graph["subgraphs"].items():
            complete(schemas, _matching(schemas, by_node.get(name.rpartition("|")[2]) or []))


def _extracted(settings: Settings, environment: Environment, entries: Mapping[str, str]) -> Any:
    """Return the schemas of fields by graph and part; None if they cannot be extracted."""
    workspace, node = environment.workspace, environment.node
    assert node is not None
    result = workspace.home / RESULT
    cwd = workspace.project / environment.manifest.directory
    argv = sandbox.wrap(
        [
            str(node.program), f"--max-old-space-size={MEMORY_MB}", str(EXTRACTOR),
            str(node.tools_folder / "node_modules" / "typescript" / "lib" / "typescript.js"),
            str(cwd), json.dumps(entries), str(result),
        ],
        settings,
        readonly=[*environment.folders, workspace.project, EXTRACTOR],
        writable=[workspace.home],
        cwd=cwd,
        memory_bytes=MEMORY_MB * MIB,
    )  # fmt: skip
    env = {"HOME": str(workspace.home)}
    result.unlink(missing_ok=True)
    try:
        with gevent.Timeout(SECONDS, TimeoutError()):
            steps.execute(argv, workspace.home, env, lambda level, message: None, cwd=cwd)
        document = read_untrusted(result, MAX_RESULT_BYTES).decode()
        return None if document_holds_nul(document) else orjson.loads(document)
    except (OSError, ValueError):  # TimeoutError is an OSError
        return None
    finally:
        result.unlink(missing_ok=True)


def _matching(schemas: Mapping[str, Any], candidates: Sequence[Any]) -> Any:
    """Return the first graph of the source with the same fields in its state; None if there is none."""
    names = ((schemas.get("state_schema") or {}).get("properties") or {}).keys()
    return next((each for each in candidates if each["state"].keys() == names), None)


def complete(schemas: dict[str, Any], found: Mapping[str, Mapping[str, Any]] | None) -> None:
    """Add the types to the fields of one graph's schemas that have none. Fields that the graph does not have are left out.

    A context that is a type only has no schema before.
    """
    if found is None:
        return
    for part in ("input", "output", "state"):
        properties = (schemas.get(f"{part}_schema") or {}).get("properties") or {}
        for name, own in properties.items():
            if own == {} and name in found[part]:
                properties[name] = found[part][name]
    if schemas.get("context_schema") is None and found["context"]:
        context = {"type": "object", "properties": dict(found["context"])}
        schemas |= {"context_schema": context, "config_schema": context}
