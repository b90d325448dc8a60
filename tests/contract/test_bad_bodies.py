"""Every operation of the control plane × every kind of bad input: 422, in the one form, at the right place.

The cases are made from the API document, so that a new route is covered by being documented.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from werkzeug.test import TestResponse

from tests.contract.bad_input import BODIES, MAX_BYTES, Loc, bad_objects, bad_words, good, good_query
from tests.contract.conftest import ControlPlane
from tests.contract.documented import Described, Document, Schema, document_of, records


@pytest.fixture
def document(control: ControlPlane) -> Document:
    return document_of(control)


@pytest.fixture
def known(control: ControlPlane) -> dict[str, str]:
    return records(control)


def with_body(document: Document) -> Iterator[tuple[Described, Schema]]:
    for described in document.control_plane():
        schema = document.body(described)
        if schema is not None:
            yield described, schema


def wrong(response: TestResponse, loc: Loc, kind: str | None = None) -> str | None:
    """What is wrong with a refusal that should name this place; None when all is well."""
    if response.status_code != 422:
        return f"{response.status_code} {response.text[:200]}"
    answer: Any = response.json
    items = answer.get("detail")
    if set(answer) != {"detail"} or not isinstance(items, list) or not items:
        return f"not the form of a 422: {answer}"
    for item in items:
        texts = (
            isinstance(item["msg"], str) and item["msg"] and isinstance(item["type"], str) and item["type"]
        )
        if set(item) != {"loc", "msg", "type"} or not texts:
            return f"not the form of an item: {item}"
    found = [item for item in items if item["loc"] == loc]
    if not found:
        return f"names {[item['loc'] for item in items]} instead of {loc}"
    if kind is not None and kind not in [item["type"] for item in found]:
        return f"says {[item['type'] for item in found]} instead of {kind}"
    return None


def test_what_is_no_object_is_refused(control: ControlPlane, document: Document, known: Any) -> None:
    problems = []
    for described, _ in with_body(document):
        for raw, loc, kind in BODIES:
            response = control.client.open(described.address(known), method=described.method, data=raw)
            detail: Any = response.json
            if kind == "json_invalid" and response.status_code == 422:
                loc = detail["detail"][0]["loc"][:1]  # followed by the offset of the fault
                assert isinstance(detail["detail"][0]["loc"][1], int)
                continue
            if problem := wrong(response, list(loc), kind):
                problems.append(f"{described} {raw[:20]!r}: {problem}")
    assert not problems, "\n".join(problems)


def test_no_body_is_refused_where_one_is_needed(
    control: ControlPlane, document: Document, known: Any
) -> None:
    problems = []
    for described, _ in with_body(document):
        if not described.said["requestBody"]["required"]:
            continue
        for raw in (b"", b"  \n"):
            response = control.client.open(described.address(known), method=described.method, data=raw)
            if problem := wrong(response, ["body"], "missing"):
                problems.append(f"{described}: {problem}")
    assert not problems, "\n".join(problems)


def test_a_body_that_is_too_large_is_refused(control: ControlPlane, document: Document, known: Any) -> None:
    control.client.application.config["MAX_CONTENT_LENGTH"] = MAX_BYTES
    raw = b'{"a": "' + b"x" * MAX_BYTES + b'"}'
    for described, _ in with_body(document):
        response = control.client.open(described.address(known), method=described.method, data=raw)
        assert response.status_code == 413, described
        assert response.json == {"detail": f"The request body is larger than {MAX_BYTES} bytes"}, described


def test_every_field_is_checked_and_placed(control: ControlPlane, document: Document, known: Any) -> None:
    problems = []
    count = 0
    for described, schema in with_body(document):
        for loc, body, what in bad_objects(document, schema):
            response = control.call(described.method, described.address(known), body)
            count += 1
            if problem := wrong(response, ["body", *loc]):
                problems.append(f"{described} {what} at {loc}: {problem}")
    assert not problems, "\n".join(problems)
    assert count > 300


def test_every_id_in_a_path_is_checked(control: ControlPlane, document: Document, known: Any) -> None:
    problems = []
    for described in document.control_plane():
        schema = document.body(described)
        body = None if schema is None else good(document, schema)
        for name, expected in described.parameters("path").items():
            if expected.get("format") != "uuid":
                continue
            for text in ("nonsense", "7", "0" * 36, "01890a5dac96774bbcceb302099a8057"):
                path = described.address(known, **{name: text})
                response = control.call(described.method, path, body, query_string=good_query(described))
                if problem := wrong(response, ["path", name], "uuid_parsing"):
                    problems.append(f"{described} {name}={text}: {problem}")
    assert not problems, "\n".join(problems)


def test_every_word_of_a_query_is_checked(control: ControlPlane, document: Document, known: Any) -> None:
    problems = []
    for described in document.control_plane():
        for name, schema in described.parameters("query").items():
            for text in bad_words(schema):
                query = {**good_query(described), name: text}
                response = control.call(described.method, described.address(known), query_string=query)
                if problem := wrong(response, ["query", name]):
                    problems.append(f"{described} {name}={text!r}: {problem}")
    assert not problems, "\n".join(problems)


def test_json_text_is_what_the_cases_are_made_of(document: Document) -> None:
    """A generator that makes nothing would let everything pass."""
    schema = document.body(next(d for d in document.control_plane() if str(d) == "POST /v2/deployments"))
    assert schema is not None
    made = [(loc, what) for loc, body, what in bad_objects(document, schema) if orjson.dumps(body)]
    for expected in (
        (["source"], "missing"),
        (["name"], "not of the pattern"),
        (["secrets", 0, "name"], "an item: missing"),
        (["source_config", "build_on_push"], "a value of type string"),
    ):
        assert expected in made
