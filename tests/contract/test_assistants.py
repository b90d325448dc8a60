"""Assistants over HTTP: records, versions, search, graphs, errors."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import update

import tests.support.factories as make
from shared import assistants
from shared.infra.postgres import connection
from shared.models import GRAPH
from tests.contract.conftest import Api

FIELDS = [
    "assistant_id", "graph_id", "config", "context", "metadata", "name", "created_at", "updated_at",
    "version", "description",
]  # fmt: skip


@pytest.fixture
def made(api: Api) -> dict[str, Any]:
    """An assistant at version 1."""
    body = {"graph_id": "agent", "context": {"word": "one"}, "name": "first", "metadata": {"team": "a"}}
    return api.post("/assistants", {**body, "description": "says one"}).json


def test_a_new_assistant_has_defaults_and_the_contracts_key_order(api: Api) -> None:
    response = api.post("/assistants", {"graph_id": "agent", "an unknown field": 1})

    record = response.json
    assert response.status_code == 200
    assert list(record) == FIELDS
    assert UUID(record["assistant_id"]).version == 4
    assert {name: record[name] for name in FIELDS[1:6]} == {
        "graph_id": "agent", "config": {}, "context": {}, "metadata": {}, "name": "Untitled",
    }  # fmt: skip
    assert (record["version"], record["description"]) == (1, None)
    assert record["created_at"] == record["updated_at"]
    assert record["created_at"].endswith("+00:00")
    assert datetime.fromisoformat(record["created_at"]).utcoffset() is not None


def test_everything_that_can_be_set_is_kept(api: Api) -> None:
    sent = {
        "graph_id": "agent",
        "assistant_id": str(uuid4()),
        "config": {"tags": ["a"], "recursion_limit": 7, "own": {"kept": [1, None]}},
        "metadata": {"deep": {"a": None}},
        "name": "",
        "description": "d",
    }

    record = api.post("/assistants", sent).json

    assert {name: record[name] for name in sent} == sent
    assert api.get(f"/assistants/{sent['assistant_id']}").json == record


def test_context_and_configurable_are_one_thing(api: Api) -> None:
    for sent in ({"context": {"a": 1}}, {"config": {"configurable": {"a": 1}}}):
        record = api.post("/assistants", {"graph_id": "agent", **sent}).json
        assert (record["context"], record["config"]) == ({"a": 1}, {"configurable": {"a": 1}}), sent


def test_before_anything_serves_no_graph_is_known(api: Api) -> None:
    new = make.deployment("new", organization_id=api.deployment.organization_id, serving=False)
    starting = Api(api.client, new)
    detail = {"detail": "The deployment has no serving revision yet. Poll its latest revision."}
    for path in ("/assistants", "/assistants/search", "/assistants/count"):
        response = starting.post(path, {"graph_id": "agent"})
        assert (response.status_code, response.json) == (409, detail)


def test_a_taken_id_is_409_or_the_existing_record(api: Api, made: dict[str, Any]) -> None:
    body = {"graph_id": "other", "assistant_id": made["assistant_id"], "name": "second"}

    refused = api.post("/assistants", body)
    again = api.post("/assistants", {**body, "if_exists": "do_nothing"})

    detail = f"Assistant {made['assistant_id']} already exists"
    assert (refused.status_code, refused.json) == (409, {"detail": detail})
    assert (again.status_code, again.json) == (200, made)
    assert api.post(f"/assistants/{made['assistant_id']}/versions").json[0]["version"] == 1


def test_default_assistants_have_the_ids_clients_compute_whatever_their_graph(api: Api) -> None:
    assert str(assistants.default_id("echo")) == "046b5dc7-2108-582c-9c6c-31d556d138f0"
    assert str(assistants.default_id("agent")) == "fe096781-5601-53d2-b2f6-0d3403f7e9ca"
    record = api.get("/assistants/fe096781-5601-53d2-b2f6-0d3403f7e9ca").json
    assert (record["graph_id"], record["name"], record["version"]) == ("agent", "agent", 1)
    api.patch("/assistants/agent", {"graph_id": "other"})
    assert api.get("/assistants/agent/schemas").json["graph_id"] == "other"


def test_a_graph_id_names_its_default_assistant_until_that_is_deleted(api: Api) -> None:
    changed = api.patch("/assistants/agent", {"context": {"word": "two"}}).json
    assert changed["assistant_id"] == str(assistants.default_id("agent"))
    assert changed["version"] == 2
    assert api.get("/assistants/agent").json == changed
    assert [version["version"] for version in api.post("/assistants/agent/versions").json] == [2, 1]
    assert api.post("/assistants/agent/latest", {"version": 1}).json["context"] == {}
    assert api.delete("/assistants/agent").status_code == 204
    assert api.get("/assistants/agent").status_code == 404
    response = api.post("/runs", {"assistant_id": "agent"})
    assert (response.status_code, response.json) == (404, {"detail": "Thread or assistant not found."})


def test_a_name_that_is_no_graph_names_no_assistant(api: Api) -> None:
    calls = (
        ("GET", "", None), ("PATCH", "", {}), ("DELETE", "", None), ("POST", "/versions", {}),
        ("POST", "/latest", {"version": 1}),
    )  # fmt: skip
    detail = "Invalid assistant ID: must be a UUID or the id of a graph"
    for name in ("nope", "Agent", "agent2", "0" * 36, "fe096781560153d2b2f60d3403f7e9ca"):
        for method, path, body in calls:
            response = api.call(method, f"/assistants/{name}{path}", body)
            answer = (response.status_code, response.json)
            assert answer == (422, {"detail": detail}), (method, name, path)


def change(api: Api, made: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    response = api.patch(f"/assistants/{made['assistant_id']}", body)
    assert response.status_code == 200
    return response.json


def test_a_new_context_replaces_everything_of_the_old(api: Api) -> None:
    config = {"tags": ["t"], "recursion_limit": 9, "configurable": {"word": "one", "loud": True}}
    made = api.post("/assistants", {"graph_id": "agent", "config": config}).json

    changed = change(api, made, {"context": {"word": "two"}})

    assert changed["version"] == 2
    assert changed["context"] == {"word": "two"}
    assert changed["config"] == {"configurable": {"word": "two"}}
    assert changed["created_at"] == made["created_at"]
    assert changed["updated_at"] > made["updated_at"]


def test_what_a_change_makes_of_config_and_context(api: Api, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ({"context": {}}, {"tags": ["t"]}, {}),
        ({"config": {"configurable": {"b": 2}}}, {"configurable": {"b": 2}}, {"b": 2}),
        ({"config": {"recursion_limit": 3}}, {"recursion_limit": 3}, {"a": 1}),
        ({"config": {}}, {}, {"a": 1}),
        ({"name": "n"}, {"tags": ["t"], "configurable": {"a": 1}}, {"a": 1}),
        ({}, {"tags": ["t"], "configurable": {"a": 1}}, {"a": 1}),
    ]
    for body, config, context in rows:
        with subtests.test(body=body, config=config, context=context):
            before = {"tags": ["t"], "configurable": {"a": 1}}
            made = api.post("/assistants", {"graph_id": "agent", "config": before}).json
            changed = change(api, made, body)
            assert (changed["version"], changed["config"], changed["context"]) == (2, config, context)


def test_metadata_is_merged_and_the_rest_replaced(api: Api, made: dict[str, Any]) -> None:
    changed = change(
        api, made, {"metadata": {"more": {"b": 1}, "team": None}, "name": "n", "graph_id": "other"}
    )
    assert changed["metadata"] == {"team": None, "more": {"b": 1}}
    assert (changed["name"], changed["graph_id"], changed["description"]) == ("n", "other", "says one")
    changed = change(api, made, {"description": None})
    assert changed["description"] is None
    assert api.patch(f"/assistants/{made['assistant_id']}", {"metadata": None}).status_code == 422
    assert api.get(f"/assistants/{made['assistant_id']}").json == changed, "a refusal makes no version"


def test_going_back_to_a_version_brings_all_of_it_and_numbers_go_on(api: Api, made: dict[str, Any]) -> None:
    later = {"context": {"word": "two"}, "name": "n", "description": None, "graph_id": "other"}
    change(api, made, {**later, "metadata": {"team": "b"}})

    restored = api.post(f"/assistants/{made['assistant_id']}/latest", {"version": 1}).json

    assert {**restored, "updated_at": None} == {**made, "updated_at": None}
    assert restored["updated_at"] > made["updated_at"]
    assert api.get(f"/assistants/{made['assistant_id']}").json == restored

    changed = change(api, made, {"name": "third"})

    assert (changed["version"], changed["context"]) == (3, {"word": "one"})
    listed = api.post(f"/assistants/{made['assistant_id']}/versions", {}).json
    assert [version["version"] for version in listed] == [3, 2, 1]


def test_versions_are_listed_newest_first_without_updated_at(api: Api, made: dict[str, Any]) -> None:
    for number in range(3):
        change(api, made, {"metadata": {"odd": number % 2 == 0}})
    path = f"/assistants/{made['assistant_id']}/versions"

    listed = api.post(path, {"limit": 2, "offset": 1}).json

    assert [version["version"] for version in listed] == [3, 2]
    assert list(listed[0]) == [name for name in FIELDS if name != "updated_at"]
    assert [v["version"] for v in api.post(path, {"metadata": {"odd": True}}).json] == [4, 2]
    assert api.post(path, {"metadata": {"no": 1}}).json == []
    assert len(api.call("POST", path).json) == 4


def test_search_pages_with_the_true_total(api: Api) -> None:
    for number in range(5):
        api.post("/assistants", {"graph_id": "agent", "name": f"n{number}", "metadata": {"mark": 1}})
    wanted = {"metadata": {"mark": 1}, "sort_by": "name", "sort_order": "asc", "select": ["name"]}

    first = api.post("/assistants/search", {**wanted, "limit": 2})
    last = api.post("/assistants/search", {**wanted, "limit": 2, "offset": 4})

    assert first.json == [{"name": "n0"}, {"name": "n1"}]
    assert (first.headers["X-Pagination-Total"], first.headers["X-Pagination-Next"]) == ("5", "2")
    assert last.json == [{"name": "n4"}]
    assert last.headers["X-Pagination-Total"] == "5"
    assert "X-Pagination-Next" not in last.headers
    assert api.post("/assistants/count", {"metadata": {"mark": 1}}).json == 5


def test_search_is_newest_first_and_ten_long(api: Api) -> None:
    ids = [api.post("/assistants", {"graph_id": "agent"}).json["assistant_id"] for _ in range(11)]
    found = [record["assistant_id"] for record in api.post("/assistants/search", {}).json]
    assert found == ids[:0:-1]


def test_filters_must_all_match(api: Api) -> None:
    make = {"graph_id": "agent", "name": "Blue_Bird", "metadata": {"a": {"b": 1, "c": 2}, "d": [1]}}
    made = api.post("/assistants", make).json
    api.post("/assistants", {"graph_id": "other", "name": "BlueXBird", "metadata": {"a": {"b": 1}}})

    def found(**filters: Any) -> list[str]:
        return [record["name"] for record in api.post("/assistants/search", filters).json]

    assert found(name="blue_b") == ["Blue_Bird"]
    assert found(name="BLUE", graph_id="other") == ["BlueXBird"]
    assert found(metadata={"a": {"b": 1}}, graph_id="agent") == ["Blue_Bird"]
    assert found(metadata={"a": {"b": 1}, "d": [1]}) == ["Blue_Bird"]
    assert found(metadata={"a": {"b": 2}}) == []
    change(api, made, {"name": "renamed"})
    assert found(name="blue_b") == [], "only the active version counts"


def test_delete_takes_all_versions_and_cancels_live_runs_or_takes_their_threads_too(api: Api) -> None:
    def deleted(query: str) -> tuple[str, str]:
        """Delete an assistant with a live run, with this query. Returns the paths of its thread and run."""
        made = api.post("/assistants", {"graph_id": "agent"}).json
        change(api, made, {})
        path = f"/threads/{api.post('/threads').json['thread_id']}"
        run = api.post(f"{path}/runs", {"assistant_id": made["assistant_id"]}).json
        response = api.delete(f"/assistants/{made['assistant_id']}?{query}")
        assert (response.status_code, response.data) == (204, b"")
        assert api.get(f"/assistants/{made['assistant_id']}").status_code == 404
        return path, f"{path}/runs/{run['run_id']}"

    thread, run = deleted("delete_threads=perhaps")
    assert api.get(run).json["status"] == "interrupted"
    assert api.get(thread).json["status"] == "idle"
    gone, _ = deleted("delete_threads=true")
    assert api.get(gone).status_code == 404
    assert api.get(thread).status_code == 200


@pytest.fixture
def drawn(api: Api) -> Api:
    """Deployment whose graph `agent` has drawings, schemas and nested subgraphs."""
    drawings = {depth: {"nodes": [{"id": depth}], "edges": []} for depth in ("0", "1", "all")}
    names = ("input_schema", "output_schema", "state_schema", "config_schema", "context_schema")
    schemas = {name: {"title": name} for name in names}
    subgraphs = {name: {"title": name} for name in ("child", "child|inner", "child|inner|low", "sister")}
    with connection() as conn:
        conn.execute(
            update(GRAPH)
            .where(GRAPH.c.graph_id == "agent")
            .values(drawings=drawings, schemas=schemas, subgraphs=subgraphs)
        )
    return api


def test_a_graph_shows_its_schemas_and_is_drawn_to_the_depth_asked_for(drawn: Api) -> None:
    rows: list[Any] = [("", "0"), ("?xray=false", "0"), ("?xray=0", "0"), ("?xray=1", "1"), ("?xray=true", "all"),
     ("?xray=True", "all"), ("?xray=9", "all")]  # fmt: skip
    for path in ("/assistants/agent", f"/assistants/{assistants.default_id('agent')}"):
        for query, depth in rows:
            drawing = drawn.get(f"{path}/graph{query}").json
            assert (path, query, drawing) == (path, query, {"nodes": [{"id": depth}], "edges": []})
        assert list(drawn.get(f"{path}/schemas").json) == [
            "graph_id", "input_schema", "output_schema", "state_schema", "config_schema", "context_schema"
        ]  # fmt: skip


def test_subgraphs_by_name(drawn: Api, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ("", ["child", "sister"]),
        ("?recurse=true", ["child", "child|inner", "child|inner|low", "sister"]),
        ("/child", ["child"]),
        ("/child%7Cinner", ["child|inner"]),
        ("/child?recurse=1", ["child", "child|inner", "child|inner|low"]),
        ("/nobody", []),
    ]
    for path, names in rows:
        with subtests.test(path=path, names=names):
            assert list(drawn.get(f"/assistants/agent/subgraphs{path}").json) == names
