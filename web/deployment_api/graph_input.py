"""What a graph takes, by the JSON Schema of its input: whether it is a conversation, and what fits.

Only names and types at the top are looked at: the rest of a project's schema may cost whatever its author wants, and
the graph checks its input itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonSchema = Mapping[str, Any]

MESSAGES = "messages"
MOST_PARTS = 100  # references and alternatives that are followed of one field
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
    """The schemas of the input's fields by their names."""
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def takes_messages(schema: JsonSchema | None) -> bool:
    """Whether it is a conversation: a list of messages."""
    if MESSAGES not in fields(schema):
        return False
    types = _types(schema or {}, fields(schema)[MESSAGES])
    return not types or "array" in types


def user_message(text: str, id: str | None = None) -> dict[str, Any]:
    """A person's message, as a graph's input has it."""
    return {"role": "user", "content": text} | ({} if id is None else {"id": id})


def misfits(schema: JsonSchema, given: Mapping[str, Any]) -> list[str]:
    """What is wrong with an input: fields that are missing, and those of another type."""
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
    """The types that a schema allows; none where it allows any, does not say, or takes too long to tell."""
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
