"""Every operation of both interfaces rejects every kind of bad input, in the interface's format and at the right place.

The cases are generated from the API document, so documenting a new route covers it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import orjson
import pytest
from werkzeug.test import TestResponse

from tests.contract.bad_input import BODIES, MAX_BYTES, Loc, bad_objects, bad_words, good, good_query
from tests.contract.conftest import Api, ControlPlane
from tests.contract.documented import Described, Schema, deployment_records, document_of, records
from tests.contract.run_calls import MISSING

EVERYWHERE = [(b"{", "json_invalid"), (b"null", "dict_type")]
NO_UUIDS = ("nonsense", "01890a5dac96774bbcceb302099a8057")


class Interface:
    """One of the two interfaces: its operations and its error format. Checks return a problem as text, or None."""

    least_fields = 300  # minimum number of bad fields

    def __init__(self, asked: ControlPlane | Api, known: dict[str, str], prefix: str = "") -> None:
        self.client, self.known, self.prefix = asked.client, known, prefix
        self.document = document_of(asked)
        self.operations = list(self.document.control_plane())

    def with_body(self) -> Iterator[tuple[Described, Schema]]:
        for described in self.operations:
            schema = self.document.body(described)
            if schema is not None:
                yield described, schema

    def bad_bodies(self, schema: Schema) -> Iterator[tuple[Loc, Any, str]]:
        if schema["type"] != "array":
            yield from bad_objects(self.document, schema)
            return
        for loc, body, what in bad_objects(self.document, self.document.whole(schema["items"])):
            yield [0, *loc], [body], what

    def send(
        self, described: Described, raw: bytes | None, query: Mapping[str, str] | None = None, **others: str
    ) -> TestResponse:
        path = self.prefix + described.address(self.known, **others)
        return self.client.open(path, method=described.method, data=raw, query_string=query)

    def smallest(self, described: Described) -> bytes | None:
        schema = self.document.body(described)
        return None if schema is None else orjson.dumps(good(self.document, schema))

    def lacks(self, response: TestResponse, loc: Loc, kind: str | None = None) -> str | None:
        if response.status_code != 422:
            return f"{response.status_code} {response.text[:200]}"
        answer: Any = response.json
        items = answer.get("detail")
        if set(answer) != {"detail"} or not isinstance(items, list) or not items:
            return f"not the form of a 422: {answer}"
        for item in items:
            texts = (
                isinstance(item["msg"], str)
                and item["msg"]
                and isinstance(item["type"], str)
                and item["type"]
            )
            if set(item) != {"loc", "msg", "type"} or not texts:
                return f"not the form of an item: {item}"
        found = [item for item in items if item["loc"] == loc]
        if not found:
            return f"names {[item['loc'] for item in items]} instead of {loc}"
        if kind is not None and kind not in [item["type"] for item in found]:
            return f"says {[item['type'] for item in found]} instead of {kind}"
        return None

    def lacks_of_body(self, response: TestResponse, kind: str) -> str | None:
        if kind != "json_invalid":
            return self.lacks(response, ["body"], kind)
        answer: Any = response.json
        at = answer["detail"][0]["loc"][1:] if response.status_code == 422 else []
        if [type(offset) for offset in at] != [int]:
            return f"names no offset: {response.text[:200]}"
        return self.lacks(response, ["body", *at], kind)

    def lacks_of_absence(self, response: TestResponse) -> str | None:
        return self.lacks(response, ["body"], "missing")

    def lacks_of_field(self, described: Described, response: TestResponse, loc: Loc) -> str | None:
        return self.lacks(response, ["body", *loc])

    def lacks_of_id(self, described: Described, response: TestResponse, name: str) -> str | None:
        return self.lacks(response, ["path", name], "uuid_parsing")

    def lacks_of_word(self, described: Described, response: TestResponse, name: str, text: str) -> str | None:
        return self.lacks(response, ["query", name])


class DeploymentInterface(Interface):
    """A deployment's API, whose error detail is one string, never a list."""

    least_fields = 500
    bad_json = "Invalid JSON in request body"
    said: ClassVar = {
        "json_invalid": bad_json,
        "dict_type": "must be an",
        "recursion_loop": "the body is nested deeper than 128 levels",
        "too_long": "the body has more than 100000 values",
    }
    # These have their own error formats: tests/contract/test_mcp.py, test_a2a.py, test_ag_ui.py, test_protocol_commands.py.
    own_words = ("/mcp", "/a2a/{assistant_id}", "/ag-ui/{assistant_id}", "/threads/{thread_id}/commands")
    creates_a_run = (
        "/threads/{thread_id}/runs",
        "/threads/{thread_id}/runs/stream",
        "/threads/{thread_id}/runs/wait",
    )
    no_channels = ("POST /threads/{thread_id}/stream/events", "channels")  # answers 400
    no_number = "GET /threads/{thread_id}/runs"  # answers 400 if limit or offset is not a number

    def __init__(self, api: Api) -> None:
        super().__init__(api, deployment_records(api), f"/d/{api.deployment.name}")
        self.operations = [
            described for described in self.document.operations() if described.path not in self.own_words
        ]

    def says(self, response: TestResponse, said: str, status: int = 422) -> str | None:
        answer: Any = response.json
        if response.status_code != status:
            return f"{response.status_code} {response.text[:200]}"
        if set(answer) != {"detail"} or not isinstance(answer["detail"], str):
            return f"not the form of a refusal: {answer}"
        return None if said in answer["detail"] else f"{answer['detail']!r} does not say {said!r}"

    def lacks_of_body(self, response: TestResponse, kind: str) -> str | None:
        return self.says(response, self.said[kind])

    def lacks_of_absence(self, response: TestResponse) -> str | None:
        return self.says(response, self.bad_json)

    def lacks_of_field(self, described: Described, response: TestResponse, loc: Loc) -> str | None:
        # errors of a checkpoint id name the checkpoint
        named = "checkpoint" if loc[-1] == "checkpoint_id" else ".".join(map(str, loc))
        return self.says(response, named, 400 if (str(described), loc[0]) == self.no_channels else 422)

    def lacks_of_id(self, described: Described, response: TestResponse, name: str) -> str | None:
        if described.method == "POST" and described.path in self.creates_a_run:
            return self.says(response, "Invalid thread ID")
        return self.says(response, f"Invalid {name.removesuffix('_id')} ID: must be a UUID")

    def lacks_of_word(self, described: Described, response: TestResponse, name: str, text: str) -> str | None:
        schema = described.parameters("query")[name]
        is_number = schema.get("type") != "integer" or re.fullmatch(r"-?\d{1,18}", text)
        return self.says(response, name, 400 if str(described) == self.no_number and not is_number else 422)


TAKEN_AS_FALSE = ("DELETE /assistants/{assistant_id}", "delete_threads")  # every value is accepted


@pytest.fixture(params=["control plane", "deployment"])
def interface(request: pytest.FixtureRequest) -> Interface:
    if request.param == "deployment":
        return DeploymentInterface(request.getfixturevalue("api"))
    control = request.getfixturevalue("control")
    return Interface(control, records(control))


def test_a_body_of_another_kind_is_refused(interface: Interface) -> None:
    """The first operation gets all of BODIES. All operations share a parser, so the others get two."""
    problems = []
    for number, (described, schema) in enumerate(interface.with_body()):
        for raw, kind in BODIES if number == 0 else EVERYWHERE:
            if raw == b"[]" and schema["type"] == "array":
                continue
            if problem := interface.lacks_of_body(interface.send(described, raw), kind):
                problems.append(f"{described} {raw[:20]!r}: {problem}")
    assert not problems, "\n".join(problems)


def test_no_body_is_refused_where_one_is_needed(interface: Interface) -> None:
    for described, _ in interface.with_body():
        for raw in (b"", b"  \n") if described.said["requestBody"]["required"] else ():
            assert interface.lacks_of_absence(interface.send(described, raw)) is None, described


def test_no_body_is_an_empty_object(api: Api) -> None:
    interface = DeploymentInterface(api)
    interface.known |= {"thread_id": api.post("/threads").json["thread_id"], "run_id": MISSING}
    optional = [
        described for described, _ in interface.with_body() if not described.said["requestBody"]["required"]
    ]
    assert {"POST /threads", "POST /threads/search", "POST /assistants/search"} <= set(map(str, optional))
    for described in optional:
        absent, empty = (interface.send(described, raw) for raw in (b"", b"{}"))
        assert absent.status_code == empty.status_code, (described, absent.text)


def test_a_body_that_is_too_large_is_refused(interface: Interface) -> None:
    interface.client.application.config["MAX_CONTENT_LENGTH"] = MAX_BYTES
    raw = b'{"a": "' + b"x" * MAX_BYTES + b'"}'
    for described, _ in interface.with_body():
        response = interface.send(described, raw)
        assert response.status_code == 413, described
        assert response.json == {"detail": f"The request body is larger than {MAX_BYTES} bytes"}, described


def test_every_field_is_checked_and_named(interface: Interface) -> None:
    problems = []
    count = 0
    for described, schema in interface.with_body():
        for loc, body, what in interface.bad_bodies(schema):
            response = interface.send(described, orjson.dumps(body))
            count += 1
            if problem := interface.lacks_of_field(described, response, loc):
                problems.append(f"{described} {what} at {loc}: {problem}")
    assert not problems, "\n".join(problems)
    assert count > interface.least_fields


def test_every_id_in_a_path_is_checked(interface: Interface) -> None:
    problems = []
    for described in interface.operations:
        body = interface.smallest(described)
        for name, expected in described.parameters("path").items():
            for text in NO_UUIDS if expected.get("format") == "uuid" else ():
                response = interface.send(described, body, good_query(described), **{name: text})
                if problem := interface.lacks_of_id(described, response, name):
                    problems.append(f"{described} {name}={text}: {problem}")
    assert not problems, "\n".join(problems)


def test_every_word_of_a_query_is_checked(interface: Interface) -> None:
    problems = []
    for described in interface.operations:
        body = interface.smallest(described) if described.method != "GET" else None
        for name, schema in described.parameters("query").items():
            for text in bad_words(schema) if (str(described), name) != TAKEN_AS_FALSE else ():
                response = interface.send(described, body, {**good_query(described), name: text})
                if problem := interface.lacks_of_word(described, response, name, text):
                    problems.append(f"{described} {name}={text!r}: {problem}")
    assert not problems, "\n".join(problems)


def test_json_text_is_what_the_cases_are_made_of(control: ControlPlane) -> None:
    """Guards against a generator without cases, which would let every test pass."""
    document = document_of(control)
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
