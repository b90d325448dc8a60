"""Builds the JSON Schemas of answers, which are documented and not checked: types, records, lists.

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
# Generators of TypeScript take an object that says nothing of its properties for one without any.
OBJECT: JsonSchema = {"type": "object", "additionalProperties": True}
OBJECT_OR_NULL: JsonSchema = {**OBJECT, "type": ["object", "null"]}


def record(title: str | None = None, optional: tuple[str, ...] = (), **fields: JsonSchema) -> JsonSchema:
    """An object that always has these fields, but for the optional ones."""
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
    """An object with values of one kind under any names."""
    return {"type": "object", "additionalProperties": item}


def one_of(*values: str) -> JsonSchema:
    return {"type": "string", "enum": list(map(str, values))}


def or_null(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}]}


def selection(schema: JsonSchema) -> JsonSchema:
    """The same record with only the fields that were asked for."""
    return {**schema, "title": f"Selected{schema['title']}", "required": []}
