"""Validation of bodies, queries and path ids: accepted values, rejected values and the error texts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson
import pytest
from flask import Flask
from marshmallow import ValidationError

from shared.errors import Invalid
from web.schemas.fields import (
    AnyJson,
    ItemOrList,
    JsonObject,
    ListOf,
    Nested,
    OneOf,
    QueryBoolean,
    QueryInteger,
    QueryList,
    Schema,
    StrictBoolean,
    StrictInteger,
    StrictNumber,
    StrictString,
    UuidField,
)
from web.schemas.validation import MAX_ITEMS, SchemaViolation, load, load_query, parse_body, uuid_path

ID = "0191e7a4-6b3e-7c3a-9d1e-0242ac120002"


class Part(Schema):
    word = StrictString(required=True)


class Everything(Schema):
    count = StrictInteger(minimum=1, maximum=10)
    share = StrictNumber(minimum=0)
    wanted = StrictBoolean()
    name = StrictString(min_length=1, max_length=5, pattern="[a-z]*")
    note = StrictString(allow_none=True)
    id = UuidField()
    kind = OneOf("a", "b")
    input = AnyJson()
    metadata = JsonObject(max_bytes=50, searchable=True)
    ids = ListOf(UuidField(), max_items=2)
    modes = ItemOrList(OneOf("values", "updates"))
    part = Nested(Part)
    parts = ListOf(Nested(Part))


class Query(Schema):
    limit = QueryInteger(minimum=1, maximum=100, load_default=20)
    deep = QueryBoolean(load_default=False)
    select = QueryList(OneOf("a", "b"))
    name = StrictString()


class Required(Schema):
    name = StrictString(required=True)
    size = StrictInteger(required=True)


def body(raw: bytes | object, schema: type[Schema] = Everything) -> dict[str, Any]:
    data = raw if isinstance(raw, bytes) else orjson.dumps(raw)
    with Flask("test").test_request_context("/", method="POST", data=data):
        return load(schema)


def query(text: str) -> dict[str, Any]:
    with Flask("test").test_request_context(f"/?{text}"):
        return load_query(Query)


def refused(raw: bytes | object, schema: type[Schema] = Everything) -> list[tuple[Any, str]]:
    with pytest.raises(SchemaViolation) as caught:
        body(raw, schema)
    return [(violation.loc, violation.kind) for violation in caught.value.violations]


def test_it_takes_what_the_schema_allows_and_ignores_unknown_fields() -> None:
    sent = {
        "count": 3, "share": 0.5, "wanted": True, "name": "abc", "note": None, "id": ID, "kind": "a", "input": None,
        "metadata": {"a": [1]}, "ids": [ID], "modes": "values", "part": {"word": "x"}, "parts": [{"word": "y"}],
    }  # fmt: skip
    loaded = body(sent)
    assert loaded == {**sent, "id": UUID(ID), "ids": [UUID(ID)], "modes": ["values"]}

    count = body(b'{"count": 1.0}')["count"]
    assert (count, type(count)) == (1, int)
    assert body(b'{"count": 1e1}') == {"count": 10}
    assert body({"count": 1, "colour": "red", "part": {"word": "x", "y": 1}}) == {
        "count": 1,
        "part": {"word": "x"},
    }
    assert body({"metadata": {"a": "\\u0000"}}) == {"metadata": {"a": "\\u0000"}}


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("count", "1", "int_type"),
        ("count", True, "int_type"),
        ("count", 1.5, "int_type"),
        ("count", 1e300, "int_type"),
        ("count", 11.0, "less_than_equal"),
        ("count", None, "int_type"),
        ("count", 0, "greater_than_equal"),
        ("count", 11, "less_than_equal"),
        ("share", "0.5", "float_type"),
        ("share", False, "float_type"),
        ("wanted", 1, "bool_type"),
        ("wanted", "true", "bool_type"),
        ("name", 7, "string_type"),
        ("name", None, "string_type"),
        ("name", "", "string_too_short"),
        ("name", "abcdef", "string_too_long"),
        ("name", "ABC", "string_pattern_mismatch"),
        ("note", "a\x00b", "value_error"),
        ("id", "nope", "uuid_parsing"),
        ("id", 5, "uuid_parsing"),
        ("kind", "c", "literal_error"),
        ("kind", ["a"], "literal_error"),
        ("metadata", [], "dict_type"),
        ("metadata", None, "dict_type"),
        ("metadata", {"a": "x" * 60}, "too_long"),
        ("metadata", {"a": "\x00"}, "value_error"),
        ("metadata", {"\x00": 1}, "value_error"),
        ("ids", ID, "list_type"),
        ("ids", [ID, ID, ID], "too_long"),
        ("modes", "sideways", "literal_error"),
        ("part", [], "dict_type"),
        ("part", None, "dict_type"),
    ],
)
def test_it_refuses_what_breaks_a_rule(field: str, value: object, kind: str) -> None:
    assert refused({field: value}) == [(("body", field), kind)]


def test_one_character_is_no_plural() -> None:
    with pytest.raises(Invalid, match=r"name: must have at least 1 character$"):
        body({"name": ""})


@pytest.mark.parametrize(
    "value", ["x", "é", "\\", '"', [1], ["", ""], {"": []}, [[], {}], None, 0.5, "\n\x01"]
)
def test_an_object_may_be_as_long_as_its_compact_text(value: Any) -> None:
    most = len(orjson.dumps({"a": value}))
    assert JsonObject(max_bytes=most).deserialize({"a": value}) == {"a": value}
    with pytest.raises(ValidationError):
        JsonObject(max_bytes=most - 1).deserialize({"a": value})


def test_it_names_every_location_and_what_is_missing() -> None:
    sent = {"ids": [ID, "x"], "part": {}, "parts": [{"word": 1}, {"word": "ok"}]}
    assert refused(sent) == [
        (("body", "ids", 1), "uuid_parsing"),
        (("body", "part", "word"), "missing"),
        (("body", "parts", 0, "word"), "string_type"),
    ]
    assert refused({}, Required) == [(("body", "name"), "missing"), (("body", "size"), "missing")]


@pytest.mark.parametrize("raw", [b"[]", b'"text"', b"1", b"null"])
def test_a_body_is_an_object(raw: bytes) -> None:
    assert refused(raw) == [(("body",), "dict_type")]


@pytest.mark.parametrize(
    ("raw", "loc", "kind"),
    [
        (b"", ("body",), "missing"),
        (b"  \n", ("body",), "missing"),
        (b'{"a": }', ("body", 6), "json_invalid"),
        (b"{'a': 1}", ("body", 1), "json_invalid"),
        (b'{"a": NaN}', ("body", 6), "json_invalid"),
        (b'{"a": Infinity}', ("body", 6), "json_invalid"),
    ],
)
def test_it_refuses_what_is_not_json(raw: bytes, loc: Any, kind: str) -> None:
    with pytest.raises(Invalid, match="Invalid JSON in request body") as caught:
        body(raw, Required)
    assert (caught.value.loc, caught.value.kind) == (loc, kind)


@pytest.mark.parametrize("raw", [b'{"a": "\xff"}', b'{"a": "\\ud800"}', b'{"a": 1e999}', b'{"a": 1', b"\x00"])
def test_it_refuses_bytes_no_json_text_has(raw: bytes) -> None:
    with pytest.raises(Invalid, match="Invalid JSON in request body"):
        body(raw)


def test_a_body_without_required_fields_may_be_left_out() -> None:
    assert body(b"") == body(b" \n") == {}
    with pytest.raises(Invalid):
        body(b"{")

    assert parse_body(b"[" * 100 + b"]" * 100) is not None
    with pytest.raises(Invalid, match="deeper than"):
        parse_body(b"[" * 200 + b"]" * 200)
    with pytest.raises(Invalid, match="Invalid JSON"):
        parse_body(b"[" * 100_000)


def test_it_refuses_more_values_than_are_allowed_outside_of_texts() -> None:
    with pytest.raises(Invalid, match="more than 100000 values"):
        parse_body(orjson.dumps([0] * (MAX_ITEMS + 1)))
    many = [{}] * (MAX_ITEMS - 1)
    assert parse_body(orjson.dumps(many)) == many
    with pytest.raises(Invalid, match="more than"):
        parse_body(orjson.dumps([*many, {}]))
    assert parse_body(orjson.dumps({"text": "[" * 1000 + "," * MAX_ITEMS}))


@pytest.mark.parametrize(
    "raw",
    [
        b"[" + b"0," * 8_000_000,
        b'{"a":' * 3_000_000,
        b"{" + b",".join(b'"k%d":1' % number for number in range(MAX_ITEMS + 1)),
        b'["' + rb"\\\"," * 100_000 + b'"' + b",0" * MAX_ITEMS,
    ],
    ids=["zeros", "brackets", "keys", "after a string"],
)
def test_too_many_values_are_refused_before_they_are_parsed(raw: bytes) -> None:
    """None of these bodies is valid JSON; a parser would have reported that instead."""
    with pytest.raises(Invalid, match="more than"):
        parse_body(raw)


@pytest.mark.parametrize("filler", [b",[{", rb"\",", rb"\\", rb"\\\",[", "é,".encode(), rb"\u005c\\,"])
def test_what_strings_hold_is_not_counted(filler: bytes) -> None:
    texts = [filler * (length // len(filler)) for length in (262_100, 262_143, 400_001, 5)]
    raw = b'{"a":["' + b'","'.join(texts) + b'"]}'
    assert parse_body(raw) == orjson.loads(raw)


@pytest.mark.parametrize("text", ["true", "True", "1"])
def test_a_query_boolean_has_three_spellings(text: str) -> None:
    assert query(f"deep={text}")["deep"] is True
    assert query("deep=0")["deep"] is False


@pytest.mark.parametrize("text", ["select=a&select=b", 'select=["a","b"]', "select=a,b", "select=a, b"])
def test_a_query_list_has_three_spellings(text: str) -> None:
    assert query(text)["select"] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "loc", "kind"),
    [
        ("limit=x", ("query", "limit"), "int_parsing"),
        ("limit=", ("query", "limit"), "int_parsing"),
        ("limit=9999999999999999999999", ("query", "limit"), "int_parsing"),
        ("limit=0", ("query", "limit"), "greater_than_equal"),
        ("deep=yes", ("query", "deep"), "bool_parsing"),
        ("select=a,c", ("query", "select", 1), "literal_error"),
        ('select=["a"', ("query", "select"), "list_type"),
        ("name=a%00b", ("query", "name"), "value_error"),
    ],
)
def test_it_refuses_a_query_that_breaks_a_rule(text: str, loc: Any, kind: str) -> None:
    with pytest.raises(SchemaViolation) as caught:
        query(text)
    assert [(v.loc, v.kind) for v in caught.value.violations] == [(loc, kind)]


def test_a_query_has_defaults_and_a_path_id_is_a_uuid() -> None:
    assert query("") == {"limit": 20, "deep": False}
    assert uuid_path(ID, "thread_id") == UUID(ID)
    assert uuid_path(ID.upper(), "thread_id") == UUID(ID)


@pytest.mark.parametrize(
    "value", ["x", ID.replace("-", ""), f"{{{ID}}}", ID[:-1], "-" * 36, ID + "\n", "../" * 12]
)
def test_it_refuses_a_path_id_in_any_other_form(value: str) -> None:
    with pytest.raises(Invalid, match="Invalid thread ID: must be a UUID") as caught:
        uuid_path(value, "thread_id")
    assert (caught.value.loc, caught.value.kind) == (("path", "thread_id"), "uuid_parsing")
