"""The input that a graph accepts, derived from its input schema, including schemas without known meaning."""

from __future__ import annotations

from typing import Any

import pytest

from web.deployment_api.protocols.conversation import misfits, takes_messages

DEFINITIONS = {"Messages": {"type": "array"}, "Loop": {"$ref": "#/$defs/Loop"}, "Text": {"type": "string"}}


def schema(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "$defs": DEFINITIONS}


@pytest.mark.parametrize(
    ("field", "is_conversation"),
    [
        ({"type": "array"}, True),
        ({}, True),
        (True, True),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, True),
        ({"$ref": "#/$defs/Messages"}, True),
        ({"$ref": "#/$defs/Loop"}, True),
        ({"$ref": "#/elsewhere"}, True),
        ({"type": ["array", "string"]}, True),
        ({"type": "string"}, False),
        ({"$ref": "#/$defs/Text"}, False),
        ({"oneOf": [{"type": "string"}, {"type": "object"}]}, False),
    ],
)
def test_a_conversation_is_a_list_of_messages(field: Any, is_conversation: bool) -> None:
    assert takes_messages(schema(messages=field)) is is_conversation


@pytest.mark.parametrize("odd", [None, 7, [], {}, {"properties": None}, {"properties": []}, schema(text={})])
def test_what_names_no_messages_is_none(odd: Any) -> None:
    assert takes_messages(odd) is False


@pytest.mark.parametrize(
    ("field", "value", "fits"),
    [
        ({"type": "string"}, "a", True),
        ({"type": "string"}, 1, False),
        ({"type": "integer"}, 1.0, True),
        ({"type": "integer"}, 1.5, False),
        ({"type": "integer"}, True, False),
        ({"type": "number"}, 1, True),
        ({"type": "number"}, False, False),
        ({"type": "boolean"}, True, True),
        ({"type": "null"}, None, True),
        ({"type": "object"}, [], False),
        ({"$ref": "#/$defs/Text"}, 1, False),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, False),
        ({"anyOf": [{"type": "string"}, {}]}, 1, True),
        ({"enum": ["a"]}, 1, True),
        ({"type": "nonsense"}, 1, True),
        ({"type": {"not": "text"}}, 1, True),
        ({"type": [7, None]}, 1, True),
        ({"anyOf": "nonsense"}, 1, True),
        (None, 1, True),
    ],
)
def test_a_value_fits_its_type_and_whatever_has_none(field: Any, value: Any, fits: bool) -> None:
    assert (misfits(schema(a=field), {"a": value}) == []) is fits


def test_what_is_missing_is_named_and_following_a_schema_has_an_end() -> None:
    asked = {**schema(a={}, b={}), "required": ["a", "b", 7]}
    assert misfits(asked, {"b": 1}) == ["a: this field is required"]
    assert misfits({**asked, "required": "a"}, {}) == []

    wide = {"anyOf": [{"$ref": "#/$defs/Wide"}] * 10_000}
    endless = {"properties": {"a": {"$ref": "#/$defs/Wide"}}, "$defs": {"Wide": wide}}
    assert misfits(endless, {"a": 1}) == []
