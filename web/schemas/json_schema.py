"""JSON Schemas of responses, which are documented and not checked: types, records, lists.

A schema with a title becomes a component of the API document.
"""

from __future__ import annotations

from typing import Any

JsonSchema = dict[str, Any]

TEXT: JsonSchema = {"type": "string"}
TEXT_OR_NULL: JsonSchema = {"type": ["string", "null"]}
UUID: JsonSchema = {"type": "string", "format": "uuid"}
UUID_OR_NULL: JsonSchema = {"type": ["string", "null"], "format": "uuid"}
TIME: JsonSchema = {"type": "string", "format": "date-time"}
TIME_OR_NULL: JsonSchema = {"type": ["string", "null"], "format": "date-time"}
BOOLEAN: JsonSchema = {"type": "boolean"}
COUNT: JsonSchema = {"type": "integer", "minimum": 0}
COUNT_OR_NULL: JsonSchema = {"type": ["integer", "null"], "minimum": 0}
# TypeScript generators treat an object without declared properties as one that has none.
OBJECT: JsonSchema = {"type": "object", "additionalProperties": True}
OBJECT_OR_NULL: JsonSchema = {**OBJECT, "type": ["object", "null"]}


def record(title: str | None = None, optional: tuple[str, ...] = (), **fields: JsonSchema) -> JsonSchema:
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
