"""Readers that wait for a run while it is deleted or rolled back."""

from __future__ import annotations

from typing import Any

import pytest
from werkzeug.test import TestResponse

from shared.infra.postgres import connection
from shared.runs import finish
from tests.contract.conftest import Api
from tests.support.acting import Actor, act

HEARTBEAT = ": heartbeat\r\n\r\n"
NOT_FOUND = {"error": "HTTPException", "message": "404: Run not found"}
ERROR = 'event: error\r\ndata: {"error":"HTTPException","message":"404: Run not found"}\r\n\r\n'
VALUES = {"n": 1}

DELETIONS = [("run", "pending"), ("thread", "enqueued"), ("run", "running"), ("thread", "running")]


@pytest.fixture
def thread_id(api: Api) -> str:
    """Thread on which a run has left values."""
    thread_id = api.post("/threads").json["thread_id"]
    act(api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"}).json["run_id"], VALUES)
    return thread_id


def wait(api: Api, thread_id: str, how: str, state: str) -> tuple[TestResponse, str, Actor | None]:
    """Wait for a new run in this state, by its creation or by a join. Returns the response, run id and runner."""
    runs = f"/threads/{thread_id}/runs"
    if state == "enqueued":
        api.post(runs, {"assistant_id": "agent"})
    if how.startswith("create"):
        path = f"{runs}/{how.removeprefix('create ')}"
        response = api.post(path, {"assistant_id": "agent"}, buffered=False)
        run_id = api.get(runs).json[0]["run_id"]
    else:
        run_id = api.post(runs, {"assistant_id": "agent"}).json["run_id"]
        response = api.get(f"{runs}/{run_id}/{how}", buffered=False)
    return response, run_id, Actor(run_id) if state == "running" else None


def delete(api: Api, what: str, thread_id: str, run_id: str) -> None:
    path = f"/threads/{thread_id}" + (f"/runs/{run_id}" if what == "run" else "")
    assert api.delete(path).status_code == 204


def events_of(response: TestResponse) -> str:
    return response.text.replace(HEARTBEAT, "")


@pytest.mark.parametrize(("what", "state"), DELETIONS)
@pytest.mark.parametrize("how", ["create wait", "join", "create stream", "stream"])
def test_who_reads_a_run_that_is_deleted_gets_an_error(
    api: Api, thread_id: str, how: str, state: str, what: str
) -> None:
    response, run_id, _ = wait(api, thread_id, how, state)
    delete(api, what, thread_id, run_id)
    if not how.endswith("stream"):
        assert (response.status_code, response.json) == (200, {"__error__": NOT_FOUND})
        return
    begun = state == "running" or (how, state) == ("create stream", "pending")
    first = f'event: metadata\r\ndata: {{"run_id":"{run_id}","attempt":1}}\r\n\r\n'
    assert events_of(response) == (first if begun else "") + ERROR


def test_who_comes_when_it_is_deleted_learns_that_there_is_no_such_run(api: Api, thread_id: str) -> None:
    _, run_id, _ = wait(api, thread_id, "join", "running")
    delete(api, "run", thread_id, run_id)
    for path in (f"/threads/{thread_id}/runs/{run_id}", f"/runs/{run_id}"):
        for end in ("join", "stream"):
            assert api.get(f"{path}/{end}").status_code == 404, (path, end)


def test_who_waits_for_a_stateless_run_that_is_deleted_or_rolled_back_has_no_values(api: Api) -> None:
    deleted, rolled_back = (api.post("/runs", {"assistant_id": "agent"}).json for _ in range(2))
    Actor(deleted["run_id"])
    waiting = [api.get(f"/runs/{run['run_id']}/join", buffered=False) for run in (deleted, rolled_back)]
    delete(api, "run", deleted["thread_id"], deleted["run_id"])
    roll_back(api, "cancel", rolled_back["thread_id"], rolled_back["run_id"])
    assert [response.json for response in waiting] == [{"__error__": NOT_FOUND}, {}]


ROLLBACKS = [
    # request, state of the run, its reader
    ("cancel", "pending", "create wait"),
    ("cancel many", "pending", "join"),
    ("strategy", "pending", "join"),
    ("cancel", "enqueued", "join"),
    ("cancel many", "enqueued", "create wait"),
    ("strategy", "enqueued", "create wait"),
]


def roll_back(api: Api, how: str, thread_id: str, run_id: str) -> None:
    path, body = {
        "cancel": (f"/threads/{thread_id}/runs/{run_id}/cancel?action=rollback", {}),
        "cancel many": ("/runs/cancel?action=rollback", {"thread_id": thread_id, "run_ids": [run_id]}),
        "strategy": (
            f"/threads/{thread_id}/runs",
            {"assistant_id": "agent", "multitask_strategy": "rollback"},
        ),
    }[how]
    assert api.post(path, body).status_code in (200, 202, 204)


@pytest.mark.parametrize(("how", "state", "reader"), ROLLBACKS)
def test_who_waits_for_a_run_that_is_rolled_back_before_it_begins_gets_the_thread_s_values(
    api: Api, thread_id: str, reader: str, state: str, how: str
) -> None:
    response, run_id, _ = wait(api, thread_id, reader, state)
    roll_back(api, how, thread_id, run_id)
    assert response.json == VALUES


@pytest.mark.parametrize("output", [{"n": 2}, None], ids=["with values", "without"])
@pytest.mark.parametrize("reader", ["create wait", "join"])
def test_who_waits_for_a_run_that_is_rolled_back_gets_what_it_had_come_to(
    api: Api, thread_id: str, reader: str, output: Any
) -> None:
    response, run_id, actor = wait(api, thread_id, reader, "running")
    assert actor is not None
    roll_back(api, "cancel", thread_id, run_id)
    with connection() as conn:
        finish.roll_back(conn, actor.run, error={"error": "UserRollback", "message": ""})
    actor.end("rollback", output)
    assert response.json == (output or VALUES)
