"""Asks that a recording handler receives before each call: pairs, keys and types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

import tests.support.factories as make
from shared import assistants
from tests.contract.conftest import Users
from tests.support import user_code

ID = UUID("00000000-0000-0000-0000-00000000abcd")
AGENT = assistants.default_id("agent")
HOURLY = {"assistant_id": "agent", "schedule": "0 * * * *"}
CONTENT = {"config": {}, "context": None, "metadata": {}}
THREAD = {"thread_id": ID}

Asked = list[tuple[str, dict[str, Any]]]

# method, path, body, expected asks in order; a thread, an assistant and a cron have the id ID
ROWS: list[tuple[str, str, Any, Asked]] = [
    ("POST", "/threads", {"thread_id": str(UUID(int=1)), "metadata": {"a": 1}, "if_exists": "do_nothing"},
     [("threads.create", {"thread_id": UUID(int=1), "metadata": {"a": 1}, "if_exists": "do_nothing"})]),
    ("GET", f"/threads/{ID}", None, [("threads.read", THREAD)]),
    ("GET", f"/threads/{ID}/state", None, [("threads.read", THREAD)]),
    ("GET", f"/threads/{ID}/state/{ID}", None, [("threads.read", THREAD)]),
    ("POST", f"/threads/{ID}/state/checkpoint", {"checkpoint": {}}, [("threads.read", THREAD)]),
    ("GET", f"/threads/{ID}/history", None, [("threads.read", THREAD)]),
    ("POST", f"/threads/{ID}/history", {}, [("threads.read", THREAD)]),
    ("GET", f"/threads/{ID}/storage", None, [("threads.read", THREAD)]),
    ("PATCH", f"/threads/{ID}", {"metadata": {"a": 1}}, [("threads.update", {**THREAD, "metadata": {"a": 1}})]),
    ("PATCH", f"/threads/{ID}/state", {"metadata": {"a": 1}},
     [("threads.update", {**THREAD, "metadata": {"a": 1}})]),
    ("POST", f"/threads/{ID}/state", {"values": {}}, [("threads.update", THREAD), ("threads.read", THREAD)]),
    ("POST", "/threads/search", {"metadata": {"a": 1}, "status": "idle", "limit": 3, "offset": 2},
     [("threads.search", {"metadata": {"a": 1}, "values": {}, "status": "idle", "limit": 3, "offset": 2})]),
    ("POST", "/threads/count", {"values": {"b": 2}},
     [("threads.search", {"metadata": {}, "values": {"b": 2}, "status": None, "limit": 0, "offset": 0})]),
    ("POST", "/assistants", {"assistant_id": str(UUID(int=1)), "graph_id": "agent", "context": {"c": 1}},
     [("assistants.create", {**CONTENT, "assistant_id": UUID(int=1), "graph_id": "agent", "context": {"c": 1},
                             "name": "Untitled"})]),
    *[("GET", f"/assistants/{ID}{rest}", None, [("assistants.read", {"assistant_id": ID})])
      for rest in ("", "/graph", "/schemas", "/subgraphs", "/subgraphs/x")],
    ("GET", "/assistants/agent/schemas", None, [("assistants.read", {"assistant_id": AGENT})]),
    ("POST", f"/assistants/{ID}/versions", {}, [("assistants.read", {"assistant_id": ID})]),
    ("PATCH", f"/assistants/{ID}", {"name": "new", "metadata": {"a": 1}},
     [("assistants.update", {**CONTENT, "assistant_id": ID, "graph_id": None, "name": "new", "metadata": {"a": 1}})]),
    ("POST", f"/assistants/{ID}/latest", {"version": 1},
     [("assistants.update", {"assistant_id": ID, "version": 1})]),
    ("POST", "/assistants/search", {"graph_id": "agent", "limit": 3},
     [("assistants.search", {"graph_id": "agent", "metadata": {}, "limit": 3, "offset": 0})]),
    ("POST", "/assistants/count", {},
     [("assistants.search", {"graph_id": None, "metadata": {}, "limit": 0, "offset": 0})]),
    ("GET", f"/runs/crons/{ID}", None, [("crons.read", {"cron_id": ID})]),
    ("PATCH", f"/runs/crons/{ID}", {"enabled": False},
     [("crons.update", {"cron_id": ID, "schedule": None, "end_time": None, "enabled": False,
                        "on_run_completed": None, "payload": {"enabled": False}})]),
    ("PATCH", f"/runs/crons/{ID}", {"metadata": {"a": 1}},
     [("crons.update", {"cron_id": ID, "schedule": None, "end_time": None, "enabled": None, "metadata": {"a": 1},
                        "on_run_completed": None, "payload": {"metadata": {"a": 1}}})]),
    ("POST", "/runs/crons/search", {"thread_id": str(ID), "limit": 3},
     [("crons.search", {"assistant_id": None, "thread_id": ID, "limit": 3, "offset": 0, "metadata": {}}),
      ("threads.search", {})]),
    ("POST", "/runs/crons/count", {"assistant_id": str(ID)},
     [("crons.search", {"assistant_id": ID, "thread_id": None, "limit": 0, "offset": 0, "metadata": {}}),
      ("threads.search", {})]),
    ("PUT", "/store/items", {"namespace": ["a"], "key": "k", "value": {"v": 1}},
     [("store.put", {"namespace": ["a"], "key": "k", "value": {"v": 1}, "index": None, "ttl": None})]),
    ("GET", "/store/items?namespace=a.b&key=k", None,
     [("store.get", {"namespace": ["a", "b"], "key": "k", "refresh_ttl": None})]),
    ("POST", "/store/items/search", {"namespace_prefix": ["a"], "filter": {"v": 1}, "limit": 3},
     [("store.search", {"namespace": ["a"], "filter": {"v": 1}, "limit": 3, "offset": 0, "query": None,
                        "refresh_ttl": None})]),
    ("POST", "/store/items/search", {},
     [("store.search", {"namespace": [], "filter": None, "limit": 10, "offset": 0, "query": None,
                        "refresh_ttl": None})]),
    ("POST", "/store/namespaces", {"suffix": ["z"], "max_depth": 2},
     [("store.list_namespaces", {"namespace": None, "suffix": ["z"], "max_depth": 2, "limit": 100, "offset": 0})]),
    ("DELETE", "/store/items", {"namespace": ["a"], "key": "k"},
     [("store.delete", {"namespace": ["a"], "key": "k"})]),
    ("POST", "/threads/prune", {"thread_ids": [str(ID), str(UUID(int=2))]},
     [("threads.delete", {"thread_ids": [str(ID), str(UUID(int=2))]}), ("threads.delete", THREAD),
      ("threads.delete", {"thread_id": UUID(int=2)})]),
    ("DELETE", f"/threads/{ID}", None, [("threads.delete", THREAD)]),
    ("DELETE", f"/assistants/{ID}?delete_threads=true", None,
     [("assistants.delete", {"assistant_id": ID}),
      ("threads.update", {"thread_id": None, "action": "interrupt", "metadata": {"run_ids": None, "status": None}})]),
    ("DELETE", f"/assistants/{ID}", None, [("assistants.delete", {"assistant_id": ID})]),
    ("DELETE", f"/runs/crons/{ID}", None, [("crons.delete", {"cron_id": ID})]),
]  # fmt: skip


@pytest.fixture
def there(users: Users, own_key: None) -> None:
    """A thread, an assistant and a cron with the id ID and without an owner."""
    deployment = users.deployment
    make.thread(deployment.id, thread_id=ID)
    make.assistant(deployment.id, assistant_id=ID)
    make.cron(deployment, cron_id=ID)


def test_what_is_asked(users: Users, there: None) -> None:
    for method, path, body, expected in ROWS:
        users.played.forget()
        response = users.ann.call(method, path, body)
        assert response.status_code < 500, (method, path, response.text)
        asked = [(f"{asked.resource}.{asked.action}", asked.value) for asked in users.played.asked]
        assert (method, path, asked) == (method, path, expected)
        # a single call asks everything
        assert [call["op"] for call in users.played.calls] == ["authenticate", "authorize"], (method, path)


def test_where_no_handler_decides_nobody_is_asked(users: Users, there: None) -> None:
    user_code.protect(users.deployment, handlers=[["threads", "delete"]], parameters=["authorization"])
    users.ann.get(f"/threads/{ID}")
    users.played.forget()
    assert users.ann.get(f"/threads/{ID}").status_code == 200
    assert users.played.calls == []
    users.ann.delete(f"/threads/{ID}")
    assert users.played.pairs() == [("threads", "delete")]


def test_a_minted_id_is_asked_about_and_that_of_a_copy(users: Users, there: None) -> None:
    made = users.ann.post("/threads").json
    assert users.played.value("threads", "create") == {
        "thread_id": UUID(made["thread_id"]),
        "metadata": {},
        "if_exists": "raise",
    }
    made = users.ann.post("/assistants", {"graph_id": "agent"}).json
    assert users.played.value("assistants", "create")["assistant_id"] == UUID(made["assistant_id"])

    users.played.forget()
    made = users.ann.post(f"/threads/{ID}/copy").json
    assert users.played.asked == [
        ("ann", "threads", "read", {"thread_id": ID}),
        ("ann", "threads", "create", {"thread_id": UUID(made["thread_id"])}),
    ]


def test_a_cron_is_asked_about_with_its_id_where_runs_see_it(users: Users, there: None) -> None:
    for path, thread_id in (("/runs/crons", None), (f"/threads/{ID}/runs/crons", ID)):
        users.played.forget()
        body = {**HOURLY, "metadata": {"a": 1}, "config": {"configurable": {"k": 1}}}
        response = users.ann.post(path, body)
        assert response.status_code == 200, response.text
        key = UUID(response.json["cron_id"])
        (first, *rest) = users.played.asked
        assert first == ("ann", "crons", "create", {
            "payload": {**body, "config": {"configurable": {"k": 1, "cron_id": str(key)}}},
            "schedule": "0 * * * *", "cron_id": key, "thread_id": thread_id, "user_id": "ann",
            "end_time": None, "metadata": {"a": 1},
        })  # fmt: skip
        assert rest == ([("ann", "threads", "read", {"thread_id": ID})] if thread_id else [])
    users.played.forget()
    users.ann.post("/runs/crons", {**HOURLY, "assistant_id": str(ID)})
    assert users.played.asked[1:] == [("ann", "assistants", "read", {"assistant_id": ID})]


# Changes by handlers


def stamp(**stamped: Any) -> Callable[..., Any]:
    def in_place(ctx: Any, value: dict[str, Any]) -> None:
        value["metadata"].update(stamped)

    return in_place


def replace(**stamped: Any) -> Callable[..., Any]:
    def anew(ctx: Any, value: dict[str, Any]) -> None:
        value["metadata"] = {**value["metadata"], **stamped}

    return anew


@pytest.mark.parametrize("handler", [stamp(owner="ann"), replace(owner="ann")])
def test_metadata_is_stored_as_the_handler_leaves_it(users: Users, there: None, handler: Any) -> None:
    users.played.on(handler)
    for response in (
        users.ann.post("/threads", {"metadata": {"a": 1}}),
        users.ann.patch(f"/threads/{ID}", {"metadata": {"a": 1}}),
        users.ann.call("PATCH", f"/threads/{ID}/state", {"metadata": {"a": 1}}),
        users.ann.post("/assistants", {"graph_id": "agent", "metadata": {"a": 1}}),
        users.ann.patch(f"/assistants/{ID}", {"metadata": {"a": 1}}),
    ):
        assert response.json["metadata"] == {"a": 1, "owner": "ann"}
    cron = users.ann.post("/runs/crons", {**HOURLY, "metadata": {"a": 1}}).json
    assert cron["metadata"] == cron["payload"]["metadata"] == {"a": 1, "owner": "ann"}


def test_a_changed_cron_keeps_what_its_runs_carry_under_what_the_handler_stamps(
    users: Users, own_key: None
) -> None:
    cron = users.ann.post("/runs/crons", {**HOURLY, "metadata": {"a": 1}}).json
    users.played.on(lambda ctx, value: value.setdefault("metadata", {}).update(owner="ann"))
    stamped = users.ann.patch(f"/runs/crons/{cron['cron_id']}", {"enabled": False}).json
    assert stamped["metadata"] == stamped["payload"]["metadata"] == {"a": 1, "owner": "ann"}
    given_away = {"metadata": {"b": 2, "owner": "bob"}}
    kept = users.ann.patch(f"/runs/crons/{cron['cron_id']}", given_away).json
    assert kept["metadata"] == {"a": 1, "b": 2, "owner": "ann"}
    assert kept["payload"]["metadata"] == {"b": 2, "owner": "ann"}


def test_nothing_else_is_stored_as_a_handler_leaves_it(users: Users) -> None:
    def handler(ctx: Any, value: dict[str, Any]) -> None:
        value.update(name="theirs", graph_id="other", thread_id=str(ID), assistant_id=str(ID), limit=1)

    users.played.on(handler)
    made = users.ann.post("/assistants", {"graph_id": "agent", "name": "mine"}).json
    assert (made["name"], made["graph_id"]) == ("mine", "agent")
    assert made["assistant_id"] != str(ID)
    assert users.ann.post("/threads").json["thread_id"] != str(ID)


def test_metadata_that_cannot_be_stored_is_the_handlers_fault(users: Users) -> None:
    for bad in ([], "x", 1, {"a": "\0"}, {"a": "x" * 300_000}):
        users.played.on(lambda ctx, value, bad=bad: value.update(metadata=bad))
        assert users.ann.post("/threads").status_code == 500, str(bad)[:20]
        assert users.ann.post("/threads/search", {}).status_code == 500, str(bad)[:20]


def test_metadata_of_a_search_becomes_part_of_it(users: Users, there: None) -> None:
    users.ann.post("/threads", {"metadata": {"owner": "ann"}})
    users.played.on(stamp(owner="ann"))
    assert users.ann.post("/threads/count", {}).json == 1
    assert len(users.ann.post("/threads/search", {}).json) == 1
    assert users.ann.post("/assistants/search", {}).json == []


def test_the_store_has_no_filters(users: Users) -> None:
    for said in ({}, {"owner": "ann"}):
        users.played.on(lambda ctx, value, said=said: said)
        for method, path, body, expected in ROWS:
            if expected[0][0].startswith("store."):
                assert users.ann.call(method, path, body).status_code == 500, (method, path, said)
