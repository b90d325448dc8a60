"""Inputs and outputs of model and tool calls in traces, for a deployment that asks for them with a variable.

The shapes are those of OpenTelemetry's conventions for messages. Secret values are masked. A long text is cut, and the
oldest messages of a long conversation are left out. `cut` marks a record that lacks a part.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from .masking import masked
from .serialization import dumps, loads

VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
ON = ("true", "span_only", "span_and_event")
OFF = ("false", "no_content", "event_only", "")
MAX_TEXT = 4_096  # characters of one text
MAX_ATTRIBUTE = 16_384  # bytes of JSON
MAX_ATTEMPT = 4 << 20  # bytes of all content of an attempt
# Characters of a text in which secrets are searched. Masks are shorter than secrets, so more than MAX_TEXT.
SEARCHED = 16_384
ROLES = {"human": "user", "ai": "assistant"}  # other types are roles of the same name

log = logging.getLogger("runyard")


@cache
def is_requested() -> bool:
    """Whether the variables of the deployment ask for content in traces."""
    value = os.environ.get(VARIABLE, "").strip().lower()
    if value not in (*ON, *OFF):
        log.warning("%s must be one of %s: traces get no content", VARIABLE, ", ".join((*ON, *OFF[:-1])))
    return value in ON


class Content:
    """Adds inputs and outputs to the records of a run's calls."""

    def __init__(self) -> None:
        self._left = MAX_ATTEMPT

    def add_input(self, record: dict[str, Any], messages: Iterable[BaseMessage]) -> None:
        """Add a conversation. Its first messages are the instructions if they are system messages."""
        listed = list(messages)
        count = next((n for n, each in enumerate(listed) if each.type != "system"), len(listed))
        if count:
            parts = (dumps(part) for message in listed[:count] for part in _parts(record, message))
            self._add(record, "system", _listed(_fitting(record, parts)))
        self._add_messages(record, "input", listed[count:], {})

    def add_output(self, record: dict[str, Any], messages: Sequence[BaseMessage]) -> None:
        reason = next(iter(record.get("finish") or ()), "stop")
        self._add_messages(record, "output", messages, {"finish_reason": reason})

    def add(self, record: dict[str, Any], name: str, value: Any) -> None:
        """Add a tool's arguments or its result."""
        shown = _shown(record, value)
        self._add(record, name, shown if isinstance(shown, str) else dumps(shown).decode())

    def _add_messages(
        self, record: dict[str, Any], name: str, messages: Sequence[BaseMessage], fields: Mapping[str, Any]
    ) -> None:
        documents = (_document(record, each, fields) for each in reversed(messages))
        self._add(record, name, _listed(reversed(_fitting(record, documents))))

    def _add(self, record: dict[str, Any], name: str, text: str) -> None:
        if len(text) > self._left:
            record["cut"] = True
            return
        self._left -= len(text)
        record[name] = text


def _document(record: dict[str, Any], message: BaseMessage, fields: Mapping[str, Any]) -> bytes:
    parts = _fitting(record, (dumps(part) for part in _parts(record, message)), MAX_ATTRIBUTE // 2)
    head = dumps({"role": ROLES.get(message.type, message.type), **fields})
    return head[:-1] + b',"parts":' + _listed(parts).encode() + b"}"


def _fitting(record: dict[str, Any], documents: Iterable[bytes], most: int = MAX_ATTRIBUTE) -> list[bytes]:
    """Return the first documents that fit into an attribute."""
    fitting: list[bytes] = []
    for document in documents:
        most -= len(document) + 1
        if most < 0:
            record["cut"] = True
            break
        fitting.append(document)
    return fitting


def _listed(documents: Iterable[bytes]) -> str:
    return (b"[" + b",".join(documents) + b"]").decode()


def _parts(record: dict[str, Any], message: BaseMessage) -> Iterator[dict[str, Any]]:
    """Yield the parts of a message. Data of images and files is left out."""
    if isinstance(message, ToolMessage):
        response = _shown(record, message.content)
        yield {"type": "tool_call_response", "id": message.tool_call_id, "response": response}
        return
    blocks = [message.content] if isinstance(message.content, str) else message.content
    for block in blocks:
        text = block if isinstance(block, str) else block.get("text")
        if isinstance(text, str):
            if text:
                yield {"type": "text", "content": _shown(record, text)}
        elif isinstance(block, dict) and block.get("type") != "tool_use":
            thought = block.get("reasoning") or block.get("thinking")
            kind = "reasoning" if isinstance(thought, str) else str(block.get("type"))[:100]
            yield {"type": kind, **({"content": _shown(record, thought)} if isinstance(thought, str) else {})}
    for call in message.tool_calls if isinstance(message, AIMessage) else ():
        arguments = _shown(record, call["args"])
        yield {"type": "tool_call", "id": call["id"], "name": masked(call["name"]), "arguments": arguments}


def _shown(record: dict[str, Any], value: Any) -> Any:
    """Return a value as a span shows it: unchanged if it is short and has no secrets, otherwise as text."""
    text = value if isinstance(value, str) else dumps(value).decode()
    shown = masked(text[:SEARCHED])
    if len(text) > SEARCHED or len(shown) > MAX_TEXT:
        record["cut"] = True
        return shown[:MAX_TEXT]
    return shown if isinstance(value, str) or shown != text else loads(text.encode())
