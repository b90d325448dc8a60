"""Fields of request schemas.

Types are strict, as in JSON Schema: "1" and true are not integers, 1.0 is one. Unknown fields are ignored. null is
refused unless the field has `allow_none=True`.

marshmallow's messages are plain text, but the control plane returns a machine-readable `type` with each. `Rule` is a
str that carries it.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Any, ClassVar
from uuid import UUID

import orjson
from marshmallow import EXCLUDE, ValidationError, fields, pre_load
from marshmallow import Schema as MarshmallowSchema

from shared.errors import suggestion
from shared.infra.json_text import holds_nul


class Rule(str):
    """An error message with the machine-readable type of the violated rule."""

    kind: str

    def __new__(cls, text: str, kind: str = "value_error") -> Rule:
        rule = super().__new__(cls, text)
        rule.kind = kind
        return rule

    def format(self, *args: object, **kwargs: object) -> Rule:
        return Rule(super().format(*args, **kwargs), self.kind)


MAX_ITEMS = 1000
MAX_PAGE = 100  # items
MAX_OFFSET = 2**62  # the database counts in 64 bits
MAX_EXACT_FLOAT = 2**53  # above it a float stands for several integers
FILTER_KEYS = 100
FILTER_BYTES = 64 * 1024  # the same limit as for metadata

ErrorMessages = dict[str, str | list[Any] | dict[Any, Any]]

REQUIRED: ErrorMessages = {
    "required": Rule("this field is required", "missing"),
    "null": Rule("must not be null", "value_error"),
}


class Schema(MarshmallowSchema):
    """The base of every request schema: unknown fields are ignored."""

    example: ClassVar[dict[str, Any]] = {}  # a body in the API document; the service accepts it unchanged

    class Meta:
        unknown = EXCLUDE

    error_messages = {"type": Rule("must be an object", "dict_type")}  # noqa: RUF012  as the base has it

    @classmethod
    def requires_a_field(cls) -> bool:
        """Return whether an empty object breaks the schema. If it does not, a request may omit its body."""
        return any(field.required for field in cls._declared_fields.values())


class StrictSchema(Schema):
    """A schema whose unknown fields are refused."""

    @pre_load
    def refuse_unknown(self, sent: Any, **kwargs: Any) -> Any:
        known = self.fields
        unknown = sorted(sent.keys() - known.keys()) if isinstance(sent, dict) else []
        if unknown:
            raise ValidationError({name: [Rule(f"not known.{suggestion(name, known)}")] for name in unknown})
        return sent


class Field(fields.Field):
    """A field whose errors carry machine-readable types. A refused null is reported as a wrong type."""

    default_error_messages: ErrorMessages = REQUIRED
    type_rule: ClassVar[Rule] = Rule("must be a valid value", "value_error")

    def _validate_missing(self, value: Any) -> None:
        if value is None and not self.allow_none:
            raise ValidationError([self.type_rule])
        super()._validate_missing(value)


class StrictInteger(Field):
    """An integer, also one written with a zero fraction (`1.0`); `minimum` and `maximum` are inclusive."""

    type_rule = Rule("must be an integer", "int_type")

    def __init__(self, *, minimum: int | None = None, maximum: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.minimum = minimum
        self.maximum = maximum

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        if type(value) is float and value.is_integer() and abs(value) <= MAX_EXACT_FLOAT:
            value = int(value)
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
    """Text that the database can store. `pattern` must match the whole text."""

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
            rule = f"must have at least {self.min_length} {'character' if self.min_length == 1 else 'characters'}"
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
        self.choices = tuple(map(str, choices))  # members of an enum become their values
        self.type_rule = Rule(f"must be one of {', '.join(map(repr, self.choices))}", "literal_error")  # type: ignore[misc]

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if not isinstance(value, str) or value not in self.choices:
            raise ValidationError([self.type_rule])
        return value


class UuidField(Field):
    """A UUID in any text form that the standard library parses."""

    type_rule = Rule("must be a UUID", "uuid_parsing")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> UUID:
        if not isinstance(value, str):
            raise ValidationError([self.type_rule])
        try:
            return UUID(value)
        except ValueError as error:
            raise ValidationError([self.type_rule]) from error


class TimeField(Field):
    """A time in ISO 8601. A time without a zone is UTC."""

    type_rule = Rule("must be a time in ISO 8601", "datetime_parsing")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> datetime:
        if not isinstance(value, str):
            raise ValidationError([self.type_rule])
        try:
            at = datetime.fromisoformat(value.strip())
            return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        except (ValueError, OverflowError) as error:
            raise ValidationError([self.type_rule]) from error


class DateField(Field):
    """A day in ISO 8601."""

    type_rule = Rule("must be a day like 2026-01-31", "date_parsing")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> date:
        if not isinstance(value, str):
            raise ValidationError([self.type_rule])
        try:
            return date.fromisoformat(value.strip())
        except ValueError as error:
            raise ValidationError([self.type_rule]) from error


class AnyJson(Field):
    """Any JSON value, including null, kept as sent.

    `max_bytes` limits its compact text, of a value for a jsonb column, which cannot hold the character U+0000.
    """

    def __init__(self, *, max_bytes: int | None = None, **kwargs: Any) -> None:
        super().__init__(**{"allow_none": True, **kwargs})
        self.max_bytes = max_bytes

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if self.max_bytes is not None and not _fits(value, self.max_bytes):
            raise ValidationError([too_long(self.max_bytes)])
        if self.max_bytes is not None and holds_nul(value):
            raise ValidationError([Rule("must not contain the character U+0000", "value_error")])
        return value


def too_long(max_bytes: int) -> Rule:
    return Rule(f"must have at most {max_bytes} bytes as JSON", "too_long")


class JsonObject(Field):
    """Any JSON object, kept as sent.

    `max_bytes` limits its compact text. `searchable=True` is for values of a jsonb column, which cannot hold the
    character U+0000.
    """

    type_rule = Rule("must be an object", "dict_type")

    def __init__(self, *, max_bytes: int | None = None, searchable: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_bytes = max_bytes
        self.searchable = searchable

    @property
    def bounds(self) -> str:
        """The rules that JSON Schema cannot express, as one text."""
        size = [f"at most {self.max_bytes} bytes as JSON"] if self.max_bytes is not None else []
        return "; ".join([*size, *(["without the character U+0000"] if self.searchable else [])])

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValidationError([self.type_rule])
        if self.max_bytes is not None and not _fits(value, self.max_bytes):
            raise ValidationError([too_long(self.max_bytes)])
        if self.searchable and holds_nul(value):
            raise ValidationError([Rule("must not contain the character U+0000", "value_error")])
        return value


class Filter(JsonObject):
    """Values that search results must hold. The number of keys is limited, since each may become a SQL condition."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_bytes=FILTER_BYTES, searchable=True, **kwargs)

    @property
    def bounds(self) -> str:
        return f"{super().bounds}; at most {FILTER_KEYS} keys in all"

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        value = super()._deserialize(value, attr, data, **kwargs)
        if _count_keys(value) > FILTER_KEYS:
            raise ValidationError([Rule(f"must have at most {FILTER_KEYS} keys in all", "too_long")])
        return value


NO_ITEM = Rule("must have at least 1 item", "too_short")


class ListOf(Field):
    """An array of at most `max_items` items, each checked by `inner`. `max_bytes` limits its compact text."""

    type_rule = Rule("must be an array", "list_type")

    def __init__(
        self,
        inner: fields.Field,
        *,
        not_empty: bool = False,
        max_items: int = MAX_ITEMS,
        max_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_bytes = max_bytes
        self.inner = inner
        self.not_empty = not_empty
        self.max_items = max_items

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValidationError([self.type_rule])
        if self.not_empty and not value:
            raise ValidationError([NO_ITEM])
        if len(value) > self.max_items:
            raise ValidationError([Rule(f"must have at most {self.max_items} items", "too_long")])
        if self.max_bytes is not None and not _fits(value, self.max_bytes):
            raise ValidationError([too_long(self.max_bytes)])
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


class Page(Schema):
    """The page of a list, in a query string."""

    limit = QueryInteger(minimum=1, maximum=MAX_PAGE, load_default=20)
    offset = QueryInteger(minimum=0, maximum=MAX_OFFSET, load_default=0)


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
    """A list in a query string: a repeated key, a JSON array, or comma-separated words."""

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


def _fits(value: Any, max_bytes: int) -> bool:
    """Return whether a value's compact JSON has at most `max_bytes`. Text that is certainly longer is not built."""
    budget, uncounted = max_bytes, [value]
    while uncounted and budget >= 0:
        part = uncounted.pop()
        budget -= len(part) + 1 if isinstance(part, str | dict | list) else 1
        if isinstance(part, dict):
            uncounted += (*part, *part.values())
        elif isinstance(part, list):
            uncounted += part
    return budget >= 0 and len(orjson.dumps(value)) <= max_bytes


def _count_keys(value: Any) -> int:
    """Return the number of keys of an object and of the objects among its values."""
    return len(value) + sum(map(_count_keys, value.values())) if isinstance(value, dict) else 0
