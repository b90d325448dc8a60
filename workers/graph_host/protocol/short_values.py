"""Values as protocol v2 shows them: messages in short form, everything else as always."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage

from ..serialization import dumps_as, plain

SHORT = frozenset(
    {"human", "ai", "system", "tool", "function", "remove"}
)  # types of message that have a short form
KEPT = ("id", "name", "response_metadata", "tool_calls", "invalid_tool_calls", "tool_call_id", "status")


def short_dumps(value: Any) -> bytes:
    """`value` as JSON; never raises for what the value is."""
    return dumps_as(value, short)


def short(value: Any) -> Any:
    """The nearest JSON-able shape of one object."""
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
