"""Selection of a run's events for a client: by mode, by namespace, and by its request to join."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from shared.infra import redis
from shared.models import RunStatus
from tests.contract.conftest import Api
from tests.contract.run_calls import start
from tests.contract.streaming import names
from tests.support.acting import Actor, act


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
    assert actor.run.joined == {"stream_mode": ["updates", "values"], "subgraphs": True}
    record = api.get(f"/threads/{thread_id}/runs/{run_id}").json
    assert "joined" not in record.keys() | record["kwargs"].keys()
    for name in ("values", "updates", "values|child:1", "updates|child:1", "values|other:2"):
        actor.emit(name, {})
    actor.finish({})

    assert names(creator) == [("metadata", 1), ("values", 2)]
    assert names(joiner) == [("updates", 3)]
    assert names(inner) == [("values|child:1", 4)]


def test_only_the_namespaces_asked_for_come(api: Api, thread_id: str, subtests: pytest.Subtests) -> None:
    body = {"assistant_id": "agent", "stream_resumable": True, "stream_subgraphs": True}
    for query, seen in (
        ("", [2, 3, 4, 5]),
        ("namespace=", [2]),
        ("namespace=child", [3]),
        ("namespace=child:1", [3]),
        ("namespace=child:2", []),
        ("namespace=child|inner", [4]),
        ("namespace=&namespace=child:1|inner:2", [2, 4]),
        ('namespace=["","child"]', [2, 3]),
    ):
        with subtests.test(query=query):
            created = api.post(f"/threads/{thread_id}/runs/stream?{query}", body, buffered=False)
            run_id = created.headers["Content-Location"].rpartition("/")[2]
            joined = api.get(f"/runs/{run_id}/stream?{query}", buffered=False)
            actor = Actor(run_id)
            for name in ("values", "values|child:1", "values|child:1|inner:2", "values|other:3"):
                actor.emit(name, {})
            actor.finish({}, status=RunStatus.ERROR, error={"error": "E", "message": ""})
            expected = [1, *seen, 6]  # metadata and end belong to every namespace
            assert [id for _, id in names(created)] == [id for _, id in names(joined)] == expected


def test_asking_for_a_namespace_asks_for_subgraphs(api: Api, thread_id: str) -> None:
    for query, subgraphs in (("namespace=child", True), ("namespace=", False), ("", False)):
        path = f"/threads/{thread_id}/runs/stream?{query}"
        api.post(path, {"assistant_id": "agent"}, buffered=False).close()
        assert api.get(f"/threads/{thread_id}/runs").json[0]["kwargs"]["subgraphs"] is subgraphs


def test_both_forms_of_messages_are_kept_apart(api: Api, thread_id: str, subtests: pytest.Subtests) -> None:
    rows: list[tuple[Any, str, list[int], list[int]]] = [
        ("messages", "messages-tuple", [2, 3], [4]),
        ("messages-tuple", "messages", [4], [2, 3]),
        (["messages", "messages-tuple"], "messages", [4], [2, 3]),
        ("messages", "messages", [2, 3], [2, 3]),
    ]
    for asked, joined, created_sees, joiner_sees in rows:
        with subtests.test(asked=asked, joined=joined):
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
    assert actor.run.joined is None
    actor.finish({})
    assert redis.client().exists(f"{redis.PREFIX}{{{run['run_id']}}}:log")


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
