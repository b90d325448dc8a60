"""Descriptions of the records that the API returns.

A `Record` names the fields of a record once. The SELECT list, the JSON record, the JSON Schema in the API document and
the fields that `select` accepts derive from it. The functions below it build JSON Schemas of other responses, which are
documented and not checked. A schema with a title becomes a component of the API document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, Literal, NamedTuple

from shared.infra.postgres import Row

JsonSchema = dict[str, Any]
Show = Callable[[Row], dict[str, Any]]
ADDED_LATER = ("added", "requested")

TEXT: JsonSchema = {"type": "string"}
TEXT_OR_NULL: JsonSchema = {"type": ["string", "null"]}
ID: JsonSchema = {"type": "string", "format": "uuid"}
ID_OR_NULL: JsonSchema = {"type": ["string", "null"], "format": "uuid"}
TIME: JsonSchema = {"type": "string", "format": "date-time"}
TIME_OR_NULL: JsonSchema = {"type": ["string", "null"], "format": "date-time"}
BOOLEAN: JsonSchema = {"type": "boolean"}
COUNT: JsonSchema = {"type": "integer", "minimum": 0}
COUNT_OR_NULL: JsonSchema = {"type": ["integer", "null"], "minimum": 0}
# TypeScript generators treat an object without declared properties as one that has none.
OBJECT: JsonSchema = {"type": "object", "additionalProperties": True}
OBJECT_OR_NULL: JsonSchema = {**OBJECT, "type": ["object", "null"]}


def record(title: str | None = None, optional: tuple[str, ...] = (), /, **fields: JsonSchema) -> JsonSchema:
    """Return the schema of an object with these fields, of which all but the optional ones are always present."""
    schema: JsonSchema = {
        "type": "object",
        "required": [name for name in fields if name not in optional],
        "properties": fields,
    }
    return schema if title is None else {"title": title, **schema}


def listed(item: JsonSchema, *, max_items: int | None = None) -> JsonSchema:
    schema: JsonSchema = {"type": "array", "items": item}
    return schema if max_items is None else {**schema, "maxItems": max_items}


def mapped(item: JsonSchema) -> JsonSchema:
    """Return the schema of an object with any keys and values of one kind."""
    return {"type": "object", "additionalProperties": item}


def one_of(*values: str) -> JsonSchema:
    return {"type": "string", "enum": list(map(str, values))}


def or_null(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}]}


def selection(schema: JsonSchema) -> JsonSchema:
    """Return the schema of a record that holds only the selected fields."""
    return {**schema, "title": f"Selected{schema['title']}", "required": []}


ANYTHING: JsonSchema = {"description": "Any JSON value"}
INTERRUPT = record("Interrupt", id=TEXT, value=ANYTHING)
FAILURE = record("Failure", error=TEXT, message=TEXT)


class RecordField(NamedTuple):
    """A field of a record."""

    schema: JsonSchema  # type and description of the value
    reads: tuple[str, ...] | None = None  # the columns that it reads; None: the column of the same name
    value: Callable[[Row], Any] | None = None  # computes the value from the row; None: the column unchanged
    shown: Literal["always", "search", "added", "requested"] | tuple[str, ...] = "always"
    """When the record has the field. "search": only in results of a search. "added": the code that calls `show` adds it to
    some records. "requested": that code adds it if a parameter of the request, other than `select`, names it. A tuple:
    if one of these columns is not NULL."""


class Record:
    """The description of a record: its columns, its JSON values, and its JSON Schema.

    `expressions` maps names to SQL, for columns that the table does not have. `internal` are columns that are selected and
    not shown. `table` is the alias of the table. `select` is the SELECT list, `stored` the same without the expressions.
    """

    def __init__(
        self,
        title: str,
        fields: Mapping[str, RecordField],
        *,
        table: str | None = None,
        expressions: Mapping[str, str] | None = None,
        internal: Iterable[str] = (),
    ) -> None:
        read = [name for key, field in fields.items() for name in _columns(key, field)]
        self.columns = tuple(dict.fromkeys([*read, *internal]))
        expressions = expressions or {}
        prefix = f"{table}." if table else ""
        self.stored = ", ".join(f"{prefix}{name}" for name in self.columns if name not in expressions)
        self.select = ", ".join(
            f"{expressions[name]} AS {name}" if name in expressions else f"{prefix}{name}"
            for name in self.columns
        )
        usual = {name: field for name, field in fields.items() if field.shown != "search"}
        self.schema = record(
            title, _not_always(usual), **{name: field.schema for name, field in usual.items()}
        )
        schemas = {name: field.schema for name, field in fields.items()}
        self.search_schema = record(f"Found{title}", _not_always(fields), **schemas)
        self.selectable = tuple(name for name, field in usual.items() if field.shown != "requested")
        self.show = _compile(usual)
        self.show_search_result = _compile(fields)


def _columns(name: str, field: RecordField) -> tuple[str, ...]:
    if field.shown in ADDED_LATER:
        return ()
    return (name,) if field.reads is None else field.reads


def _not_always(fields: Mapping[str, RecordField]) -> tuple[str, ...]:
    return tuple(name for name, field in fields.items() if field.shown not in ("always", "search"))


def _compile(fields: Mapping[str, RecordField]) -> Show:
    """Return the function that shows a row as a record.

    The function is compiled from source text, as `dataclasses` does it: a loop over the fields takes 1.5 times as long.
    """
    always = ", ".join(
        f"{name!r}: {_source(name, field)}"
        for name, field in fields.items()
        if field.shown in ("always", "search")
    )
    lines = ["def show(row):", f"    shown = {{{always}}}"]
    for columns, names in groupby(fields, key=lambda name: fields[name].shown):
        if isinstance(columns, tuple):
            lines.append(f"    if {' or '.join(f'row[{column!r}] is not None' for column in columns)}:")
            lines += [f"        shown[{name!r}] = {_source(name, fields[name])}" for name in names]
    namespace: dict[str, Any] = {f"value_of_{name}": field.value for name, field in fields.items()}
    exec("\n".join([*lines, "    return shown"]), namespace)
    return namespace["show"]


def _source(name: str, field: RecordField) -> str:
    if field.value is not None:
        return f"value_of_{name}(row)"
    return f"row[{_columns(name, field)[0]!r}]"


def one_line(text: str) -> str:
    """Return a text of strangers for display: on one line, without control characters and marks of text direction."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
