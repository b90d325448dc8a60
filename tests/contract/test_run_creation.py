"""What a run can ask for beside its input: a time, a place, a precondition, a key; batches; bulk cancels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from sqlalchemy import Engine, make_url, text

from shared.infra import redis
from shared.infra.postgres import connect, connection, driver
from shared.models import RunStatus, ThreadStatus
from shared.runs import claims, eligibility
from tests.contract.conftest import Api, Notifications
from tests.contract.test_sse import names, text_of
from tests.support.acting import Actor, act
from tests.support.broken_link import Link, linked
from web.deployment_api import creation

CHECKPOINT = "1f1e0000-0000-6000-8000-000000000001"
MISSING = "00000000-0000-0000-0000-00000000dead"


def start(api: Api, thread_id: str, **body: Any) -> dict[str, Any]:
    response = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", **body})
    assert response.status_code == 200, response.text
    return response.json


def statuses(api: Api, thread_id: str) -> list[str]:
    """Of a thread's runs, oldest first."""
    return [run["status"] for run in reversed(api.get(f"/threads/{thread_id}/runs").json)]


def claimable(run: dict[str, Any]) -> bool:
    """Whether somebody could claim the run now; it stays as it is."""
    with driver() as conn, conn.transaction(force_rollback=True):
        return bool(claims.claim(conn, [UUID(run["run_id"])], claims.Terms("w", 30, 60)))


def due(run: dict[str, Any]) -> None:
    with connection() as conn:
        conn.execute(text("UPDATE run SET not_before = now() WHERE run_id = :id"), {"id": run["run_id"]})


# Later


def test_a_run_for_later_waits_for_its_time_and_later_ones_wait_for_it(
    api: Api, thread_id: str, notifications: Notifications
) -> None:
    later = start(api, thread_id, after_seconds=3600)
    behind = start(api, thread_id)

    with connection() as conn:
        row = conn.execute(
            text(
                "SELECT created_at = not_before AS same, not_before - updated_at = interval '1 hour' AS later"
                " FROM run WHERE run_id = :id"
            ),
            {"id": later["run_id"]},
        ).one()
        overlooked = eligibility.to_notify(conn)
    assert (row.same, row.later) == (True, True)
    assert later["created_at"] > later["updated_at"]
    assert notifications.heard == [("runs.default", behind["run_id"])]
    assert overlooked == []
    assert (later["status"], api.get(f"/threads/{thread_id}").json["status"]) == ("pending", "busy")
    assert (claimable(later), claimable(behind)) == (False, False)

    due(later)
    with connection() as conn:
        assert [str(run.run_id) for run in eligibility.to_notify(conn)] == [later["run_id"]]
    act(later["run_id"], {})
    act(behind["run_id"], {})
    assert statuses(api, thread_id) == ["success", "success"]


def test_the_stream_of_a_run_for_later_is_open_and_says_nothing_before(api: Api, thread_id: str) -> None:
    body = {"assistant_id": "agent", "after_seconds": 3600}
    response = api.post(f"/threads/{thread_id}/runs/stream", body, buffered=False)
    chunks = (chunk for chunk in response.iter_encoded() if chunk)
    assert next(chunks) == next(chunks) == b": heartbeat\r\n\r\n"
    (run,) = api.get(f"/threads/{thread_id}/runs").json
    due(run)
    act(run["run_id"], {"a": 1})
    rest = b"".join(chunks)
    response.close()
    assert rest.index(b"event: metadata") < rest.index(b"event: values")


@pytest.mark.parametrize("seconds", [0, -5, 0.0, None])
def test_a_time_that_has_come_is_now(
    api: Api, thread_id: str, notifications: Notifications, seconds: Any
) -> None:
    run = start(api, thread_id, after_seconds=seconds)
    assert notifications.heard == [("runs.default", run["run_id"])]
    assert claimable(run)


# From a checkpoint

PLACES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"checkpoint_id": CHECKPOINT}, {"checkpoint_id": CHECKPOINT}),
    ({"checkpoint": {"checkpoint_id": CHECKPOINT}}, {"checkpoint_id": CHECKPOINT}),
    ({"config": {"configurable": {"checkpoint_id": CHECKPOINT}}}, {"checkpoint_id": CHECKPOINT}),
    (
        {"config": {"configurable": {"checkpoint_id": CHECKPOINT, "word": 1}}},
        {"checkpoint_id": CHECKPOINT, "word": 1},
    ),
    (
        {"checkpoint": {"checkpoint_id": CHECKPOINT, "checkpoint_ns": "a:1", "checkpoint_map": {"": "x"}}},
        {"checkpoint_id": CHECKPOINT, "checkpoint_ns": "a:1", "checkpoint_map": {"": "x"}},
    ),
    ({"checkpoint": {"checkpoint_id": CHECKPOINT}, "checkpoint_id": MISSING}, {"checkpoint_id": CHECKPOINT}),
    ({"checkpoint": {}}, {}),
    ({"checkpoint": None, "checkpoint_id": None}, {}),
    ({"checkpoint_id": "", "checkpoint": {"checkpoint_ns": "", "checkpoint_map": None}}, {}),
]
OURS = {
    "run_id", "thread_id", "graph_id", "assistant_id", "user_id", "langgraph_auth_user", "langgraph_auth_user_id",
    "langgraph_auth_permissions", "langgraph_request_id",
}  # fmt: skip


@pytest.mark.parametrize(("body", "place"), PLACES)
def test_the_checkpoint_to_start_from_is_frozen_into_the_run(
    api: Api, thread_id: str, body: dict[str, Any], place: dict[str, Any]
) -> None:
    kwargs = start(api, thread_id, context={"c": 1} if "config" not in body else {}, **body)["kwargs"]
    found = {name: value for name, value in kwargs["config"]["configurable"].items() if name not in OURS}
    assert found == ({"c": 1} if "config" not in body else {}) | place
    assert "checkpoint_id" not in kwargs["context"]


@pytest.mark.parametrize(
    "body",
    [
        {"checkpoint_id": "x"},
        {"checkpoint": {"checkpoint_id": "nope"}},
        {"config": {"configurable": {"checkpoint_id": "1"}}},
    ],
)
def test_what_is_no_checkpoint_id_is_422(api: Api, thread_id: str, body: dict[str, Any]) -> None:
    response = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", **body})
    assert (response.status_code, response.json) == (422, {"detail": "Invalid checkpoint ID"})


def test_a_checkpoint_is_on_the_runs_own_thread(api: Api, thread_id: str) -> None:
    body = {"assistant_id": "agent", "checkpoint": {"checkpoint_id": CHECKPOINT, "thread_id": thread_id}}
    assert api.post(f"/threads/{thread_id}/runs", body).status_code == 200
    body["checkpoint"] = {"checkpoint_id": CHECKPOINT, "thread_id": MISSING}
    assert api.post(f"/threads/{thread_id}/runs", body).status_code == 422
    run = api.post("/runs", {**body, "on_completion": "keep"}).json
    assert "checkpoint_id" not in run["kwargs"]["config"]["configurable"]


# If the thread is as the caller thinks


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ("interrupted", 200),
        (["idle", "interrupted"], 200),
        ("idle", 409),
        (["busy", "error"], 409),
        (None, 200),
    ],
)
def test_a_thread_of_another_status_than_expected_is_409(
    api: Api, thread_id: str, wanted: Any, status: int
) -> None:
    act(
        start(api, thread_id)["run_id"],
        {},
        thread_status=ThreadStatus.INTERRUPTED,
        interrupts={"t": [{"id": "i", "value": 1}]},
    )
    before = api.get(f"/threads/{thread_id}").json
    for strategy in ("enqueue", "reject"):
        body = {"assistant_id": "agent", "if_thread_status": wanted, "multitask_strategy": strategy}
        response = api.post(f"/threads/{thread_id}/runs", body)
        assert response.status_code == status, response.text
        if status == 409:
            assert response.json["detail"].startswith(f"Thread {thread_id} is interrupted, not ")
            assert api.get(f"/threads/{thread_id}").json == before
        else:
            act(response.json["run_id"], {}, thread_status=ThreadStatus.INTERRUPTED)


def test_a_thread_on_which_something_runs_is_busy(api: Api, thread_id: str) -> None:
    first = start(api, thread_id, if_thread_status="idle")
    body = {"assistant_id": "agent", "if_thread_status": "idle", "multitask_strategy": "rollback"}
    assert api.post(f"/threads/{thread_id}/runs", body).status_code == 409
    assert statuses(api, thread_id) == ["pending"]
    start(api, thread_id, if_thread_status="busy")
    assert claimable(first)


def test_a_thread_that_is_made_for_the_run_was_idle(api: Api) -> None:
    new = str(uuid4())
    refused = api.post(f"/threads/{new}/runs", {"assistant_id": "agent", "if_thread_status": "idle"})
    body = {"assistant_id": "agent", "if_not_exists": "create", "if_thread_status": "interrupted"}
    assert (refused.status_code, api.post(f"/threads/{new}/runs", body).status_code) == (404, 409)
    start(api, new, if_not_exists="create", if_thread_status="idle")


# Several at once


def test_a_batch_makes_all_its_runs_in_order(api: Api, notifications: Notifications) -> None:
    bodies = [
        {"assistant_id": "agent", "assistantId": "nope", "input": {"n": number}, "ifNotExists": 5}
        for number in range(3)
    ]
    response = api.post("/runs/batch", bodies)
    assert response.status_code == 200
    assert [run["kwargs"]["input"]["n"] for run in response.json] == [0, 1, 2]
    assert len({run["thread_id"] for run in response.json}) == 3
    assert [id for _, id in notifications.heard] == [run["run_id"] for run in response.json]


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ([], 422, "must have at least 1 item"),
        ({}, 422, "must be an array"),
        ("x", 422, "must be an array"),
        ([{"assistant_id": "agent"}, {}], 422, "1.assistant_id: this field is required"),
        ([{"assistant_id": "agent"}, 5], 422, "1: must be an object"),
        ([{"assistant_id": "agent"}, {"assistant_id": "nope"}], 422, "Invalid assistant: 'nope'"),
        ([{"assistant_id": "agent"}, {"assistant_id": MISSING}], 404, "Thread or assistant not found."),
        ([{"assistant_id": "agent"}] * 1001, 422, "must have at most 1000 items"),
    ],
)
def test_a_batch_is_whole_or_not_at_all(
    api: Api, notifications: Notifications, body: Any, status: int, detail: str
) -> None:
    response = api.post("/runs/batch", body)
    assert response.status_code == status
    assert response.json["detail"].startswith(detail)
    assert notifications.heard == []
    with connection() as conn:
        assert conn.execute(text("SELECT count(*) FROM run")).scalar_one() == 0


@pytest.mark.parametrize(
    ("status", "left"),
    [
        ("pending", ["running", "interrupted"]),
        ("running", ["running", "pending"]),
        ("all", ["running", "interrupted"]),
    ],
)
def test_all_runs_in_a_status_are_cancelled(api: Api, neighbour: Api, status: str, left: list[str]) -> None:
    threads = [api.post("/threads").json["thread_id"] for _ in range(2)]
    for thread_id in threads:
        Actor(start(api, thread_id)["run_id"])
        start(api, thread_id)

    response = api.post("/runs/cancel", {"status": status})

    assert (response.status_code, response.data) == (204, b"")
    for thread_id in threads:
        assert statuses(api, thread_id) == left
    with connection() as conn:
        asked = (
            conn.execute(text("SELECT cancel_requested FROM run WHERE status = 'running'")).scalars().all()
        )
    assert asked == ([None] * 2 if status == "pending" else ["interrupt"] * 2)
    assert neighbour.post("/runs/cancel", {"status": "all"}).status_code == 404


def test_named_runs_of_a_thread_are_cancelled_and_the_thread_is_free(
    api: Api, thread_id: str, notifications: Notifications
) -> None:
    runs = [start(api, thread_id) for _ in range(3)]
    ids = [runs[0]["run_id"], runs[1]["run_id"], MISSING]
    notifications.heard.clear()
    assert (
        api.post("/runs/cancel?action=rollback", {"thread_id": thread_id, "run_ids": ids}).status_code == 204
    )
    assert statuses(api, thread_id) == ["pending"]
    assert notifications.heard == [("runs.default", runs[2]["run_id"])]
    assert (
        api.post("/runs/cancel", {"thread_id": thread_id, "run_ids": [runs[2]["run_id"]]}).status_code == 204
    )
    assert api.get(f"/threads/{thread_id}").json["status"] == "idle"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"status": "done"}, 422),
        ({"status": None}, 422),
        ({"status": "all", "thread_id": MISSING, "run_ids": []}, 422),
        ({"thread_id": MISSING}, 422),
        ({"run_ids": [MISSING]}, 422),
        ({"thread_id": "x", "run_ids": []}, 422),
        ({"thread_id": MISSING, "run_ids": ["x"]}, 422),
        ({"thread_id": MISSING, "run_ids": [MISSING]}, 404),
        ({"thread_id": MISSING, "run_ids": []}, 404),
        ({"status": "all"}, 404),
    ],
)
def test_a_bulk_cancel_names_one_of_two_things(api: Api, body: dict[str, Any], status: int) -> None:
    assert api.post("/runs/cancel", body).status_code == status
    assert api.post("/runs/cancel?action=stop", body).status_code == 422


# Once


KEY = {"Idempotency-Key": "k1"}


@pytest.mark.usefixtures("own_key")
@pytest.mark.parametrize("path", ["/runs", "/threads/{}/runs", "/runs/batch"])
def test_a_run_asked_for_twice_under_a_key_is_one_run(
    api: Api, thread_id: str, notifications: Notifications, path: str
) -> None:
    body: Any = {"assistant_id": "agent", "input": {"a": 1}, "multitask_strategy": "rollback"}
    body = [body] if path.endswith("batch") else body
    address = path.format(thread_id)
    first, again = (api.post(address, body, headers=KEY) for _ in range(2))
    assert (first.status_code, again.status_code, again.data) == (200, 200, first.data)
    assert again.headers.get("Content-Location") == first.headers.get("Content-Location")
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(notifications.heard) == 1
    other = api.post(address, [*body, *body] if isinstance(body, list) else {**body, "input": 2}, headers=KEY)
    assert other.status_code == 422


@pytest.mark.usefixtures("own_key")
@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("path", ["/runs/stream", "/threads/{}/runs/stream"])
def test_a_stream_asked_for_twice_under_a_key_is_the_same_from_its_start(
    api: Api, thread_id: str, notifications: Notifications, path: str, resumable: bool
) -> None:
    body = {"assistant_id": "agent", "stream_resumable": resumable}
    first = api.post(path.format(thread_id), body, headers=KEY, buffered=False)
    run_id = first.headers["Content-Location"].rpartition("/")[2]
    actor = Actor(run_id)
    actor.emit("values", {"a": 1})
    again = api.post(path.format(thread_id), body, headers=KEY, buffered=False)
    actor.finish({"a": 1}, output={"a": 1})
    late = api.post(path.format(thread_id), body, headers=KEY, buffered=False)

    assert len(notifications.heard) == 1
    assert text_of(first) == text_of(again) == text_of(late)
    assert again.headers["Location"] == first.headers["Location"]
    assert again.headers["Content-Location"] == first.headers["Content-Location"]
    assert again.headers["Idempotent-Replayed"] == "true"


@pytest.mark.usefixtures("own_key")
@pytest.mark.parametrize("path", ["/runs/wait", "/threads/{}/runs/wait"])
def test_a_wait_asked_for_twice_under_a_key_gives_the_same_output(
    api: Api, thread_id: str, notifications: Notifications, path: str
) -> None:
    first = api.post(path.format(thread_id), {"assistant_id": "agent"}, headers=KEY, buffered=False)
    act(first.headers["Content-Location"].rpartition("/")[2], {"a": 1})
    again = api.post(path.format(thread_id), {"assistant_id": "agent"}, headers=KEY)
    assert orjson.loads(first.data) == again.json == {"a": 1}
    assert again.headers["Location"] == first.headers["Location"]
    assert len(notifications.heard) == 1


# Which events a client gets


def test_a_join_of_a_waiting_run_adds_to_what_it_streams_and_to_no_one_elses_stream(
    api: Api, thread_id: str
) -> None:
    path = f"/threads/{thread_id}/runs/stream"
    ahead = start(api, thread_id)
    creator = api.post(path, {"assistant_id": "agent", "stream_resumable": True}, buffered=False)
    run_id = creator.headers["Content-Location"].rpartition("/")[2]
    join = f"/threads/{thread_id}/runs/{run_id}/stream"
    joiner = api.get(f"{join}?stream_mode=updates&stream_mode=nonsense", buffered=False)
    inner = api.get(f"{join}?stream_mode=values&namespace=child", buffered=False)
    act(ahead["run_id"], {})

    actor = Actor(run_id)
    assert actor.run.kwargs["joined"] == {"stream_mode": ["updates", "values"], "subgraphs": True}
    assert "joined" not in api.get(f"/threads/{thread_id}/runs/{run_id}").json["kwargs"]
    for name in ("values", "updates", "values|child:1", "updates|child:1", "values|other:2"):
        actor.emit(name, {})
    actor.finish({})

    assert names(creator) == [("metadata", 1), ("values", 2)]
    assert names(joiner) == [("updates", 3)]
    assert names(inner) == [("values|child:1", 4)]


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ("", [2, 3, 4, 5]),
        ("namespace=", [2]),
        ("namespace=child", [3]),
        ("namespace=child:1", [3]),
        ("namespace=child:2", []),
        ("namespace=child|inner", [4]),
        ("namespace=&namespace=child:1|inner:2", [2, 4]),
        ('namespace=["","child"]', [2, 3]),
    ],
)
def test_only_the_namespaces_asked_for_come(api: Api, thread_id: str, query: str, seen: list[int]) -> None:
    body = {"assistant_id": "agent", "stream_resumable": True, "stream_subgraphs": True}
    created = api.post(f"/threads/{thread_id}/runs/stream?{query}", body, buffered=False)
    run_id = created.headers["Content-Location"].rpartition("/")[2]
    joined = api.get(f"/runs/{run_id}/stream?{query}", buffered=False)
    actor = Actor(run_id)
    for name in ("values", "values|child:1", "values|child:1|inner:2", "values|other:3"):
        actor.emit(name, {})
    actor.finish({}, status=RunStatus.ERROR, error={"error": "E", "message": ""})
    expected = [1, *seen, 6]  # the run's name and its end concern every namespace
    assert [id for _, id in names(created)] == [id for _, id in names(joined)] == expected


def test_asking_for_a_namespace_asks_for_subgraphs(api: Api, thread_id: str) -> None:
    for query, subgraphs in (("namespace=child", True), ("namespace=", False), ("", False)):
        path = f"/threads/{thread_id}/runs/stream?{query}"
        api.post(path, {"assistant_id": "agent"}, buffered=False).close()
        assert api.get(f"/threads/{thread_id}/runs").json[0]["kwargs"]["subgraphs"] is subgraphs


@pytest.mark.parametrize(
    ("asked", "joined", "created_sees", "joiner_sees"),
    [
        ("messages", "messages-tuple", [2, 3], [4]),
        ("messages-tuple", "messages", [4], [2, 3]),
        (["messages", "messages-tuple"], "messages", [4], [2, 3]),
        ("messages", "messages", [2, 3], [2, 3]),
    ],
)
def test_both_forms_of_messages_are_kept_apart(
    api: Api, thread_id: str, asked: Any, joined: str, created_sees: list[int], joiner_sees: list[int]
) -> None:
    ahead = start(api, thread_id)
    body = {"assistant_id": "agent", "stream_resumable": True, "stream_mode": asked}
    creator = api.post(f"/threads/{thread_id}/runs/stream", body, buffered=False)
    run_id = creator.headers["Content-Location"].rpartition("/")[2]
    joiner = api.get(f"/runs/{run_id}/stream?stream_mode={joined}", buffered=False)
    act(ahead["run_id"], {})
    actor = Actor(run_id)
    for name in ("messages/metadata", "messages/partial", "messages"):
        actor.emit(name, [])
    actor.finish({})
    assert [id for _, id in names(creator)] == [1, *created_sees]
    assert [id for _, id in names(joiner)] == joiner_sees


def test_an_ended_runs_log_says_nothing_of_joins_that_came_late(api: Api, thread_id: str) -> None:
    run = start(api, thread_id)
    actor = Actor(run["run_id"])
    api.get(f"/runs/{run['run_id']}/stream?stream_mode=updates", buffered=False).close()
    assert "joined" not in actor.run.kwargs
    actor.finish({})
    assert redis.client().exists(f"{redis.PREFIX}{{{run['run_id']}}}:log")


@pytest.mark.usefixtures("own_key")
def test_a_thread_asked_for_twice_under_a_key_is_one_thread(api: Api) -> None:
    first, again = (api.post("/threads", {"metadata": {"a": 1}}, headers=KEY) for _ in range(2))
    assert (first.status_code, again.data) == (200, first.data)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert api.post("/threads/count").json == 1
    assert api.post("/threads", {"metadata": {"a": 2}}, headers=KEY).status_code == 422


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("stream_mode=updates&stream_mode=nonsense", ["updates"]),
        ("stream_mode=values", None),
        ("", None),
    ],
)
def test_a_join_notifies_the_owner_of_a_running_run_of_what_it_wants(
    api: Api, thread_id: str, query: str, told: list[str] | None
) -> None:
    run = start(api, thread_id)
    Actor(run["run_id"], owner="w7")
    with redis.client().pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(f"{redis.PREFIX}control:w7")
        heard.get_message(timeout=5)
        api.get(f"/runs/{run['run_id']}/stream?{query}", buffered=False).close()
        redis.client().publish(f"{redis.PREFIX}control:w7", "{}")
        message = orjson.loads(heard.get_message(timeout=5)["data"])
    wanted = {"run_id": run["run_id"], "action": "widen", "stream_mode": told}
    assert message == (wanted if told else {})


@pytest.mark.usefixtures("own_key")
def test_a_repetition_is_answered_also_when_the_deployment_is_full(api: Api, thread_id: str) -> None:
    creation._counted.clear()
    api.set(max_pending_per_deployment=1)
    path, body = f"/threads/{thread_id}/runs", {"assistant_id": "agent"}
    first = api.post(path, body, headers=KEY)
    creation._counted.clear()  # the next count is due
    again = api.post(path, body, headers=KEY)
    other = api.post(path, body, headers={"Idempotency-Key": "k2"})
    batch = api.post("/runs/batch", [body])
    creation._counted.clear()
    assert (first.status_code, again.data) == (200, first.data)
    assert (other.status_code, batch.status_code) == (429, 429)


# A database that is lost before it answers


@pytest.fixture
def link(db: Engine, database: str, api: Api) -> Iterator[Link]:
    """The web's way to PostgreSQL, for a test to break."""
    url = make_url(database)
    with linked(Path(str(url.query["host"])) / ".s.PGSQL.5432") as link:
        connect(f"postgresql://{url.username}@127.0.0.1:{link.port}/{url.database}?sslmode=disable")
        start(api, api.post("/threads").json["thread_id"])  # type: ignore[index]
        yield link


CREATIONS = {
    "a statement alone": ([b"INSERT INTO run"], {}, {}),
    "a transaction": ([b"INSERT INTO run", b"COMMIT"], {"multitask_strategy": "interrupt"}, {}),
    "a transaction with a key": ([b"INSERT INTO run", b"COMMIT"], {}, {"Idempotency-Key": "one"}),
}


@pytest.mark.usefixtures("own_key")
@pytest.mark.parametrize(("marks", "body", "headers"), CREATIONS.values(), ids=CREATIONS)
def test_a_run_that_is_created_without_an_answer_is_created_once(
    api: Api,
    thread_id: str,
    notifications: Notifications,
    link: Link,
    marks: list[bytes],
    body: Any,
    headers: Any,
) -> None:
    link.lose_answer_to(*marks)
    response = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", **body}, headers=headers)

    assert (link.lost, response.status_code) == (1, 200), response.text
    [run] = api.get(f"/threads/{thread_id}/runs").json  # type: ignore[misc]
    assert response.json["run_id"] == run["run_id"]  # type: ignore[index]
    assert notifications.heard[-1] == ("runs.default", run["run_id"])
    if headers:
        again = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", **body}, headers=headers)
        assert (again.status_code, again.json["run_id"]) == (200, run["run_id"])  # type: ignore[index]


def test_a_run_that_was_not_created_is_unavailable(api: Api, thread_id: str, link: Link) -> None:
    link.lose_answer_to(b"SELECT")

    response = api.post(
        f"/threads/{thread_id}/runs", {"assistant_id": "agent", "multitask_strategy": "interrupt"}
    )

    assert (link.lost, response.status_code) == (1, 503)
    assert response.headers["Retry-After"]
    assert api.get(f"/threads/{thread_id}/runs").json == []
