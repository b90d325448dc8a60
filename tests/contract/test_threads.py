"""Threads over HTTP: records, changes, search, the newest state, errors."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

import tests.support.factories as make
from shared.eventlog import events
from shared.infra import redis
from shared.models import ThreadStatus
from tests.contract.conftest import Api
from tests.support.acting import Actor, act

FIELDS = [
    "thread_id", "created_at", "updated_at", "state_updated_at", "metadata", "status", "config", "values",
]  # fmt: skip
MISSING = "00000000-0000-0000-0000-00000000dead"


def new(api: Api, **body: Any) -> dict[str, Any]:
    response = api.post("/threads", body)
    assert response.status_code == 200, response.text
    return response.json


def test_a_new_thread_is_the_contracts_sample(api: Api) -> None:
    record = new(api)

    assert list(record) == FIELDS
    assert UUID(record["thread_id"]).version == 7
    assert record["created_at"] == record["updated_at"] == record["state_updated_at"]
    assert record["created_at"].endswith("+00:00")
    assert {name: record[name] for name in FIELDS[4:]} == {
        "metadata": {}, "status": "idle", "config": {}, "values": None,
    }  # fmt: skip


def test_an_id_and_metadata_are_taken_and_a_taken_id_is_409_or_the_existing_record(api: Api) -> None:
    thread_id = str(uuid4())
    made = new(api, thread_id=thread_id.upper(), metadata={"a": {"b": None}}, supersteps=[])
    assert (made["thread_id"], made["metadata"]) == (thread_id, {"a": {"b": None}})
    body = {"thread_id": thread_id, "metadata": {"b": 1}}

    refused = api.post("/threads", body)
    again = api.post("/threads", {**body, "if_exists": "do_nothing"})

    detail = f"Thread with ID {thread_id} already exists"
    assert (refused.status_code, refused.json) == (409, {"detail": detail})
    assert (again.status_code, again.json) == (200, made)


def test_a_patch_merges_metadata_and_moves_updated_at_alone(api: Api) -> None:
    made = new(api, metadata={"a": 1, "b": {"c": 1}})

    changed = api.patch(f"/threads/{made['thread_id']}", {"metadata": {"a": None, "b": {"d": 2}}}).json

    assert changed["metadata"] == {"a": None, "b": {"d": 2}}
    assert changed["updated_at"] > made["updated_at"]
    assert changed["state_updated_at"] == made["state_updated_at"]
    path = f"/threads/{made['thread_id']}"
    assert api.get(f"{path}?include=ttl,nonsense").json == changed
    minimal = api.patch(path, {"metadata": {"a": 1}}, headers={"Prefer": "return=minimal"})
    assert (minimal.status_code, minimal.data) == (204, b"")
    assert api.get(path).json["metadata"] == {"a": 1, "b": {"d": 2}}


def test_delete_is_204_takes_everything_and_ends_live_runs_and_their_logs(api: Api) -> None:
    for status in ("pending", "running", "success"):
        thread_id = new(api)["thread_id"]
        run_id = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"}).json["run_id"]
        if status == "running":
            Actor(run_id)
        elif status == "success":
            act(run_id, {})

        response = api.delete(f"/threads/{thread_id}")

        assert (status, response.status_code, response.data) == (status, 204, b"")
        assert api.get(f"/threads/{thread_id}").status_code == 404
        assert api.get(f"/runs/{run_id}/join").status_code == 404
        assert api.delete(f"/threads/{thread_id}").status_code == 404
        *_, last = events.logged(redis.client(), UUID(run_id), 0)
        assert last.is_last, status


def test_the_same_thread_id_may_exist_in_two_deployments(api: Api, neighbour: Api) -> None:
    thread_id = new(api)["thread_id"]
    new(neighbour, thread_id=thread_id, metadata={"mine": 1})
    assert api.get(f"/threads/{thread_id}").json["metadata"] == {}


def test_a_thread_after_an_interrupted_run(api: Api) -> None:
    made = new(api)
    path = f"/threads/{made['thread_id']}"
    body = {"assistant_id": "agent", "config": {"tags": ["t"], "metadata": {"m": 1}}}
    run = api.post(f"{path}/runs", body).json
    busy = api.get(path).json
    item = {"id": "4afa2b22", "value": {"question": "ok?"}}

    Actor(run["run_id"]).finish(
        {"q": "ok?"}, thread_status=ThreadStatus.INTERRUPTED, interrupts={"c519": [item]}
    )

    record = api.get(path).json
    assert (busy["status"], busy["values"], "error" in busy) == ("busy", None, False)
    assert list(record) == [*FIELDS, "error", "interrupts"]
    assert record["status"] == "interrupted"
    assert record["metadata"] == {"graph_id": "agent", "assistant_id": run["assistant_id"]}
    assert record["config"] == {"tags": ["t"], "metadata": {"m": 1}, "configurable": {}}
    assert (record["values"], record["error"]) == ({"q": "ok?"}, None)
    assert record["interrupts"] == {"c519": [item]}
    assert record["updated_at"] == record["state_updated_at"] > made["updated_at"]


def test_a_search_counts_only_so_far(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.sql.pages.MOST_COUNTED", 3)
    for _ in range(6):
        new(api, metadata={"mark": 1})
    pages = [api.post("/threads/search", {"offset": offset, "limit": 1}).headers for offset in (0, 2, 5, 9)]
    assert [page["X-Pagination-Total"] for page in pages] == ["3", "4", "6", "3"]
    assert [page.get("X-Pagination-Next") for page in pages] == ["1", "3", None, None]
    assert api.post("/threads/count", {"metadata": {"mark": 1}}).json == 6


def test_search_pages_with_the_true_total(api: Api) -> None:
    ids = sorted(new(api, metadata={"mark": 1})["thread_id"] for _ in range(3))
    new(api)
    wanted = {"metadata": {"mark": 1}, "sort_by": "thread_id", "sort_order": "asc", "limit": 2}

    first = api.post("/threads/search", {**wanted, "select": ["thread_id", "context", "error"]})
    last = api.post("/threads/search", {**wanted, "offset": 2})
    beyond = api.post("/threads/search", {**wanted, "offset": 9})

    assert first.json == [{"thread_id": id} for id in ids[:2]]
    assert (first.headers["X-Pagination-Total"], first.headers["X-Pagination-Next"]) == ("3", "2")
    assert [record["thread_id"] for record in last.json] == ids[2:]
    for response in (last, beyond):
        assert response.headers["X-Pagination-Total"] == "3"
        assert "X-Pagination-Next" not in response.headers
    assert api.post("/threads/count", {"metadata": {"mark": 1}}).json == 3


def test_search_is_by_last_change_first_and_ten_long(api: Api) -> None:
    ids = [new(api)["thread_id"] for _ in range(11)]
    api.patch(f"/threads/{ids[3]}", {"metadata": {}})
    found = [record["thread_id"] for record in api.post("/threads/search").json]
    rest = [id for id in reversed(ids) if id != ids[3]]
    assert found == [ids[3], *rest[:9]]


def test_values_are_searched_by_path_and_lists_as_a_whole(api: Api) -> None:
    threads = {}
    for name, values in {
        "one": {"a": {"b": 1, "c": [1, 2]}, "d": None},
        "two": {"a": {"b": 1, "c": [1]}},
        "none": None,
    }.items():
        threads[new(api, metadata={"name": name})["thread_id"]] = name
        if values is not None:
            run = api.post(f"/threads/{list(threads)[-1]}/runs", {"assistant_id": "agent"}).json
            act(run["run_id"], values)

    def found(values: dict[str, Any]) -> set[str]:
        names = {
            threads[record["thread_id"]] for record in api.post("/threads/search", {"values": values}).json
        }
        assert api.post("/threads/count", {"values": values}).json == len(names)
        return names

    assert found({"a": {"b": 1}}) == {"one", "two"}
    assert found({"a": {"c": [1]}}) == {"two"}
    assert found({"d": None}) == {"one"}
    assert found({"a": {}}) == set()
    assert found({}) == {"one", "two", "none"}


def test_extract_picks_values_by_path(api: Api) -> None:
    thread_id = new(api, metadata={"tags": ["x", "y"], "0": "zero"})["thread_id"]
    run = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"}).json
    act(run["run_id"], {"messages": [{"content": "first"}, {"content": "last"}]})
    paths = {
        "last": "values.messages[-1].content",
        "whole": "metadata.tags",
        "second": "metadata.tags[1]",
        "beyond": "metadata.tags[5]",
        "zero": "metadata.0",
        "mismatch": "values.messages.content",
        "into_text": "metadata.0.x",
    }

    [record] = api.post("/threads/search", {"extract": paths, "select": ["thread_id"]}).json

    assert record == {
        "thread_id": thread_id,
        "extracted": {
            "last": "last", "whole": ["x", "y"], "second": "y", "beyond": None, "zero": "zero",
            "mismatch": None, "into_text": None,
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("metadata", "messages", "title"),
    [
        ({}, [], ""),
        ({}, "no list", ""),
        ({}, [{"type": "system", "content": "Be brief."}, {"type": "human", "content": " Where is\n my order? "}],
         "Where is my order?"),
        ({}, [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}],
         "What is this?"),
        ({}, [{"type": "human", "content": "x" * 500}], "x" * 120),
        ({"title": "Order 1042"}, [{"type": "human", "content": "Where is it?"}], "Order 1042"),
        ({"title": "  "}, [{"type": "human", "content": "Where is it?"}], "Where is it?"),
    ],
)  # fmt: skip
def test_a_thread_is_titled_by_its_metadata_or_its_first_message(
    api: Api, metadata: dict[str, Any], messages: Any, title: str
) -> None:
    thread_id = new(api, metadata=metadata)["thread_id"]
    run = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"}).json
    act(run["run_id"], {"messages": messages})

    body = {"ids": [thread_id], "select": ["thread_id"], "extract": {"name": "title"}}
    assert api.post("/threads/search", body).json == [{"thread_id": thread_id, "extracted": {"name": title}}]
    assert api.get(f"/threads/{thread_id}?include=title").json["title"] == title
    assert "title" not in api.get(f"/threads/{thread_id}").json


def test_a_copy_has_the_checkpoints_but_not_the_runs(api: Api) -> None:
    source = new(api, metadata={"a": 1})["thread_id"]
    run = api.post(f"/threads/{source}/runs", {"assistant_id": "agent"}).json
    metadata = {"thread_id": source, "step": 1}
    act(run["run_id"], {"a": 1}, state=make.state(source, "c1", metadata=metadata))

    copy = api.post(f"/threads/{source}/copy").json

    assert copy["thread_id"] != source
    assert (copy["status"], copy["values"], copy["metadata"]["a"]) == ("idle", {"a": 1}, 1)
    assert api.get(f"/threads/{copy['thread_id']}/runs").json == []
    state = api.get(f"/threads/{copy['thread_id']}/state").json
    assert state["checkpoint"] == {"thread_id": copy["thread_id"], "checkpoint_ns": "", "checkpoint_id": "c1"}
    assert state["metadata"] == {"thread_id": copy["thread_id"], "step": 1}
    assert api.post(f"/threads/{MISSING}/copy").status_code == 409


def test_prune_deletes_threads_or_their_older_checkpoints(api: Api) -> None:
    kept, deleted, busy = (new(api)["thread_id"] for _ in range(3))
    api.post(f"/threads/{busy}/runs", {"assistant_id": "agent"})
    for n in (1, 2):
        run = api.post(f"/threads/{kept}/runs", {"assistant_id": "agent"}).json
        actor = Actor(run["run_id"])
        make.stored(actor.run, f"c{n}")
        actor.finish({"n": n}, state=make.state(kept, f"c{n}"))

    thinned = api.post("/threads/prune", {"thread_ids": [kept, busy, MISSING], "strategy": "keep_latest"})
    gone = api.post("/threads/prune", {"thread_ids": [deleted, MISSING]})

    assert (thinned.json, gone.json) == ({"pruned_count": 1}, {"pruned_count": 1})
    storage = api.get(f"/threads/{kept}/storage").json
    assert storage["checkpoints"]["count"] == 1
    assert storage["total_bytes"] == storage["checkpoints"]["bytes"] > 0
    assert api.get(f"/threads/{kept}").json["values"] == {"n": 2}
    assert api.get(f"/threads/{deleted}").status_code == 404
    assert api.get(f"/threads/{deleted}/storage").status_code == 404


def test_a_thread_says_when_it_expires_if_asked(api: Api) -> None:
    thread_id = new(api, ttl={"ttl": 1.5})["thread_id"]

    assert "ttl" not in api.get(f"/threads/{thread_id}").json
    shown = api.get(f"/threads/{thread_id}?include=ttl").json
    assert (shown["ttl"]["strategy"], shown["ttl"]["ttl_minutes"]) == ("delete", 1.5)
    expires, updated = (
        datetime.fromisoformat(at) for at in (shown["ttl"]["expires_at"], shown["updated_at"])
    )
    assert expires - updated == timedelta(seconds=90)
    api.patch(f"/threads/{thread_id}", {"ttl": {"ttl": 60, "strategy": "keep_latest"}})
    changed = api.get(f"/threads/{thread_id}?include=ttl").json["ttl"]
    assert (changed["strategy"], changed["ttl_minutes"]) == ("keep_latest", 60)


def test_filters_must_all_match(api: Api) -> None:
    one = new(api, metadata={"a": {"b": 1, "c": 2}})["thread_id"]
    two = new(api, metadata={"a": {"b": 1}})["thread_id"]
    api.post(f"/threads/{two}/runs", {"assistant_id": "agent"})

    def found(**filters: Any) -> set[str]:
        assert api.post("/threads/count", {k: v for k, v in filters.items() if k != "ids"}).status_code == 200
        return {record["thread_id"] for record in api.post("/threads/search", filters).json}

    assert found() == found(ids=[], metadata={}) == {one, two}
    assert found(ids=[two, MISSING]) == {two}
    assert found(metadata={"a": {"b": 1}}) == {one, two}
    assert found(metadata={"a": {"b": 1}}, status="busy") == {two}
    assert found(metadata={"a": {"c": 2}}, status="busy") == set()


def test_threads_are_found_by_when_they_were_last_updated(api: Api) -> None:
    first, second = new(api), new(api)
    ids = [first["thread_id"], second["thread_id"]]

    def found(**filters: Any) -> list[str]:
        page = api.post("/threads/search", {"sort_by": "updated_at", "sort_order": "asc", **filters}).json
        assert api.post("/threads/count", filters).json == len(page)
        return [record["thread_id"] for record in page]

    assert found(since=first["updated_at"], until=None) == ids
    assert found(since=second["updated_at"]) == ids[1:]
    assert found(until=second["updated_at"]) == ids[:1]
    assert found(since="2100-01-01T00:00:00Z") == []
