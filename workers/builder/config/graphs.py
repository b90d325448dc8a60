"""The `graphs` key of a langgraph.json: graph ids and the location of each graph's code.

Callers use a graph id in URLs and in place of an assistant's UUID, so ids are restricted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from workers.builder.config import entry_points
from workers.builder.config.checks import refused
from workers.builder.config.source_tree import SourceTree

Graphs = Mapping[str, Mapping[str, Any]]  # graph id → {"path": "module:attribute", "description"}

MAX_ID_LENGTH = 255
SEPARATORS = ("/", "\\", "..")
# Control, format (including marks that change the text direction), surrogate, line and paragraph separators.
UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def read(tree: SourceTree, graphs: Any) -> Graphs:
    """Return the validated graphs. Raises BuildFailed, naming the key."""
    if not isinstance(graphs, dict) or not graphs:
        raise refused('graphs: must be a non-empty object of graph id → "./file.py:attribute"')
    return {graph_id: _graph(tree, graph_id, entry) for graph_id, entry in graphs.items()}


def _graph(tree: SourceTree, graph_id: str, entry: Any) -> dict[str, Any]:
    where = f"graphs.{graph_id}"
    if reason := _why_not(graph_id):
        shown = ascii(graph_id[:MAX_ID_LENGTH])
        raise refused(f"graphs: {shown} cannot be the name of a graph: {reason}")
    description = None
    if isinstance(entry, dict):
        description = entry.get("description")
        if description is not None and not isinstance(description, str):
            raise refused(f"{where}.description: must be a string")
        entry = entry.get("path")
    if not isinstance(entry, str):
        raise refused(f'{where}: must be "module:attribute" or an object with a "path"')
    path = entry_points.read(tree, where, entry, kind="graph")
    return {"path": path, "description": description}


def require_packaged(tree: SourceTree, graphs: Graphs, packages: Iterable[PurePosixPath]) -> None:
    """Raise BuildFailed if the file of a graph is outside the installed packages."""
    for graph_id, graph in graphs.items():
        entry_points.require_packaged(tree, f"graphs.{graph_id}", graph["path"], packages)


def _why_not(graph_id: str) -> str | None:
    """Return the reason why a graph may not have this id, None if it may."""
    if not graph_id:
        return "it must not be empty"
    if len(graph_id) > MAX_ID_LENGTH:
        return f"it must not be longer than {MAX_ID_LENGTH} characters"
    if graph_id != graph_id.strip():
        return "it must not begin or end with white space"
    if graph_id == "." or any(separator in graph_id for separator in SEPARATORS):
        return "it stands in addresses, so it must not be '.' nor hold '/', '\\' or '..'"
    if any(unicodedata.category(character) in UNSEEN for character in graph_id):
        return "it must not hold control or format characters"
    if _is_uuid(graph_id):
        return "it would be taken for the UUID of an assistant"
    return None


def _is_uuid(text: str) -> bool:
    """Whether the text parses as a UUID in any form, including braces, no hyphens, or a URN."""
    try:
        UUID(text)
    except ValueError:
        return False
    return True
