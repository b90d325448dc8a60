"""Serialization of values for protocol v2: messages in short form, everything else as in classic events."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage

from ..serialization import dumps_as, plain

SHORT = frozenset({"human", "ai", "system", "tool", "function", "remove"})  # message types with a short form
KEPT = ("id", "name", "response_metadata", "tool_calls", "invalid_tool_calls", "tool_call_id", "status")


def short_dumps(value: Any) -> bytes:
    """Encode any value as JSON, with messages in short form. Does not raise for any type or content."""
    return dumps_as(value, short)


def short(value: Any) -> Any:
    """Convert one object to the closest type that orjson supports, and a message to its short form."""
    if not isinstance(value, BaseMessage) or value.type not in SHORT:
        return plain(value)
    message = {"type": value.type, "content": value.content}
    for name in KEPT:
        kept = getattr(value, name, None)
        if kept:
            message[name] = kept
    if value.type == "tool":
        message["artifact"] = getattr(value, "artifact", None)
    return message
