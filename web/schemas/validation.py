"""Validation of requests: `load(Schema)`, `load_many(Schema)`, `load_query(Schema)`, `uuid_path()`.

Invalid input raises `SchemaViolation`, which carries every violation with its path and a machine-readable type.
web/http/errors.py formats it for the interface that was called. The fields of schemas are in web/schemas/fields.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from uuid import UUID

import orjson
from flask import request
from marshmallow import ValidationError, missing
from marshmallow.fields import Field
from werkzeug.exceptions import RequestEntityTooLarge, RequestTimeout

from shared.errors import Invalid
from shared.infra.system import let_others_run
from web.schemas.fields import NO_ITEM, QueryList, Schema

MAX_DEPTH = 128
MAX_ITEMS = 100_000
LARGE_BYTES = 100_000  # a shorter body cannot have too many values
PIECE_BYTES = 256 * 1024
BAD_JSON = "Invalid JSON in request body"

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Violation:
    loc: Loc
    message: str
    kind: str

    @property
    def sentence(self) -> str:
        """Field path and message as one string, the form of the deployment API."""
        path = ".".join(str(part) for part in self.loc[1:])
        return f"{path}: {self.message}" if path else self.message


class SchemaViolation(Invalid):
    """A body or query breaks its schema, perhaps in several places."""

    def __init__(self, violations: Collection[Violation]) -> None:
        self.violations = tuple(violations)
        first = self.violations[0]
        message = "; ".join(violation.sentence for violation in self.violations)
        super().__init__(message, loc=first.loc, kind=first.kind)


def load(schema: type[Schema]) -> dict[str, Any]:
    """Return the checked JSON body. A missing body counts as `{}` where the schema requires no field."""
    raw = raw_body()
    body = parse_body(raw) if raw.strip() or schema.requires_a_field() else {}
    if not isinstance(body, dict):
        raise SchemaViolation([Violation(("body",), "must be an object", "dict_type")])
    return checked(schema, body, "body")


def load_many(schema: type[Schema], *, max_items: int) -> list[dict[str, Any]]:
    """Return the checked items of a JSON array. One invalid item refuses the whole array."""
    body = parse_body(raw_body())
    if not isinstance(body, list):
        raise SchemaViolation([Violation(("body",), "must be an array", "list_type")])
    if not body:
        raise SchemaViolation([Violation(("body",), NO_ITEM, NO_ITEM.kind)])
    if len(body) > max_items:
        raise SchemaViolation([Violation(("body",), f"must have at most {max_items} items", "too_long")])
    return [checked(schema, item, "body", at) for at, item in enumerate(body)]


def raw_body() -> bytes:
    """Return the bytes of the request's body. Raises RequestTimeout, RequestEntityTooLarge."""
    try:
        raw = request.get_data(cache="Idempotency-Key" in request.headers)  # read again for its digest
    except TimeoutError as error:
        raise RequestTimeout() from error
    if request.content_length is None and len(raw) == request.max_content_length:
        raise RequestEntityTooLarge  # werkzeug ends a body in chunks at the limit, without an error
    return raw


def load_query(schema: type[Schema], *, refuse_repeated: bool = False) -> dict[str, Any]:
    """Return the checked query string. The last value of a repeated parameter counts, unless `refuse_repeated`."""
    sent: dict[str, Any] = {}
    for key, _, field, _ in _load_rules(schema):
        values = request.args.getlist(key)
        if refuse_repeated and len(values) > 1:
            raise SchemaViolation([Violation(("query", key), "must not be repeated", "value_error")])
        if values:
            sent[key] = values if isinstance(field, QueryList) else values[-1]
    return checked(schema, sent, "query")


def parse_body(raw: bytes) -> Any:
    """Parse the JSON of a request body. Raises Invalid if it is not JSON, nested too deep or has too many values.

    Other requests are served between the steps for a large body. No step takes long by itself.
    """
    is_large = len(raw) >= LARGE_BYTES
    if is_large:
        _refuse_too_many(raw)
        let_others_run()
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        loc: Loc = ("body", error.pos) if raw.strip() else ("body",)
        kind = "json_invalid" if raw.strip() else "missing"
        raise Invalid(BAD_JSON, loc=loc, kind=kind) from error
    if is_large:
        let_others_run()
    _check_size(raw, body)
    if is_large:
        let_others_run()
    return body


def uuid_path(value: str, name: str, *, message: str | None = None) -> UUID:
    """Return a UUID from the path. `name` is the parameter (`thread_id`). Only the 36-character form is accepted."""
    uuid = _parse_uuid(value)
    if uuid is not None:
        return uuid
    subject = name.removesuffix("_id")
    text = message or f"Invalid {subject} ID: must be a UUID"
    raise Invalid(text, loc=("path", name), kind="uuid_parsing")


def whole_number(text: str) -> int | None:
    """Return the number that a text of at most 15 decimal digits means, or None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None


def uuid_header(name: str) -> UUID | None:
    """Return a UUID from a header of the current request, or None without the header. Raises Invalid.

    Only the 36-character form is accepted.
    """
    value = request.headers.get(name)
    if value is None:
        return None
    uuid = _parse_uuid(value)
    if uuid is None:
        raise Invalid(f"{name}: must be a UUID", loc=("header", name), kind="uuid_parsing")
    return uuid


def _parse_uuid(value: str) -> UUID | None:
    if re.fullmatch(r"[0-9a-fA-F-]{36}", value):
        try:
            return UUID(value)
        except ValueError:
            pass
    return None


@lru_cache(None)
def _instance(schema: type[Schema]) -> Schema:
    """Return the cached instance of a schema class, since creating an instance copies every field."""
    return schema()


@lru_cache(None)
def _load_rules(schema: type[Schema]) -> list[tuple[str, str, Field, bool]]:
    """Return key, name and field of everything the schema loads, and whether a missing value has an effect."""
    return [
        (field.data_key or name, name, field, field.required or field.load_default is not missing)
        for name, field in _instance(schema).load_fields.items()
    ]


def _loader(schema: type[Schema], sent: Mapping[str, Any]) -> Schema:
    """Return an instance without the fields that are not sent and may be missing.

    marshmallow visits all fields of an instance, and requests send few: 3 of the 25 of a run.
    """
    loader = copy(_instance(schema))
    if isinstance(sent, Mapping):  # marshmallow refuses anything else
        loader.load_fields = {
            name: field for key, name, field, is_needed in _load_rules(schema) if is_needed or key in sent
        }
    return loader


def checked(schema: type[Schema], sent: Mapping[str, Any], *loc: str | int) -> dict[str, Any]:
    """Return the values that the schema loads. Raises SchemaViolation with paths that begin with `loc`."""
    try:
        return cast("dict[str, Any]", _loader(schema, sent).load(sent))
    except ValidationError as error:
        raise SchemaViolation(list(_flatten(error.normalized_messages(), loc))) from error


def _flatten(messages: Any, loc: Loc) -> Iterator[Violation]:
    """Yield marshmallow's nested messages one by one, each with its path."""
    if isinstance(messages, Mapping):
        for key, inner in messages.items():
            yield from _flatten(inner, loc if key == "_schema" else (*loc, key))
    elif isinstance(messages, list):
        for message in messages:
            yield from _flatten(message, loc)
    else:
        yield Violation(loc, str(messages), getattr(messages, "kind", "value_error"))


def _refuse_too_many(raw: bytes) -> None:
    """Refuse a body that certainly has too many values, before it is parsed.

    Parsing a million values would stall all other requests. Outside of strings, each comma and each opening bracket
    stands for a value. A body that passes has at most twice the allowed number, few enough to parse and count exactly.
    """
    if raw.count(b",") < MAX_ITEMS and raw.count(b"[") + raw.count(b"{") <= MAX_ITEMS:
        return
    commas = opened = 0
    for piece in _outside_strings(raw):
        commas += piece.count(b",")
        opened += piece.count(b"[") + piece.count(b"{")
        if commas >= MAX_ITEMS or opened > MAX_ITEMS:
            raise _too_many()
        let_others_run()


def _outside_strings(raw: bytes) -> Iterator[bytes]:
    """Yield the parts of a JSON text that are outside of its strings, piece by piece."""
    at, is_inside = 0, False
    while at < len(raw):
        piece = raw[at : at + PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = raw[at : at + len(piece) + 1]  # do not split an escape
        at += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[is_inside::2])
        is_inside ^= len(parts) % 2 == 0


def _too_many() -> Invalid:
    return Invalid(f"the body has more than {MAX_ITEMS} values", kind="too_long")


def _check_size(raw: bytes, body: Any) -> None:
    """Refuse a body that is nested too deep or has too many values. Counts only if the bytes make that possible."""
    opened = raw.count(b"[") + raw.count(b"{")
    if opened <= MAX_DEPTH and raw.count(b",") + opened < MAX_ITEMS:
        return
    level = [body]
    items = 0
    for _ in range(MAX_DEPTH + 1):
        items += len(level)
        if items > MAX_ITEMS:
            raise _too_many()
        level = [inner for value in level for inner in _children(value)]
        if not level:
            return
    raise Invalid(f"the body is nested deeper than {MAX_DEPTH} levels", kind="recursion_loop")


def _children(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
