"""Runs over HTTP: cancelled and deleted, while pending and while running."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

import tests.support.factories as make
from shared.eventlog import events
from shared.infra import redis
from shared.infra.postgres import connection
from shared.models import CHECKPOINT, RunStatus, ThreadStatus
from tests.contract.conftest import Api, Notifications
from tests.contract.run_calls import start, status_of, thread
from tests.support.acting import Actor, act


def test_a_pending_run_is_cancelled_in_place(api: Api, thread_id: str) -> None:
    for wait, answer in ((0, (202, b"")), (1, (200, b"{}"))):
        run = start(api, thread_id)
        path = f"/threads/{thread_id}/runs/{run['run_id']}"

        response = api.call("POST", f"{path}/cancel?wait={wait}")

        assert (wait, (response.status_code, response.data)) == (wait, answer)
        if wait:
            assert response.headers["Location"] == f"{path}/join"
            assert response.headers["Content-Location"] == path
        assert (wait, status_of(api, run)) == (wait, "interrupted")


def test_cancelling_a_running_run_asks_its_owner_and_can_wait_for_it(api: Api, thread_id: str) -> None:
    run = start(api, thread_id)
    actor = Actor(run["run_id"])
    path = f"/threads/{thread_id}/runs/{run['run_id']}"

    response = api.call("POST", f"{path}/cancel?wait=true&action=interrupt&reason=taken")

    record = api.get(path).json
    reason = f"taken: interrupt requested via POST {path}/cancel"
    assert (record["status"], record["cancel_reason"]) == ("running", reason)
    error = {"error": "UserInterrupt", "message": reason}
    actor.finish({"a": 1}, status=RunStatus.INTERRUPTED, thread_status=ThreadStatus.INTERRUPTED, error=error)
    assert (response.status_code, response.json) == (200, {})
    assert response.headers["Location"] == f"{path}/join"
    assert status_of(api, run) == "interrupted"
    ended = thread(api, thread_id)
    assert (ended["status"], ended["error"], ended["values"]) == ("interrupted", error, {"a": 1})


def checkpoint(api: Api, run: dict[str, Any], checkpoint_id: str) -> None:
    make._insert(
        CHECKPOINT,
        deployment_id=api.deployment.id,
        thread_id=UUID(run["thread_id"]),
        checkpoint_ns="",
        checkpoint_id=checkpoint_id,
        run_id=UUID(run["run_id"]),
        type="msgpack",
        data=b"",
    )


def test_a_deleted_run_takes_its_checkpoints_and_leaves_the_values(api: Api, thread_id: str) -> None:
    first, second = start(api, thread_id), start(api, thread_id)
    error = {"error": "ValueError", "message": "boom"}
    act(first["run_id"], {"a": 1})
    actor = Actor(second["run_id"])
    actor.finish({"a": 2}, status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=error)
    checkpoint(api, first, "c1")
    checkpoint(api, second, "c2")
    before = thread(api, thread_id)

    response = api.delete(f"/threads/{thread_id}/runs/{first['run_id']}")

    assert (response.status_code, response.data) == (204, b"")
    assert thread(api, thread_id) == before
    with connection() as conn:
        assert conn.scalars(select(CHECKPOINT.c.checkpoint_id)).all() == ["c2"]
    again = api.delete(f"/threads/{thread_id}/runs/{first['run_id']}")
    assert (again.status_code, again.json) == (404, {"detail": "Run not found"})


@pytest.mark.parametrize("started", [False, True])
def test_deleting_a_live_run_frees_the_thread_and_ends_its_log(
    api: Api, thread_id: str, started: bool, notifications: Notifications
) -> None:
    run, waiting = start(api, thread_id), start(api, thread_id)
    actor = Actor(run["run_id"]) if started else None
    notifications.heard.clear()

    assert api.delete(f"/threads/{thread_id}/runs/{run['run_id']}").status_code == 204

    assert status_of(api, run) is None
    assert notifications.heard == [("runs.default", waiting["run_id"])]
    *_, last = events.logged(redis.client(), UUID(run["run_id"]), 0)
    assert last.is_last
    if actor is not None:
        with pytest.raises(AssertionError, match="FENCED"):
            actor.emit("values", {})
    act(waiting["run_id"], {})
    assert thread(api, thread_id)["status"] == "idle"
