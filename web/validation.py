"""From a request to checked values: `load(Schema)`, `load_query(Schema)`, `uuid_path()`, and the fields.

Types are strict ("1" is no integer, true is no integer), unknown fields are ignored, null is refused unless
the field says `allow_none=True`. What is refused raises `SchemaViolation`, which carries every violation
with its place and a machine word; web/errors.py writes it in the form of the interface that was asked.

Why the words ride on the messages: marshmallow's messages are plain text, and the control plane owes its
callers a `type`. `Rule` is a str that remembers it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, cast
from uuid import UUID

import orjson
from flask import request
from marshmallow import EXCLUDE, ValidationError, fields
from marshmallow import Schema as MarshmallowSchema
from werkzeug.exceptions import RequestTimeout

from shared.errors import Invalid

MAX_DEPTH = 128
MAX_ITEMS = 100_000
BAD_JSON = "Invalid JSON in request body"

Loc = tuple[str | int, ...]


class Rule(str):
    """A message that knows the machine word of the rule it speaks of."""

    kind: str

    def __new__(cls, text: str, kind: str = "value_error") -> Rule:
        rule = super().__new__(cls, text)
        rule.kind = kind
        return rule

    def format(self, *args: object, **kwargs: object) -> Rule:
        return Rule(super().format(*args, **kwargs), self.kind)


@dataclass(frozen=True)
class Violation:
    loc: Loc
    message: str
    kind: str

    @property
    def sentence(self) -> str:
        """Field path and rule in one string, as the deployment API wants it."""
        path = ".".join(str(part) for part in self.loc[1:])
        return f"{path}: {self.message}" if path else self.message


class SchemaViolation(Invalid):
    """A body or query breaks its schema, perhaps in several places."""

    def __init__(self, violations: Collection[Violation]) -> None:
        self.violations = tuple(violations)
        first = self.violations[0]
        message = "; ".join(violation.sentence for violation in self.violations)
        super().__init__(message, loc=first.loc, kind=first.kind)


ErrorMessages = dict[str, str | list[Any] | dict[Any, Any]]

REQUIRED: ErrorMessages = {
    "required": Rule("this field is required", "missing"),
    "null": Rule("must not be null", "value_error"),
}


class Schema(MarshmallowSchema):
    """The base of every request schema: unknown fields are ignored."""

    class Meta:
        unknown = EXCLUDE

    error_messages = {"type": Rule("must be an object", "dict_type")}  # noqa: RUF012  as the base has it


class Field(fields.Field):
    """A field whose refusals carry machine words; null has the word of its type."""

    default_error_messages: ErrorMessages = REQUIRED
    type_rule: ClassVar[Rule] = Rule("must be a valid value", "value_error")

    def _validate_missing(self, value: Any) -> None:
        if value is None and not self.allow_none:
            raise ValidationError([self.type_rule])
        super()._validate_missing(value)


class StrictInteger(Field):
    """An integer; `minimum` and `maximum` are inclusive."""

    type_rule = Rule("must be an integer", "int_type")

    def __init__(self, *, minimum: int | None = None, maximum: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.minimum = minimum
        self.maximum = maximum

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        if type(value) is not int:
            raise ValidationError([self.type_rule])
        return self._within(value)

    def _within(self, value: Any) -> Any:
        if self.minimum is not None and value < self.minimum:
            rule = f"must be greater than or equal to {self.minimum}"
            raise ValidationError([Rule(rule, "greater_than_equal")])
        if self.maximum is not None and value > self.maximum:
            raise ValidationError([Rule(f"must be less than or equal to {self.maximum}", "less_than_equal")])
        return value


class StrictNumber(StrictInteger):
    """An integer or a float."""

    type_rule = Rule("must be a number", "float_type")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        if type(value) not in (int, float):
            raise ValidationError([self.type_rule])
        return self._within(value)


class StrictBoolean(Field):
    type_rule = Rule("must be true or false", "bool_type")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool:
        if not isinstance(value, bool):
            raise ValidationError([self.type_rule])
        return value


class StrictString(Field):
    """Text the database can keep; `pattern` must match the whole of it."""

    type_rule = Rule("must be a string", "string_type")

    def __init__(
        self,
        *,
        min_length: int = 0,
        max_length: int | None = None,
        pattern: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.min_length = min_length
        self.max_length = max_length
        self.pattern = re.compile(pattern) if pattern else None

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if not isinstance(value, str):
            raise ValidationError([self.type_rule])
        if "\x00" in value:
            raise ValidationError([Rule("must not contain the character U+0000", "value_error")])
        if len(value) < self.min_length:
            rule = f"must have at least {self.min_length} characters"
            raise ValidationError([Rule(rule, "string_too_short")])
        if self.max_length is not None and len(value) > self.max_length:
            rule = f"must have at most {self.max_length} characters"
            raise ValidationError([Rule(rule, "string_too_long")])
        if self.pattern and not self.pattern.fullmatch(value):
            rule = f"must match {self.pattern.pattern}"
            raise ValidationError([Rule(rule, "string_pattern_mismatch")])
        return value


class OneOf(StrictString):
    """One of a fixed list of words."""

    def __init__(self, *choices: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.choices = choices
        self.type_rule = Rule(f"must be one of {', '.join(map(repr, choices))}", "literal_error")  # type: ignore[misc]

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if not isinstance(value, str) or value not in self.choices:
            raise ValidationError([self.type_rule])
        return value


class UuidField(Field):
    """A UUID in any text form the standard library's parser takes."""

    type_rule = Rule("must be a UUID", "uuid_parsing")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> UUID:
        if not isinstance(value, str):
            raise ValidationError([self.type_rule])
        try:
            return UUID(value)
        except ValueError as error:
            raise ValidationError([self.type_rule]) from error


class TimeField(Field):
    """A time in ISO 8601; one without a zone is UTC."""

    type_rule = Rule("must be a time in ISO 8601", "datetime_parsing")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> datetime:
        if not isinstance(value, str):
            raise ValidationError([self.type_rule])
        try:
            at = datetime.fromisoformat(value.strip())
            return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        except (ValueError, OverflowError) as error:
            raise ValidationError([self.type_rule]) from error


class AnyJson(Field):
    """Any JSON value, as it was sent; null included."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_none": True, **kwargs})


class JsonObject(Field):
    """Any JSON object, kept as sent.

    `max_bytes` bounds its compact text. `searchable=True` is for what goes to a jsonb column, which cannot
    hold the character U+0000.
    """

    type_rule = Rule("must be an object", "dict_type")

    def __init__(self, *, max_bytes: int | None = None, searchable: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_bytes = max_bytes
        self.searchable = searchable

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValidationError([self.type_rule])
        if self.max_bytes is None and not self.searchable:
            return value
        text = orjson.dumps(value)
        if self.max_bytes is not None and len(text) > self.max_bytes:
            raise ValidationError([Rule(f"must have at most {self.max_bytes} bytes as JSON", "too_long")])
        if self.searchable and b"\\u0000" in text and _has_nul(value):
            raise ValidationError([Rule("must not contain the character U+0000", "value_error")])
        return value


class ListOf(Field):
    """An array whose items are checked by `inner`."""

    type_rule = Rule("must be an array", "list_type")

    def __init__(self, inner: fields.Field, *, max_items: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inner = inner
        self.max_items = max_items

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValidationError([self.type_rule])
        if self.max_items is not None and len(value) > self.max_items:
            raise ValidationError([Rule(f"must have at most {self.max_items} items", "too_long")])
        items: list[Any] = []
        refused: dict[int, Any] = {}
        for position, item in enumerate(value):
            try:
                items.append(self.inner.deserialize(item))
            except ValidationError as error:
                refused[position] = error.messages
        if refused:
            raise ValidationError(refused)  # type: ignore[arg-type]
        return items


class ItemOrList(ListOf):
    """One item, or an array of them; always loads as a list."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[Any]:
        if isinstance(value, list):
            return super()._deserialize(value, attr, data, **kwargs)
        return [self.inner.deserialize(value)]


class Nested(fields.Nested):
    """An object with a schema of its own."""

    default_error_messages: ErrorMessages = {  # noqa: RUF012  as the base has it
        "required": REQUIRED["required"],
        "null": Rule("must be an object", "dict_type"),
        "type": Rule("must be an object", "dict_type"),
    }


class QueryInteger(StrictInteger):
    """An integer in a query string."""

    type_rule = Rule("must be an integer", "int_parsing")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
            raise ValidationError([self.type_rule])
        return self._within(int(value))


QUERY_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class QueryBoolean(Field):
    """true/false, 1/0, True/False in a query string."""

    type_rule = Rule("must be true or false", "bool_parsing")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool:
        known = QUERY_BOOLEANS.get(value.lower())
        if known is None:
            raise ValidationError([self.type_rule])
        return known


class QueryList(ListOf):
    """A list in a query string: a repeated key, a JSON array, or words between commas."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[Any]:
        words = [word for text in value for word in self._words(text)]
        return super()._deserialize(words, attr, data, **kwargs)

    def _words(self, text: str) -> list[Any]:
        if not text.startswith("["):
            return [word.strip() for word in text.split(",") if word.strip()]
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ValidationError([self.type_rule]) from error


def load(schema: type[Schema], *, optional: bool = False) -> dict[str, Any]:
    """The checked JSON body; with `optional` an empty body counts as `{}`."""
    raw = _raw_body()
    body = {} if optional and not raw.strip() else parse_body(raw)
    if not isinstance(body, dict):
        raise SchemaViolation([Violation(("body",), "must be an object", "dict_type")])
    return _checked(schema, body, "body")


def load_many(schema: type[Schema], *, max_items: int) -> list[dict[str, Any]]:
    """The checked items of a JSON array; one bad item refuses them all."""
    body = parse_body(_raw_body())
    if not isinstance(body, list):
        raise SchemaViolation([Violation(("body",), "must be an array", "list_type")])
    if not body:
        raise SchemaViolation([Violation(("body",), "must have at least 1 item", "too_short")])
    if len(body) > max_items:
        raise SchemaViolation([Violation(("body",), f"must have at most {max_items} items", "too_long")])
    return [_checked(schema, item, "body", at) for at, item in enumerate(body)]


def _raw_body() -> bytes:
    try:
        return request.get_data(cache="Idempotency-Key" in request.headers)  # read again for its digest
    except TimeoutError as error:
        raise RequestTimeout() from error


def load_query(schema: type[Schema]) -> dict[str, Any]:
    """The checked query string."""
    loader = _instance(schema)
    sent: dict[str, Any] = {}
    for name, field in loader.load_fields.items():
        key = field.data_key or name
        values = request.args.getlist(key)
        if values:
            sent[key] = values if isinstance(field, QueryList) else values[-1]
    return _checked(schema, sent, "query")


def parse_body(raw: bytes) -> Any:
    """The JSON of a request body; refuses what is not JSON, too deep or too many."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        loc: Loc = ("body", error.pos) if raw.strip() else ("body",)
        kind = "json_invalid" if raw.strip() else "missing"
        raise Invalid(BAD_JSON, loc=loc, kind=kind) from error
    _check_size(raw, body)
    return body


def uuid_path(value: str, name: str, *, message: str | None = None) -> UUID:
    """A UUID from the path; `name` is the parameter (`thread_id`). Only the 36-character form is taken."""
    if re.fullmatch(r"[0-9a-fA-F-]{36}", value):
        try:
            return UUID(value)
        except ValueError:
            pass
    subject = name.removesuffix("_id")
    text = message or f"Invalid {subject} ID: must be a UUID"
    raise Invalid(text, loc=("path", name), kind="uuid_parsing")


_instances: dict[type[Schema], Schema] = {}


def _instance(schema: type[Schema]) -> Schema:
    """One instance a class: making one copies every field."""
    if schema not in _instances:
        _instances[schema] = schema()
    return _instances[schema]


def _checked(schema: type[Schema], sent: Mapping[str, Any], *loc: str | int) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", _instance(schema).load(sent))
    except ValidationError as error:
        raise SchemaViolation(list(_flatten(error.normalized_messages(), loc))) from error


def _flatten(messages: Any, loc: Loc) -> Iterator[Violation]:
    """marshmallow's nested messages, one by one with their place."""
    if isinstance(messages, Mapping):
        for key, inner in messages.items():
            yield from _flatten(inner, loc if key == "_schema" else (*loc, key))
    elif isinstance(messages, list):
        for message in messages:
            yield from _flatten(message, loc)
    else:
        yield Violation(loc, str(messages), getattr(messages, "kind", "value_error"))


def _check_size(raw: bytes, body: Any) -> None:
    """Refuse what is nested too deep or has too many values; looks closer only where the bytes allow it."""
    opened = raw.count(b"[") + raw.count(b"{")
    if opened <= MAX_DEPTH and raw.count(b",") + opened < MAX_ITEMS:
        return
    level = [body]
    items = 0
    for _ in range(MAX_DEPTH + 1):
        items += len(level)
        if items > MAX_ITEMS:
            raise Invalid(f"the body has more than {MAX_ITEMS} values", kind="too_long")
        level = [inner for value in level for inner in _children(value)]
        if not level:
            return
    raise Invalid(f"the body is nested deeper than {MAX_DEPTH} levels", kind="recursion_loop")


def _children(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _has_nul(value: Any) -> bool:
    """Whether a string or key inside holds U+0000; an escaped backslash before u0000 is not one."""
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, dict):
        return any("\x00" in key for key in value) or any(map(_has_nul, value.values()))
    return isinstance(value, list) and any(map(_has_nul, value))
