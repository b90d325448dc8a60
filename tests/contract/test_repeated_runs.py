"""Requests repeated under a key, or because the answer was lost, create one run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import Engine, make_url

from shared.infra.postgres import connect
from tests.contract.conftest import Api, Notifications
from tests.contract.run_calls import start
from tests.contract.streaming import text_of
from tests.support.acting import Actor, act
from tests.support.broken_link import Link, linked
from web.deployment_api.runs import creation

KEY = {"Idempotency-Key": "k1"}
pytestmark = pytest.mark.usefixtures("own_key")


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


def test_a_thread_asked_for_twice_under_a_key_is_one_thread(api: Api) -> None:
    first, again = (api.post("/threads", {"metadata": {"a": 1}}, headers=KEY) for _ in range(2))
    assert (first.status_code, again.data) == (200, first.data)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert api.post("/threads/count").json == 1
    assert api.post("/threads", {"metadata": {"a": 2}}, headers=KEY).status_code == 422


def test_a_repetition_is_answered_also_when_the_deployment_is_full(api: Api, thread_id: str) -> None:
    creation._counted.clear()
    api.set(max_pending_per_deployment=1)
    path, body = f"/threads/{thread_id}/runs", {"assistant_id": "agent"}
    first = api.post(path, body, headers=KEY)
    creation._counted.clear()  # expire the cached count
    again = api.post(path, body, headers=KEY)
    other = api.post(path, body, headers={"Idempotency-Key": "k2"})
    batch = api.post("/runs/batch", [body])
    creation._counted.clear()
    assert (first.status_code, again.data) == (200, first.data)
    assert (other.status_code, batch.status_code) == (429, 429)


# Loss of the database connection before its answer


@pytest.fixture
def link(db: Engine, database: str, api: Api) -> Iterator[Link]:
    """Faulty link between the web process and PostgreSQL."""
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
