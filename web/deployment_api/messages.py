"""Messages as graphs keep them in their state: whose they are, and their text."""

from __future__ import annotations

from typing import Any

PERSONS = frozenset({"human", "user", "HumanMessageChunk"})
AGENTS = frozenset({"ai", "assistant", "AIMessageChunk"})


def of_values(values: Any) -> list[dict[str, Any]]:
    """The messages of a state; none where it is no conversation."""
    found = values.get("messages") if isinstance(values, dict) else None
    return [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []


def is_persons(message: dict[str, Any]) -> bool:
    return _kind(message) in PERSONS


def is_agents(message: dict[str, Any]) -> bool:
    return _kind(message) in AGENTS


def _kind(message: dict[str, Any]) -> str:
    return str(message.get("type") or message.get("role"))


def text_of(message: dict[str, Any]) -> str:
    """Its text, put together where it comes in blocks."""
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
