"""Serialization of any value that a graph produces to JSON on one line.

The fast path is orjson with a default function for the types that agents use. A value that orjson refuses (a huge int,
a lone surrogate, a cycle, a key that is not a string) takes the slow path, which always returns a result.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any

import orjson
from langchain_core.messages import BaseMessage
from langgraph.types import Send
from pydantic import BaseModel

from .masking import masked

# Depth to which the slow path follows nested values. Deeper values become text.
MAX_DEPTH = 100
# Levels that the fast path leaves of the 254 that orjson writes, for documents of the service that enclose a value.
ROOM = 16
# Types of messages with a short form in protocol v2, and its fields.
SHORT_TYPES = frozenset({"human", "ai", "system", "tool", "function", "remove"})
SHORT_FIELDS = (
    "id",
    "name",
    "response_metadata",
    "tool_calls",
    "invalid_tool_calls",
    "tool_call_id",
    "status",
)

_message_fields: dict[type, tuple[str, ...]] = {}

Shape = Callable[[Any], Any]  # converts an object that orjson does not support to a type that it supports


def dumps(value: Any) -> bytes:
    """Encode any value as JSON. Does not raise for any type or content of the value."""
    try:
        return _fast(value, plain)
    except (TypeError, RecursionError):
        return orjson.dumps(_simplify(value, 0, plain))


def short_dumps(value: Any) -> bytes:
    """Encode any value as JSON for protocol v2: like `dumps`, with messages in short form."""
    try:
        return _fast(value, _short)
    except (TypeError, RecursionError):
        return orjson.dumps(_simplify(value, 0, _short))


def _fast(value: Any, shape: Shape) -> bytes:
    """Encode a value. Raises TypeError if it is nested so deep that no document could enclose it."""
    for _ in range(ROOM):
        value = [value]
    return orjson.dumps(value, default=shape)[ROOM:-ROOM]


def loads(data: bytes) -> Any:
    """Decode a JSON document."""
    return orjson.loads(data)


def without_nul(data: bytes) -> bytes:
    """Remove U+0000 from a JSON document, because PostgreSQL's jsonb cannot store it."""
    if b"\\u0000" not in data:
        return data
    return orjson.dumps(_strip_nul(orjson.loads(data)))


def plain(value: Any) -> Any:
    """Convert an object that orjson does not support to the closest type that it supports."""
    if isinstance(value, BaseMessage):
        return message_dict(value)
    if isinstance(value, BaseModel):
        return _model_dict(value)
    if isinstance(value, tuple) and (as_dict := getattr(value, "_asdict", None)):
        return as_dict()
    if isinstance(value, AbstractSet):
        return sorted(value, key=dumps)  # the order of a set differs between processes
    if isinstance(value, (deque, tuple)):
        return list(value)
    if isinstance(value, BaseException):
        return error_record(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, Send):
        return {"node": value.node, "args": value.arg}
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (Iterator, type)):
        return text_of(value, repr)
    if isinstance(value, PurePath):
        return str(value)
    return _other(value)


def message_dict(message: BaseMessage) -> dict[str, Any]:
    """Return a message's fields as a dict. Equivalent to `model_dump()`, but faster."""
    cls = type(message)
    fields = _message_fields.get(cls)
    if fields is None:
        fields = tuple(name for name, field in cls.model_fields.items() if not field.exclude)
        _message_fields[cls] = fields
    out = {name: getattr(message, name) for name in fields}
    if message.model_extra:
        out.update(message.model_extra)
    return out


def _short(value: Any) -> Any:
    """Convert one object to the closest type that orjson supports, and a message to its short form."""
    if not isinstance(value, BaseMessage) or value.type not in SHORT_TYPES:
        return plain(value)
    message = {"type": value.type, "content": value.content}
    for name in SHORT_FIELDS:
        field = getattr(value, name, None)
        if field:
            message[name] = field
    if value.type == "tool":
        message["artifact"] = getattr(value, "artifact", None)
    return message


def text_of(value: Any, how: Any = str) -> str:
    """Return `str()` or `repr()` of an object, or its type's name if its own code fails."""
    try:
        text = how(value)
        return text if isinstance(text, str) else type(value).__name__
    except Exception:  # any error of the object's own code
        return f"<{type(value).__name__}>"


def error_record(error: BaseException) -> dict[str, str]:
    """Return an exception's class and text, with secrets masked."""
    return {"error": masked(type(error).__name__), "message": error_text(error)}


def error_text(error: Any) -> str:
    """Return the text of an exception, or of a library's record of one, with secrets masked."""
    if isinstance(error, Mapping):
        error = error.get("message", "")
    return masked(text_of(error))


def with_masked_error(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Mask a task record's error if it is text. An exception object is masked when it is encoded."""
    error = record.get("error")
    return {**record, "error": masked(error)} if isinstance(error, str) else record


def _model_dict(value: BaseModel) -> Any:
    """Dump a pydantic model. Returns its raw fields if its own serializers fail."""
    try:
        return value.model_dump(warnings=False, serialize_as_any=True)
    except Exception:  # any error of a user's serializer
        return dict(value.__dict__)


def _other(value: Any) -> Any:
    for name in ("to_dict", "dict"):
        method = getattr(value, name, None)
        if callable(method):
            try:
                shape = method()
            except Exception:  # any error of the object's own code
                continue
            if isinstance(shape, dict):
                return shape
    return text_of(value, repr)


def _simplify(value: Any, depth: int, shape: Shape) -> Any:
    """Rebuild a value from types that orjson always accepts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int):
        number = int(value)
        return number if -(2**63) <= number < 2**64 else str(number)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth >= MAX_DEPTH:
        return text_of(value, repr).encode("utf-8", "replace").decode()[:1000]
    if isinstance(value, Enum):
        return _simplify(value.value, depth + 1, shape)
    if isinstance(value, dict):
        return {_key(key): _simplify(item, depth + 1, shape) for key, item in value.items()}
    if isinstance(value, list):
        return [_simplify(item, depth + 1, shape) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: _simplify(getattr(value, name, None), depth + 1, shape) for name in names}
    try:
        return orjson.loads(orjson.dumps(value))
    except TypeError:
        return _simplify(shape(value), depth + 1, shape)


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, bool) or key is None:
        return {True: "true", False: "false", None: "null"}[key]
    return (key if isinstance(key, str) else text_of(key)).encode("utf-8", "replace").decode()


def _strip_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\u0000", "")
    if isinstance(value, list):
        return [_strip_nul(item) for item in value]
    if isinstance(value, dict):
        return {key.replace("\u0000", ""): _strip_nul(item) for key, item in value.items()}
    return value
