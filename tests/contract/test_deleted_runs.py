"""What readers of a run hear when it is deleted or rolled back while they wait for it."""

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

DELETIONS = ["run", "thread"]
STATES = ["pending", "enqueued", "running"]


@pytest.fixture
def thread_id(api: Api) -> str:
    """A thread on which a run has left values."""
    thread_id = api.post("/threads").json["thread_id"]
    act(api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"}).json["run_id"], VALUES)
    return thread_id


def wait(api: Api, thread_id: str, how: str, state: str) -> tuple[TestResponse, str, Actor | None]:
    """Somebody who waits for a new run in this state, by its creation or by a join."""
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


@pytest.mark.parametrize("what", DELETIONS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", ["create wait", "join"])
def test_who_waits_for_a_run_that_is_deleted_gets_an_error(
    api: Api, thread_id: str, how: str, state: str, what: str
) -> None:
    response, run_id, _ = wait(api, thread_id, how, state)
    delete(api, what, thread_id, run_id)
    assert (response.status_code, response.json) == (200, {"__error__": NOT_FOUND})


@pytest.mark.parametrize("what", DELETIONS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", ["create stream", "stream"])
def test_the_stream_of_a_run_that_is_deleted_ends_with_the_same_error(
    api: Api, thread_id: str, how: str, state: str, what: str
) -> None:
    response, run_id, _ = wait(api, thread_id, how, state)
    delete(api, what, thread_id, run_id)
    begun = state == "running" or (how, state) == ("create stream", "pending")
    first = f'event: metadata\r\ndata: {{"run_id":"{run_id}","attempt":1}}\r\n\r\n'
    assert events_of(response) == (first if begun else "") + ERROR


@pytest.mark.parametrize("end", ["join", "stream"])
def test_who_comes_when_it_is_deleted_learns_that_there_is_no_such_run(
    api: Api, thread_id: str, end: str
) -> None:
    response, run_id, _ = wait(api, thread_id, "join", "running")
    delete(api, "run", thread_id, run_id)
    assert response.json == {"__error__": NOT_FOUND}
    for path in (f"/threads/{thread_id}/runs/{run_id}", f"/runs/{run_id}"):
        assert api.get(f"{path}/{end}").status_code == 404


def test_who_waits_for_a_stateless_run_that_is_deleted_gets_an_error(api: Api) -> None:
    made = api.post("/runs", {"assistant_id": "agent"}).json
    Actor(made["run_id"])
    response = api.get(f"/runs/{made['run_id']}/join", buffered=False)
    delete(api, "run", made["thread_id"], made["run_id"])
    assert response.json == {"__error__": NOT_FOUND}


ROLLBACKS = ["cancel", "cancel many", "strategy"]


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


@pytest.mark.parametrize("how", ROLLBACKS)
@pytest.mark.parametrize("state", ["pending", "enqueued"])
@pytest.mark.parametrize("reader", ["create wait", "join"])
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


def test_a_stateless_run_that_is_rolled_back_before_it_begins_has_no_values(api: Api) -> None:
    made = api.post("/runs", {"assistant_id": "agent"}).json
    response = api.get(f"/runs/{made['run_id']}/join", buffered=False)
    api.post(f"/threads/{made['thread_id']}/runs/{made['run_id']}/cancel?action=rollback")
    assert response.json == {}
