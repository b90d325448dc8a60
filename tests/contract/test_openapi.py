"""The API document and its page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

import orjson
import pytest
from flask import Flask
from flask.testing import FlaskClient


@pytest.fixture
def document(anonymous: FlaskClient) -> dict[str, Any]:
    found: Any = anonymous.get("/openapi.json").json
    return found


def test_it_documents_every_route_of_both_interfaces(app: Flask, document: dict[str, Any]) -> None:
    for rule in app.url_map.iter_rules():
        if rule.rule.endswith("/docs") or rule.rule.startswith("/o/"):  # web pages
            continue
        path = re.sub(r"<(?:[^:<>]+:)?([^<>]+)>", r"{\1}", rule.rule)
        methods = {method.lower() for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}}
        assert methods <= set(document["paths"][path]), path


def test_every_operation_says_what_it_is_and_what_the_server_refuses_by_itself(
    document: dict[str, Any],
) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
            assert {"414", "431"} <= operation["responses"].keys(), (method, path)
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids))


def test_both_interfaces_say_what_they_answer(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        if not path.startswith(("/v1/", "/v2/", "/d/{deployment}/")):
            continue
        for method, operation in operations.items():
            assert not operation["summary"].islower(), f"{method} {path}: the summary is a sentence"
            good = {status: said for status, said in operation["responses"].items() if status < "400"}
            for status, said in good.items():
                assert status in ("101", "202", "204", "302", "303", "304") or _is_described(said), (
                    method,
                    path,
                    status,
                )
            assert good or "400" in operation["responses"] or "404" in operation["responses"]


def _is_described(answer: dict[str, Any]) -> bool:
    return all(content["schema"] for content in answer["content"].values())


# These start, stop or read something, so repeating the request creates no second object.
CREATES_NOTHING = (
    "/answer",  # a question takes one answer
    "/build_logs",
    "/cancel",
    "/deploy_logs",
    "/drain",
    "/interrupt",
    "/link",  # a stored response would contain the link's token
    "/link/question",
    "/traffic/abort",
    "/traffic/promote",
    "/push-token",
    "/resume",
    "/v2/listeners",
    "/v2/auth/authenticate",
    "/v2/auth/callback/{provider_id}",
    "/v2/sign-in/device",
    "/v2/sign-in/device/answer",
    "/v2/sign-in/device/token",
    "/v2/sign-out",
)


def test_whatever_creates_takes_an_idempotency_key(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        if not path.startswith(("/v1/", "/v2/")) or path.endswith(CREATES_NOTHING):
            continue
        names = [parameter["name"] for parameter in operations.get("post", {}).get("parameters", ())]
        assert "post" not in operations or "Idempotency-Key" in names, path


RULES = Path(__file__).with_name("request_rules.txt")
KEYWORDS = (
    "type", "format", "enum", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "default",
)  # fmt: skip


def test_requests_have_the_rules_of_the_contract(document: dict[str, Any]) -> None:
    """Types, limits and required fields of all requests. test_bad_bodies.py proves that the service enforces them."""
    found, known = sorted(set(rules(document))), RULES.read_text().splitlines()
    changes = list(unified_diff(known, found, "the contract", "the document", n=0, lineterm=""))
    assert changes == [], "a rule of requests is new or has changed: say so in request_rules.txt"


def rules(document: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each parameter of an operation and each field of a body."""
    schemas = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            named = f"{method.upper()} {path}"
            for parameter in operation["parameters"]:
                place = f"{named}?{parameter['name']}" + " required" * parameter.get("required", False)
                if parameter["in"] == "query":
                    yield from rules_of(parameter["schema"], schemas, place)
            body = operation.get("requestBody")
            if body is not None and "application/json" in body["content"]:
                place = f"{named} body" + " required" * body["required"]
                yield from rules_of(body["content"]["application/json"]["schema"], schemas, place)


def rules_of(schema: dict[str, Any], schemas: dict[str, Any], place: str) -> Iterator[str]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield f"{place}: {name}"
        yield from rules_of(schemas[name], schemas, name)
        return
    said = " ".join(f"{word}={orjson.dumps(schema[word]).decode()}" for word in KEYWORDS if word in schema)
    yield f"{place}: {said}"
    for name, inner in schema.get("properties", {}).items():
        field = f"{place.removesuffix(' required')}.{name}" + " required" * (
            name in schema.get("required", ())
        )
        yield from rules_of(inner, schemas, field)
    for number, inner in enumerate(schema.get("anyOf", ())):
        yield from rules_of(inner, schemas, f"{place} or{number}")
    if isinstance(schema.get("items"), dict):
        yield from rules_of(schema["items"], schemas, f"{place}[]")


def test_every_reference_leads_somewhere_and_every_array_and_object_says_what_is_in_it(
    document: dict[str, Any],
) -> None:
    for name in re.findall(r'"#/components/schemas/([^"]+)"', orjson.dumps(document).decode()):
        assert name in document["components"]["schemas"]
    known = {"properties", "additionalProperties", "maxProperties"}
    for path, part in parts(document):
        assert not is_a(part, "array") or "items" in part, path
        assert not is_a(part, "object") or known & part.keys(), path


def parts(part: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object of a document with its path."""
    if isinstance(part, dict):
        yield path, part
    for name, inner in (
        part.items() if isinstance(part, dict) else enumerate(part if isinstance(part, list) else ())
    ):
        yield from parts(inner, f"{path}/{name}")


def is_a(part: dict[str, Any], kind: str) -> bool:
    kinds = part.get("type", [])
    return kind in (kinds if isinstance(kinds, list) else [kinds])


def test_conditions_between_fields_are_said(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]

    def said(schema: str, field: str) -> str:
        return schemas[schema]["properties"][field].get("description", "")

    assert "Required if `source` is `github`" in said("SourceConfig", "repo_url")
    assert "without `agent`" in said("DeploymentCreate", "name")
    assert "must not be `langgraph`" in said("ItemPut", "namespace")
    assert schemas["ItemPut"]["properties"]["namespace"]["items"]["pattern"] == "^[^.]+$"
    assert "bytes as JSON" in said("ThreadCreate", "metadata")


def test_each_interface_has_its_own_form_of_422(document: dict[str, Any]) -> None:
    def form(path: str, method: str) -> str:
        refusal = document["paths"][path][method]["responses"]["422"]
        return str(refusal["content"]["application/json"]["schema"]["$ref"]).rpartition("/")[2]

    assert form("/v2/deployments", "post") == "Violations"
    assert form("/d/{deployment}/threads", "post") == "Error"


def test_a_deployment_documents_itself(anonymous: FlaskClient) -> None:
    document: Any = anonymous.get("/d/chat/openapi.json").json
    assert document["servers"] == [{"url": "/d/chat"}]
    assert "/threads" in document["paths"]
    assert not any(path.startswith(("/v2", "/d/")) for path in document["paths"])
    for operations in document["paths"].values():
        for operation in operations.values():
            assert "deployment" not in [parameter["name"] for parameter in operation["parameters"]]
