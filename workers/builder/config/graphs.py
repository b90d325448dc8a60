"""The `graphs` key of a langgraph.json, and references to a project's code: `./file.py:attribute` or `module:attribute`.

Callers use a graph id in URLs and in place of an assistant's UUID, so ids are restricted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from marshmallow import ValidationError

from shared.deployments import project_rules
from workers.builder.config.fields import Value, refused
from workers.builder.source_tree import SourceTree

Graphs = Mapping[str, Mapping[str, Any]]  # graph id → {"path": "module:attribute", "description"}

MAX_ID_LENGTH = 255
SEPARATORS = ("/", "\\", "..")
# Control, format (including marks that change the text direction), surrogate, line and paragraph separators.
UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class EntryPoint(Value):
    """A reference to an object of the project. `kind` names the object in errors, like "graph"."""

    def __init__(self, kind: str, **kwargs: Any) -> None:
        super().__init__('None must have the form "./file.py:attribute"', **kwargs)
        self.kind = kind

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> str:
        module, _, attribute = value.partition(":") if isinstance(value, str) else ("", "", "")
        if not module or not attribute:
            raise ValidationError(f'{value!r} must have the form "./file.py:attribute"')
        if reason := project_rules.javascript_refusal(module, self.kind):
            raise ValidationError(reason)
        if module.endswith(".py") and not _is_file(module):
            raise ValidationError(f"write './{module}:{attribute}' for a file; {module!r} names a module")
        return value


class GraphPaths(Value):
    """Graph ids, each with a reference or an object of a reference and a description. Loads the objects."""

    def __init__(self) -> None:
        error = 'must be a non-empty object of graph id → "./file.py:attribute"'
        super().__init__(error, lambda value: isinstance(value, dict) and bool(value), required=True)
        self.entry_point = EntryPoint("graph")

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Graphs:
        graphs = super()._deserialize(value, *args, **kwargs)
        return {graph_id: self._graph(graph_id, entry) for graph_id, entry in graphs.items()}

    def _graph(self, graph_id: str, entry: Any) -> dict[str, Any]:
        if reason := _why_not(graph_id):
            shown = ascii(graph_id[:MAX_ID_LENGTH])
            raise ValidationError(f"{shown} cannot be the name of a graph: {reason}")
        path, description = entry, None
        if isinstance(entry, dict):
            path, description = entry.get("path"), entry.get("description")
        if not isinstance(description, str | None):
            raise ValidationError({graph_id: {"description": "must be a string"}})
        if not isinstance(path, str):
            raise ValidationError({graph_id: 'must be "module:attribute" or an object with a "path"'})
        try:
            return {"path": self.entry_point.deserialize(path), "description": description}
        except ValidationError as error:
            raise ValidationError({graph_id: error.messages}) from error


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


def _is_file(module: str) -> bool:
    return "/" in module or "\\" in module


def require_file(
    tree: SourceTree, where: str, entry: str, packages: Iterable[PurePosixPath] | None = None
) -> None:
    """Raise BuildFailed if a reference names a file that is missing, or outside the installed packages if they are given.

    `where` is the reference's key.
    """
    module = entry.partition(":")[0]
    if not _is_file(module):
        return
    path = tree.inside(module, f"{where}:")
    if not tree.is_file(path):
        raise refused(f"{where}: the file {module!r} is not in the archive")
    if packages is not None and not any(path.is_relative_to(package) for package in packages):
        raise refused(f"{where}: '{path}' is in none of the packages that are installed")
