"""Parsing the messages that nodes write: objects, dicts and tuples. Only objects are streamed as messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ASSISTANT = frozenset({"ai", "AIMessageChunk", "assistant"})
TOOL = frozenset({"tool", "ToolMessageChunk"})
HUMAN = frozenset({"human", "user"})
ROLES = ASSISTANT | TOOL | HUMAN | {"system", "developer", "function"}


@dataclass(frozen=True)
class ShownMessage:
    """A message with its role and text."""

    role: str
    text: str
    id: str | None = None
    name: str | None = None
    is_streamed: bool = False  # a message object, which LangGraph usually also streams as a message event


def message_of(data: Any) -> ShownMessage | None:
    """Parse a message in any of its forms. Returns None if the data is not a message."""
    if isinstance(data, str):
        return ShownMessage("human", data)
    if _is_pair(data):
        return ShownMessage(data[0], "".join(texts(data[1])))
    if not isinstance(data, dict) or "content" not in data:
        return None
    role = str(data.get("role") or data.get("type"))
    return ShownMessage(
        role=role,
        text="".join(texts(data["content"])),
        id=data.get("id"),
        name=data.get("name"),
        is_streamed="role" not in data and "response_metadata" in data,
    )


def messages_of(written: Any) -> Iterator[ShownMessage]:
    """Yield the messages in a value that a node wrote to `messages`: one message or a list."""
    for data in written if isinstance(written, list) and not _is_pair(written) else [written]:
        found = message_of(data)
        if found is not None:
            yield found


def _is_pair(data: Any) -> bool:
    """Return whether a list is a `(role, content)` tuple. JSON has no tuples, so it arrives as a list."""
    return isinstance(data, list) and len(data) == 2 and isinstance(data[0], str) and data[0] in ROLES


def texts(content: Any) -> Iterator[str]:
    """Yield the texts of a message's content, which is a string or a list of blocks."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for block in content:
            if isinstance(block, str):
                yield block
            elif isinstance(block, dict) and isinstance(block.get("text"), str):
                yield block["text"]
