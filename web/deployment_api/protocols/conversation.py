"""Conversations in the states and inputs of graphs: messages, their authors and texts, and whether an input fits.

A graph's JSON Schema tells whether it takes a conversation. Only the names and types of the top-level fields are
checked. Validation against the rest of a project's schema could take arbitrarily long, and the graph validates its
input itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MESSAGES = "messages"  # field of a state or an input that holds its messages
USERS = frozenset({"human", "user", "HumanMessageChunk"})
AGENTS = frozenset({"ai", "assistant", "AIMessageChunk"})


def messages_of(values: Any) -> list[dict[str, Any]]:
    """Return the messages of a state, or an empty list if the state is not a conversation."""
    messages = values.get(MESSAGES) if isinstance(values, dict) else None
    if not isinstance(messages, list):
        return []
    return [message for message in messages if isinstance(message, dict)]


def is_from_user(message: dict[str, Any]) -> bool:
    return author_of(message) in USERS


def is_from_agent(message: dict[str, Any]) -> bool:
    return author_of(message) in AGENTS


def author_of(message: Mapping[str, Any]) -> str:
    """Return the type of a message, or its role if it is a plain object."""
    return str(message.get("type") or message.get("role"))


def text_of(message: dict[str, Any]) -> str:
    """Return the text of a message, joined if it consists of content blocks."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(filter(None, map(_block_text, blocks)))


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    text = block.get("text") if isinstance(block, dict) else None
    return text if isinstance(text, str) else ""


MEDIA = ("image", "audio", "video", "file")  # types of content blocks that hold a file


@dataclass(frozen=True, slots=True)
class Media:
    """A file in a message: its bytes as base64, or its address."""

    kind: str  # of MEDIA
    mime_type: str  # empty: unknown
    name: str  # empty: unknown
    base64: str | None = None
    url: str | None = None


def media_of(block: Any) -> Media | None:
    """Return the file of a content block, or None if the block holds no bytes and no address.

    Reads LangChain's standard blocks of both versions, and OpenAI's `image_url`.
    """
    if not isinstance(block, dict):
        return None
    kind, source = block.get("type"), block
    if kind == "image_url":
        kind, address = "image", block.get("image_url")
        source = {"url": address.get("url") if isinstance(address, dict) else address}
    if kind not in MEDIA:
        return None
    mime_type, name = source.get("mime_type"), source.get("filename") or _extra(source, "filename")
    data, url = source.get("base64") or source.get("data"), source.get("url")
    if isinstance(url, str) and (embedded := DATA_URL.match(url)):
        mime_type, data = embedded["mime_type"] or mime_type, url[embedded.end() :]
    if isinstance(data, str):
        url = None
    elif isinstance(url, str):
        data = None
    else:
        return None
    return Media(kind, _text(mime_type), _text(name), data, url)


DATA_URL = re.compile(r"data:(?P<mime_type>[^;,]*)(?:;[^;,]*)*;base64,")


def _extra(block: Mapping[str, Any], name: str) -> Any:
    """Return an entry of a block's `extras` or, in blocks of the older version, `metadata`."""
    for key in ("extras", "metadata"):
        extras = block.get(key)
        if isinstance(extras, dict) and name in extras:
            return extras[name]
    return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


JsonSchema = Mapping[str, Any]

MAX_PARTS = 100  # references and alternatives followed per field
JSON_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def input_fields(schema: JsonSchema | None) -> JsonSchema:
    """Return the schemas of the input's fields, by name."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def takes_messages(schema: JsonSchema | None) -> bool:
    """Return whether the graph takes a conversation: a list of messages."""
    if MESSAGES not in input_fields(schema):
        return False
    types = _allowed_types(schema or {}, input_fields(schema)[MESSAGES])
    return not types or "array" in types


def user_message(text: str, id: str | None = None) -> dict[str, Any]:
    """Return a user's message in the form that graphs take."""
    return {"role": "user", "content": text} | ({} if id is None else {"id": id})


def misfits(schema: JsonSchema, values: Mapping[str, Any]) -> list[str]:
    """Return the problems of an input: missing fields, and fields of a wrong type."""
    required = schema.get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    missing = [f"{name}: this field is required" for name in names if name not in values]
    wrong = [
        f"{name}: must be {' or '.join(types)}"
        for name, field in input_fields(schema).items()
        if name in values and (types := _allowed_types(schema, field)) and not has_type(values[name], types)
    ]
    return missing + wrong


def has_type(value: Any, types: Sequence[str]) -> bool:
    """Return whether a value has one of these types of JSON Schema."""
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, float) and value.is_integer() and "integer" in types:
        return True
    return any(isinstance(value, JSON_TYPES[type]) for type in types)


def _allowed_types(root: JsonSchema, schema: Any) -> list[str]:
    """Return the types that a schema allows.

    An empty list means any type, an unclear schema, or one with more than MAX_PARTS parts.
    """
    types: list[str] = []
    parts = [schema]
    for _ in range(MAX_PARTS):
        if not parts:
            return list(dict.fromkeys(types))
        part = parts.pop(0)
        if not isinstance(part, dict):
            return []
        kind, alternatives = part.get("type"), part.get("anyOf") or part.get("oneOf")
        if kind is not None:
            kinds = kind if isinstance(kind, list) else [kind]
            if not all(isinstance(kind, str) and kind in JSON_TYPES for kind in kinds):
                return []
            types += kinds
        elif isinstance(alternatives, list):
            parts = [*alternatives[:MAX_PARTS], *parts]
        else:
            parts = [_definition(root, part.get("$ref")), *parts]
    return []


def _definition(root: JsonSchema, reference: Any) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/$defs/"):
        return None
    definitions = root.get("$defs")
    return definitions.get(reference.removeprefix("#/$defs/")) if isinstance(definitions, dict) else None
