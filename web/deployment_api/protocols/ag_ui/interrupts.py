"""Interrupts of graphs in the form of AG-UI, and the answers of clients to them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from web.deployment_api.protocols.ag_ui.messages import json_text

log = logging.getLogger(__name__)

REASON = "langgraph:interrupt"
# Resumes an interrupt that the client abandons. AG-UI's adapters use the same value.
CANCELLED = {"__agui_cancelled__": True}


def shown(interrupt: Mapping[str, Any]) -> dict[str, Any]:
    """Return an open interrupt as AG-UI's `Interrupt`."""
    value = interrupt.get("value")
    details = value if isinstance(value, dict) else {}
    message = value if isinstance(value, str) else _text(details, "message", "question")
    schema = _object(interrupt.get("response_schema")) or _object(details.get("response_schema"))
    optional = {
        "message": message,
        "toolCallId": _text(details, "tool_call_id", "toolCallId"),
        "responseSchema": schema,
        "expiresAt": _text(details, "expires_at"),
    }
    return {
        "id": str(interrupt.get("id")),
        "reason": _text(details, "reason") or REASON,
        **{name: field for name, field in optional.items() if field is not None},
        "metadata": {"langgraph": {"raw": value}},
    }


def custom_event(interrupt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event that hooks of CopilotKit before AG-UI 1.0 read. Its value is a text."""
    return {"type": "CUSTOM", "name": "on_interrupt", "value": json_text(interrupt.get("value"))}


def answers(entries: Iterable[Mapping[str, Any]], waiting: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values that resume, by interrupt. Ignores entries for interrupts that are not open."""
    open_ids = {str(interrupt.get("id")) for interrupt in waiting}
    values: dict[str, Any] = {}
    for entry in entries:
        if entry["interruptId"] in open_ids:
            is_resolved = entry["status"] == "resolved"
            values[entry["interruptId"]] = entry.get("payload") if is_resolved else dict(CANCELLED)
        else:
            log.warning("AG-UI: an answer names interrupt %.100s, which is not open", entry["interruptId"])
    return values


def _text(details: Mapping[str, Any], *names: str) -> str | None:
    return next((details[name] for name in names if isinstance(details.get(name), str)), None)


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None
