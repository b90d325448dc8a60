"""Example bodies in the API document, which its page fills in: every one of them succeeds."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

import tests.support.factories as make
from shared import assistants
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.infra.postgres import dumps
from tests.contract.conftest import Api, ControlPlane, MakeApp
from tests.contract.statements import execute
from web.schemas.openapi import document
from web.schemas.openapi_examples import sample, with_graph
from web.schemas.operations import of_view

# These need a graph host's answer, an existing run, or a client that accepts a stream.
NOT_FOR_ANY = {
    "/threads/{thread_id}/state",
    "/threads/{thread_id}/state/checkpoint",
    "/threads/{thread_id}/runs/{run_id}/retry",
    "/runs/cancel",
    "/a2a/{assistant_id}",
    "/runs/{run_id}/feedback",
    "/threads/{thread_id}/runs/{run_id}/feedback",
    "/feedback/{token}",
    "/ag-ui/{assistant_id}",
}


def bodies(document: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """Return the example of every operation with a body, by method and path."""
    return {
        (method, path): operation["requestBody"]["content"]["application/json"]["examples"]["example"][
            "value"
        ]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    }


def test_every_body_of_a_deployment_s_page_succeeds(api: Api) -> None:
    sent = 0
    for (method, path), body in bodies(api.get("/openapi.json").json).items():
        if method in ("post", "put") and path not in NOT_FOR_ANY:
            thread_id = api.post("/threads").json["thread_id"]
            ids = {
                "thread_id": thread_id,
                "assistant_id": assistants.default_id("agent"),
                "component_set": make.components(api.deployment),
                "question_id": make.question(api.deployment, assistant_id=assistants.default_id("agent")),
            }
            response = api.call(
                method, path.format(**ids), body, buffered=False, headers={"Accept": "application/json"}
            )
            assert response.status_code in (200, 204), (path, response.text)
            response.close()
            sent += 1
    assert sent >= 20


def test_every_body_that_makes_something_of_the_control_plane_succeeds(
    app: Flask, control: ControlPlane, lenient: None
) -> None:
    examples = bodies(document(app))
    for path in ("/v2/deployments", "/v2/auth/providers", "/v2/keys", "/v2/organizations"):
        response = control.post(path, examples["post", path])
        assert response.status_code in (200, 201), (path, response.text)


def test_every_example_is_what_its_schema_takes(app: Flask) -> None:
    schemas = {body for view in app.view_functions.values() if (body := of_view(view).body) is not None}
    for schema in schemas:
        schema().load(schema.example)


def test_no_two_entries_of_a_page_have_one_name(app: Flask) -> None:
    for of_deployment in (False, True):
        found = document(app, of_deployment=of_deployment)
        entries = [operation for path in found["paths"].values() for operation in path.values()]
        names = [entry["summary"] for entry in entries]
        assert sorted(names) == sorted(set(names))
        groups = [group["name"] for group in found["tags"]]
        assert {entry["tags"][0] for entry in entries} == set(groups)
        assert all(group[0].isupper() for group in groups)


INPUT = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["text"],
}


@pytest.fixture
def local(app_with: MakeApp) -> FlaskClient:
    """Client of a developer's own service, which requires no key."""
    client = app_with(dev_deployment="chat").test_client()
    make.deployment("chat", organization_id=DEFAULT_ORGANIZATION_ID, graphs=("writer",))
    execute("UPDATE graph SET schemas = CAST(:s AS json)", s=dumps({"input_schema": INPUT}))
    return client


def test_in_dev_the_page_asks_for_no_key_and_names_the_deployments_own_graph(local: FlaskClient) -> None:
    found: Any = local.get("/openapi.json").json
    assert found["security"] == []
    assert "securitySchemes" not in found["components"]
    run = {"assistant_id": "writer", "input": {"text": "Hello"}}
    assert bodies(found)["post", "/runs"] == run
    assert bodies(found)["post", "/runs/batch"] == [run]
    assert bodies(found)["post", "/assistants"]["graph_id"] == "writer"
    assert found["components"]["schemas"]["RunCreate"]["examples"] == [run]
    assert local.post("/runs", json=run).status_code == 200
    assert 'allow-authentication="false"' in local.get("/docs").text


def test_a_key_shows_a_graph_of_the_deployment_in_the_examples(api: Api, anonymous: FlaskClient) -> None:
    path = f"/d/{api.deployment.name}/openapi.json"
    own: Any = api.client.get(path).json
    others: Any = anonymous.get(path).json
    assert bodies(own)["post", "/runs"]["assistant_id"] == "agent"
    assert own["security"]
    assert bodies(others)["post", "/runs"]["assistant_id"] == "GRAPH_ID"


def test_a_stranger_s_page_asks_for_a_key_and_names_no_graph_of_the_deployment(local: FlaskClient) -> None:
    found: Any = local.get("/openapi.json", headers={"Origin": "https://elsewhere.example"}).json
    assert found["security"]
    assert "securitySchemes" in found["components"]
    assert "writer" not in str(found)
    page = local.get("/docs", headers={"Origin": "https://elsewhere.example"})
    assert 'allow-authentication="true"' in page.text


def test_a_sample_fits_its_schema() -> None:
    rows: list[tuple[dict[str, Any], Any]] = [
        ({}, {}),
        (
            {"properties": {"messages": {"type": "array"}, "n": {}}},
            {"messages": [{"role": "user", "content": "Hello"}]},
        ),
        ({"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}, {"a": 1}),
        ({"properties": {"a": {"anyOf": [{"type": "number"}, {"type": "null"}]}}}, {"a": 1.0}),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"enum": ["x", "y"]}}}, {"a": "x"}),
        ({"properties": {"a": {"type": "array", "default": [5]}}}, {"a": [5]}),
        ({"type": "string"}, "Hello"),
    ]
    for schema, value in rows:
        assert (schema, sample(schema, schema)) == (schema, value)
    holds_itself = {"$ref": "#/$defs/N", "$defs": {"N": {"properties": {"n": {"$ref": "#/$defs/N"}}}}}
    assert with_graph({"paths": {}}, "g", holds_itself) == {"paths": {}}
