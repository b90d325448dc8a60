"""Input that the API document forbids, generated from the document: bodies, fields and query parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.contract.documented import Described, Document, Schema, types

Loc = list[str | int]
Case = tuple[Loc, Any, str]  # location of the fault, body (bytes are sent raw), the fault

EXAMPLES: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "integer": 7,
    "number": 7.5,
    "string": "\x7f?",
    "array": [],
    "object": {},
}
# Kinds of values sent in place of each kind. The field classes of all schemas are tested in tests/unit/web.
CONFUSED = {
    "null": ("string",),
    "boolean": ("null", "integer", "string"),
    "integer": ("null", "boolean", "number", "string"),
    "number": ("null", "boolean", "string"),
    "string": ("null", "integer", "object"),
    "array": ("null", "string", "object"),
    "object": ("null", "string", "array"),
}
MAX_BYTES = 256 * 1024
BODIES: list[tuple[bytes, str]] = [
    (b"{", "json_invalid"),
    (b'{"a": NaN}', "json_invalid"),
    (b'{"a": 1} x', "json_invalid"),
    (b'{"a": "\xff"}', "json_invalid"),
    (b"\x00\xff\xfe{", "json_invalid"),
    (b'{"a": "\\ud800"}', "json_invalid"),
    (b"[]", "dict_type"),
    (b"null", "dict_type"),
    (b"7", "dict_type"),
    (b'"text"', "dict_type"),
    (b"true", "dict_type"),
    (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", "recursion_loop"),
    (b'{"a": [' + b"1," * 100_000 + b"1]}", "too_long"),
]


def bad_objects(document: Document, schema: Schema) -> Iterator[Case]:
    """Yield objects with exactly one fault."""
    base = good(document, schema)
    for name in schema.get("required", ()):
        yield [name], {key: value for key, value in base.items() if key != name}, "missing"
    for name, inner in schema.get("properties", {}).items():
        for loc, value, what in bad_values(document, document.whole(inner)):
            yield [name, *loc], {**base, name: value}, what


def bad_values(document: Document, schema: Schema) -> Iterator[Case]:
    allowed = types(schema)
    if not allowed:
        return  # any value is valid
    for kind in CONFUSED[allowed[0]]:
        if kind not in allowed and not (kind == "integer" and "number" in allowed):
            yield [], EXAMPLES[kind], f"a value of type {kind}"
    if "object" in allowed:
        yield from bad_objects(document, schema)
    if "array" in allowed:
        item = document.whole(schema.get("items", {}))
        for loc, value, what in bad_values(document, item):
            yield [0, *loc], [value], f"an item: {what}"
        if "maxItems" in schema:
            yield [], [good(document, item)] * (schema["maxItems"] + 1), "too many items"
    yield from ((value_loc, value, what) for value_loc, value, what in out_of_bounds(schema))


def out_of_bounds(schema: Schema) -> Iterator[Case]:
    text = good_text(schema)
    if "enum" in schema:
        yield [], "nonsense", "an unknown word"
        return
    if schema.get("format") in ("uuid", "date-time"):
        yield [], "nonsense", f"no {schema['format']}"
    if schema.get("minLength"):
        yield [], text[: schema["minLength"] - 1], "too short"
    if "maxLength" in schema:
        yield [], text[:1] * (schema["maxLength"] + 1), "too long"
    if "pattern" in schema:
        odd = (
            text for text in ("?!", "a b", "a/b", "..", "a\x01b") if not re.search(schema["pattern"], text)
        )
        yield [], next(odd), "not of the pattern"
    if "minimum" in schema:
        yield [], schema["minimum"] - 1, "too small"
    if "maximum" in schema:
        yield [], schema["maximum"] + 1, "too large"


def good(document: Document, schema: Schema) -> Any:
    """Return the smallest value that a schema allows."""
    schema = document.whole(schema)
    if schema.get("minItems"):
        return [good(document, schema["items"])] * schema["minItems"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = next(iter(types(schema)), "null")
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: good(document, properties[name]) for name in schema.get("required", ())}
    if kind == "string":
        return good_text(schema)
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"array": [], "boolean": True}.get(kind)


def good_text(schema: Schema) -> str:
    if "examples" in schema:
        return str(schema["examples"][0])
    formats = {
        "uuid": "01890a5d-ac96-774b-bcce-b302099a8057",
        "date-time": "2026-01-02T03:04:05Z",
        "uri": "https://example.org",
    }
    return formats.get(schema.get("format", ""), "abc")


def good_query(described: Described) -> dict[str, str]:
    """Return the required query parameters of an operation."""
    needed = [p for p in described.said["parameters"] if p["in"] == "query" and p.get("required")]
    return {p["name"]: good_text(p["schema"].get("items", p["schema"])) for p in needed}


def bad_words(schema: Schema) -> Iterator[str]:
    kind = next(iter(types(schema)), "")
    if kind in ("integer", "number"):
        yield from ("", "x", "1e400", "9" * 400)
        if "minimum" in schema:
            yield str(schema["minimum"] - 1)
        if "maximum" in schema:
            yield str(schema["maximum"] + 1)
    if kind == "integer":
        yield "1.5"
    if kind == "boolean":
        yield from ("", "maybe", "2")
    if "enum" in schema or schema.get("format") in ("uuid", "date-time"):
        yield "nonsense"
    if kind == "string":
        yield "\x00"
