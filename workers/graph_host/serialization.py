"""Whatever a graph produces, as JSON on one line.

The fast way is orjson with a default for the types agents use; an object that defeats it (a huge int, a
lone surrogate, a cycle, a key that is no string) takes the slow way, which always ends with something.
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

# How deep the slow way follows nested values; what is deeper is shown as text.
MAX_DEPTH = 100

_message_fields: dict[type, tuple[str, ...]] = {}

Shape = Callable[[Any], Any]  # one object that orjson does not know → the nearest it does


def dumps(value: Any) -> bytes:
    """`value` as JSON; never raises for what the value is."""
    try:
        return orjson.dumps(value, default=plain)
    except (TypeError, RecursionError):
        return orjson.dumps(_simplify(value, 0, plain))


def dumps_as(value: Any, shape: Shape) -> bytes:
    """`dumps` with a shape of one's own for objects."""
    try:
        return orjson.dumps(value, default=shape)
    except (TypeError, RecursionError):
        return orjson.dumps(_simplify(value, 0, shape))


def loads(data: bytes) -> Any:
    """The value of a JSON document."""
    return orjson.loads(data)


def without_nul(data: bytes) -> bytes:
    """The JSON document without U+0000, which PostgreSQL's jsonb cannot hold."""
    if b"\\u0000" not in data:
        return data
    return orjson.dumps(_strip_nul(orjson.loads(data)))


def plain(value: Any) -> Any:
    """The nearest JSON-able shape of one object orjson does not know."""
    if isinstance(value, BaseMessage):
        return message_dict(value)
    if isinstance(value, BaseModel):
        return _model_dict(value)
    if isinstance(value, tuple) and (as_dict := getattr(value, "_asdict", None)):
        return as_dict()
    if isinstance(value, (AbstractSet, deque, tuple)):
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
    """A message with the keys of its type: `model_dump()` without its cost."""
    cls = type(message)
    fields = _message_fields.get(cls)
    if fields is None:
        fields = tuple(name for name, field in cls.model_fields.items() if not field.exclude)
        _message_fields[cls] = fields
    out = {name: getattr(message, name) for name in fields}
    if message.model_extra:
        out.update(message.model_extra)
    return out


def text_of(value: Any, how: Any = str) -> str:
    """`str()` or `repr()` of an object whose own code may fail."""
    try:
        text = how(value)
        return text if isinstance(text, str) else type(value).__name__
    except Exception:  # the object's own code, of any kind
        return f"<{type(value).__name__}>"


def error_record(error: BaseException) -> dict[str, str]:
    """An exception's class and text, without secrets of the deployment."""
    return {"error": masked(type(error).__name__), "message": error_text(error)}


def error_text(error: Any) -> str:
    """The text of an exception, or of what a library shows of one, without secrets of the deployment."""
    if isinstance(error, Mapping):
        error = error.get("message", "")
    return masked(text_of(error))


def with_masked_error(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A task's record whose error is a text; exceptions are masked as they are encoded."""
    error = record.get("error")
    return {**record, "error": masked(error)} if isinstance(error, str) else record


def _model_dict(value: BaseModel) -> Any:
    """A pydantic model; its fields raw when its own serializers fail."""
    try:
        return value.model_dump(warnings=False, serialize_as_any=True)
    except Exception:  # a user's serializer, of any kind
        return dict(value.__dict__)


def _other(value: Any) -> Any:
    for name in ("to_dict", "dict"):
        method = getattr(value, name, None)
        if callable(method):
            try:
                shape = method()
            except Exception:  # the object's own code, of any kind
                continue
            if isinstance(shape, dict):
                return shape
    return text_of(value, repr)


def _simplify(value: Any, depth: int, shape: Shape) -> Any:
    """Rebuild a value from what orjson surely takes."""
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
