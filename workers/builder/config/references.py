"""References to code in `langgraph.json`, and the names under which the service knows the code.

References have the form `./file.py:attribute`, `module:attribute` or `./file.ts:export`. Callers use a graph id in URLs
and in place of an assistant's UUID, so ids are restricted.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from marshmallow import ValidationError

from shared.deployments import project_rules
from workers.builder.config.fields import Value

Graphs = Mapping[str, Mapping[str, Any]]  # graph id → {"path": "module:attribute", "description"}

MAX_ID_LENGTH = 255
SEPARATORS = ("/", "\\", "..")
MAX_COMPONENT_SETS = 50
MAX_APPS = 50
PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
MAX_PATH = 200
# Control, format (including marks that change the text direction), surrogate, line and paragraph separators.
UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class EntryPoint(Value):
    """A reference to an object of the project. One to a script may leave out the name: it is the default export."""

    def __init__(self, **kwargs: Any) -> None:
        # The error of a missing or null reference.
        super().__init__('None must have the form "./file.py:attribute"', **kwargs)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> str:
        module, _, attribute = value.partition(":") if isinstance(value, str) else ("", "", "")
        is_script = project_rules.is_script(module)
        if is_script:
            attribute = attribute or "default"
            value = f"{module}:{attribute}"
        if not module or not attribute:
            raise ValidationError(f'{value!r} must have the form "./file.py:attribute"')
        if (is_script or module.endswith(".py")) and not names_file(module):
            raise ValidationError(f"write './{module}:{attribute}' for a file; {module!r} names a module")
        return value


class AppPaths(Value):
    """Paths, each with a reference to the app that answers all requests below it."""

    def __init__(self) -> None:
        error = f'must be an object of at most {MAX_APPS} paths, each with "./file.ts:app"'
        super().__init__(error, lambda value: isinstance(value, dict) and len(value) <= MAX_APPS)
        self.entry_point = EntryPoint()

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> dict[str, str]:
        apps: dict[str, str] = {}
        for name, entry in super()._deserialize(value, *args, **kwargs).items():
            path = name.rstrip("/")
            if not is_path(path):
                raise ValidationError(f'{name[:MAX_PATH]!r} must be a path like "/dashboard"')
            if path in apps:
                raise ValidationError(f"{path!r} is named twice")
            try:
                apps[path] = self.entry_point.deserialize(entry)
            except ValidationError as error:
                raise ValidationError({name: error.messages}) from error
        return apps


def is_path(path: str) -> bool:
    """Whether a text is an absolute path of plain segments without a slash at its end."""
    is_plain = len(path) <= MAX_PATH and PATH.fullmatch(path) is not None
    return is_plain and not {".", ".."} & set(path.split("/"))


class GraphPaths(Value):
    """Graph ids, each with a reference or an object of a reference and a description. Loads the objects."""

    def __init__(self) -> None:
        error = 'must be a non-empty object of graph id → "./file.py:attribute"'
        super().__init__(error, lambda value: isinstance(value, dict) and bool(value), required=True)
        self.entry_point = EntryPoint()

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


def names_file(module: str) -> bool:
    return "/" in module or "\\" in module


class ComponentPaths(Value):
    """Names of sets of components, each with the script that exports the set by default. The names stand in addresses."""

    def __init__(self) -> None:
        error = 'must be an object of name → "./ui.tsx"'
        super().__init__(error, lambda value: isinstance(value, dict), load_default=dict)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> dict[str, str]:
        sets = super()._deserialize(value, *args, **kwargs)
        if len(sets) > MAX_COMPONENT_SETS:
            raise ValidationError(f"must hold at most {MAX_COMPONENT_SETS} names")
        for name, path in sets.items():
            if reason := _why_not(name):
                raise ValidationError(f"{name[:MAX_ID_LENGTH]!a} cannot be the name of components: {reason}")
            if not isinstance(path, str) or not path.endswith(
                (*project_rules.SCRIPTS, *project_rules.COMPONENTS)
            ):
                raise ValidationError({name: 'must be a script, such as "./ui.tsx"'})
        return sets
