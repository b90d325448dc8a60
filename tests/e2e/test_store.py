"""Graph code and API clients use the same store."""

from __future__ import annotations

from pathlib import Path

import pytest
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_sdk.errors import APIStatusError

from tests.support.stack import Stack

PROJECTS = Path(__file__).parent.parent / "projects"


def test_a_graph_and_its_client_share_the_store(sdk: SyncLangGraphClient) -> None:
    thread_id = sdk.threads.create()["thread_id"]

    assert sdk.runs.wait(None, "remembers", input={"text": "ann"})["log"] == [1, ["ann"], 1]
    assert sdk.runs.wait(thread_id, "remembers", input={"text": "ann"})["log"] == [2, ["ann"], 2]

    item = sdk.store.get_item(("visits", "ann"), "count")
    assert item["value"] == {"n": 2}
    sdk.store.put_item(("visits", "bob"), "count", {"n": 41})
    assert sdk.runs.wait(None, "remembers", input={"text": "bob"})["log"] == [42, ["ann", "bob"], 42]
    assert sdk.store.list_namespaces(prefix=["visits"])["namespaces"] == [
        ["visits", "ann"],
        ["visits", "bob"],
    ]
    found = sdk.store.search_items(("visits",), filter={"n": {"$gt": 2}})["items"]
    assert [item["namespace"] for item in found] == [["visits", "bob"]]
    sdk.store.delete_item(["visits", "ann"], key="count")
    assert sdk.store.get_item(("visits", "ann"), "count") is None


@pytest.mark.parametrize("name", ["meaning", pytest.param("meaning_typescript", marks=pytest.mark.release)])
def test_a_store_with_an_index_is_searched_by_meaning(stack: Stack, name: str) -> None:
    sdk = stack.sdk(stack.deploy(PROJECTS / name, name=name.replace("_", "-")))
    sdk.store.put_item(("notes",), "a", {"text": "rain and rain"})
    sdk.store.put_item(("notes",), "b", {"text": "coffee"}, index=False)

    result = sdk.runs.wait(None, "notes", input={"note": "tea for two", "question": "a cup of tea"})

    assert result["found"][0] == ["tea for two", 1.0]
    found = sdk.store.search_items(("notes",), query="does it rain?")["items"]
    assert [(item["key"], item["score"] is None) for item in found] == [
        ("a", False),
        ("tea for two", False),
        ("b", True),
    ]
    sdk.store.put_item(("notes",), "a", {"text": "nothing but coffee"})
    assert sdk.store.search_items(("notes",), query="coffee", limit=1)["items"][0]["key"] == "a"

    with pytest.raises(APIStatusError, match="this cannot be embedded"):
        sdk.store.put_item(("notes",), "c", {"text": "unreadable"})
    failed = sdk.runs.wait(None, "notes", input={"note": "unreadable", "question": "?"}, raise_error=False)
    assert failed["__error__"]["message"] == "this cannot be embedded"
    assert sdk.store.get_item(("notes",), "c") is None
    assert sdk.store.get_item(("notes",), "unreadable") is None


@pytest.mark.release
def test_the_schemas_of_a_typescript_graph_have_the_types_of_its_state(stack: Stack) -> None:
    sdk = stack.sdk(stack.deploy(PROJECTS / "meaning_typescript", name="meaning-typescript"))

    schemas = sdk.assistants.get_schemas(sdk.assistants.search()[0]["assistant_id"])

    assert schemas["input_schema"]["properties"]["note"] == {"type": "string"}
    found = schemas["state_schema"]["properties"]["found"]
    assert found["items"]["type"] == "array"
