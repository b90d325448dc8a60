"""The input of a graph by its JSON Schema: whether the graph takes a conversation, and whether an input fits.

Only the names and types of the top-level fields are checked. Validation against the rest of a project's schema could
take arbitrarily long, and the graph validates its input itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonSchema = Mapping[str, Any]

MESSAGES = "messages"
MOST_PARTS = 100  # references and alternatives followed per field
TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def fields(schema: JsonSchema | None) -> JsonSchema:
    """Return the schemas of the input's fields, by name."""
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def takes_messages(schema: JsonSchema | None) -> bool:
    """Whether the graph takes a conversation: a list of messages."""
    if MESSAGES not in fields(schema):
        return False
    types = _types(schema or {}, fields(schema)[MESSAGES])
    return not types or "array" in types


def user_message(text: str, id: str | None = None) -> dict[str, Any]:
    """Return a user's message in the form that graphs take."""
    return {"role": "user", "content": text} | ({} if id is None else {"id": id})


def misfits(schema: JsonSchema, given: Mapping[str, Any]) -> list[str]:
    """Return the problems of an input: missing fields, and fields of a wrong type."""
    required = schema.get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    missing = [f"{name}: this field is required" for name in names if name not in given]
    wrong = [
        f"{name}: must be {' or '.join(types)}"
        for name, field in fields(schema).items()
        if name in given and (types := _types(schema, field)) and not _is_of(given[name], types)
    ]
    return missing + wrong


def _is_of(value: Any, types: list[str]) -> bool:
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, float) and value.is_integer() and "integer" in types:
        return True
    return any(isinstance(value, TYPES[type]) for type in types)


def _types(root: JsonSchema, schema: Any) -> list[str]:
    """Return the types that a schema allows.

    An empty list means any type, an unclear schema, or one with more than MOST_PARTS parts.
    """
    found: list[str] = []
    parts = [schema]
    for _ in range(MOST_PARTS):
        if not parts:
            return list(dict.fromkeys(found))
        part = parts.pop(0)
        if not isinstance(part, dict):
            return []
        kind, alternatives = part.get("type"), part.get("anyOf") or part.get("oneOf")
        if kind is not None:
            kinds = kind if isinstance(kind, list) else [kind]
            if not all(isinstance(kind, str) and kind in TYPES for kind in kinds):
                return []
            found += kinds
        elif isinstance(alternatives, list):
            parts = [*alternatives[:MOST_PARTS], *parts]
        else:
            parts = [_referred(root, part.get("$ref")), *parts]
    return []


def _referred(root: JsonSchema, reference: Any) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/$defs/"):
        return None
    definitions = root.get("$defs")
    return definitions.get(reference.removeprefix("#/$defs/")) if isinstance(definitions, dict) else None
