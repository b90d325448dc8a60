"""Messages in the state of a graph: their authors and their text."""

from __future__ import annotations

from typing import Any

PERSONS = frozenset({"human", "user", "HumanMessageChunk"})
AGENTS = frozenset({"ai", "assistant", "AIMessageChunk"})


def of_values(values: Any) -> list[dict[str, Any]]:
    """Return the messages of a state, or an empty list if the state is not a conversation."""
    found = values.get("messages") if isinstance(values, dict) else None
    return [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []


def is_persons(message: dict[str, Any]) -> bool:
    return _kind(message) in PERSONS


def is_agents(message: dict[str, Any]) -> bool:
    return _kind(message) in AGENTS


def _kind(message: dict[str, Any]) -> str:
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
