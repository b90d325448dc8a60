"""Runs that did not succeed: listed, and retried from where they stopped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared import assistants
from shared.infra.postgres import driver
from shared.models import RunStatus
from shared.runs import claims
from shared.runs.claims import Terms
from tests.contract.conftest import Api, Notifications
from tests.contract.run_calls import BOOM, ENDS, ended, started
from tests.contract.statements import execute, one

FIRST, SECOND, ELSEWHERE = "1-first", "2-second", "3-elsewhere"  # checkpoint ids in order


def retry(api: Api, thread_id: str, run_id: str, **body: Any) -> TestResponse:
    return api.post(f"/threads/{thread_id}/runs/{run_id}/retry", body)


def found(api: Api, **filters: Any) -> list[str]:
    response = api.post("/runs/search", filters)
    assert response.status_code == 200, response.text
    return [run["run_id"] for run in response.json]


def test_runs_that_failed_are_listed_the_last_first(api: Api, neighbour: Api, thread_id: str) -> None:
    ended(neighbour, neighbour.post("/threads").json["thread_id"])
    ended(api, thread_id, status="success")
    ids = [ended(api, thread_id, status=status) for status in ENDS]
    live = started(api, thread_id)

    response = api.post("/runs/search")

    assert [run["run_id"] for run in response.json] == ids[::-1]
    assert response.headers["X-Pagination-Total"] == "3"
    run = response.json[-1]
    assert (run["status"], run["error"], run["attempt"]) == ("error", BOOM, 1)
    assert run["started_at"] <= run["ended_at"]
    assert found(api, limit=1, offset=1) == [ids[1]]
    assert api.post("/runs/search", {"limit": 1}).headers["X-Pagination-Next"] == "1"
    live.finish({})


def test_failed_runs_are_found_by_what_is_known_of_them(api: Api, thread_id: str) -> None:
    elsewhere = api.post("/threads").json["thread_id"]
    error, timeout, stopped = (ended(api, thread_id, status=status) for status in ENDS)
    other = ended(api, elsewhere, assistant_id="other")
    execute("UPDATE run SET ended_at = now() - interval '1 day' WHERE run_id = :id", id=error)
    yesterday = datetime.now(UTC) - timedelta(hours=12)

    assert found(api, status="timeout") == [timeout]
    assert found(api, status=["error", "interrupted"]) == [other, stopped, error]
    assert found(api, since=yesterday.isoformat()) == [other, stopped, timeout]
    assert found(api, until=yesterday.isoformat()) == [error]
    assert found(api, thread_id=elsewhere) == [other]
    assert found(api, assistant_id=str(assistants.default_id("other"))) == [other]
    assert found(api, error="ValueError") == [other, error]
    assert found(api, error="ValueError", thread_id=thread_id, until=None) == [error]
    assert found(api, error="KeyError") == []


def test_runs_of_any_status_are_listed_the_newest_first(api: Api, neighbour: Api, thread_id: str) -> None:
    neighbour.post("/runs", {"assistant_id": "agent", "on_completion": "keep"})
    failed = ended(api, thread_id)
    done = ended(api, thread_id, status="success")
    live = started(api, thread_id)
    behind, elsewhere = (api.post(path, {"assistant_id": "agent"}).json["run_id"] for path in (
        f"/threads/{thread_id}/runs", "/runs"
    ))  # fmt: skip
    running = str(live.run.run_id)

    response = api.post("/runs/search", {"status": [str(status) for status in RunStatus]})

    assert [run["run_id"] for run in response.json] == [elsewhere, behind, running, done, failed]
    assert response.headers["X-Pagination-Total"] == "5"
    assert [(run.get("queue") or {}).get("reason") for run in response.json] == [
        "no runner of pool default", "earlier run of its thread", None, None, None,
    ]  # fmt: skip
    assert found(api, status=["pending", "error"], limit=2, offset=1) == [behind, failed]
    assert found(api, status="running") == [running]
    assert found(api, status="success", error=None, metadata={}) == [done]
    live.finish({})


def test_runs_of_any_status_are_found_by_what_is_known_of_them(api: Api, thread_id: str) -> None:
    marked = {"metadata": {"batch": 7, "cron_id": "c"}}
    pending = api.post("/runs", {"assistant_id": "other", "after_seconds": 3600, **marked}).json["run_id"]
    done = ended(api, thread_id, status="success", **marked)
    now = datetime.now(UTC)
    any_status: dict[str, Any] = {"status": [str(status) for status in RunStatus]}

    assert found(api, **any_status, metadata={"batch": 7}) == [done, pending]
    assert found(api, **any_status, metadata={"batch": 8}) == []
    assert found(api, **any_status, metadata={"cron_id": "c"}) == [done, pending]
    assert found(api, **any_status, metadata={"cron_id": 1}) == []
    assert found(api, **any_status, graph_id="other") == [pending]
    assert found(api, **any_status, thread_id=thread_id) == [done]
    assert found(api, **any_status, since=(now - timedelta(hours=1)).isoformat()) == [done, pending]
    assert found(api, **any_status, since=(now + timedelta(hours=1)).isoformat()) == []
    assert found(api, **any_status, until=(now - timedelta(hours=1)).isoformat()) == []
    assert found(api, graph_id="agent", metadata={"batch": 7}) == []


def test_an_unknown_status_is_422(api: Api) -> None:
    for status in ("done", ["success", "gone"]):
        response = api.post("/runs/search", {"status": status})
        assert (status, response.status_code, response.json["detail"][:6]) == (status, 422, "status")


@pytest.mark.parametrize("status", list(ENDS))
def test_a_failed_run_goes_on_from_its_last_checkpoint(
    api: Api, thread_id: str, notifications: Notifications, status: str
) -> None:
    body = {
        "input": {"a": 1},
        "config": {"recursion_limit": 7, "tags": ["x"], "configurable": {"tone": "dry", "user_id": "ann"}},
        "metadata": {"m": 1},
        "stream_mode": ["updates", "custom"],
        "stream_subgraphs": True,
        "interrupt_before": ["on"],
        "durability": "sync",
    }
    run_id = ended(api, thread_id, FIRST, SECOND, status=status, **body)
    before = api.get(f"/threads/{thread_id}/runs/{run_id}").json
    notifications.heard.clear()

    response = retry(api, thread_id, run_id)

    again = response.json
    assert (response.status_code, again["status"]) == (200, "pending")
    assert response.headers["Content-Location"] == f"/threads/{thread_id}/runs/{again['run_id']}"
    assert notifications.heard == [("runs.default", again["run_id"])]
    assert again["kwargs"].pop("input") is None
    asked = before["kwargs"]
    del asked["input"]
    for kwargs in (asked, again["kwargs"]):
        for name in ("run_id", "langgraph_request_id"):
            del kwargs["config"]["configurable"][name]
    assert again["kwargs"] == asked
    assert again["metadata"] == {**before["metadata"], "retry_of": run_id}
    assert api.get(f"/threads/{thread_id}").json["status"] == "busy"
    assert api.get(f"/threads/{thread_id}/runs/{run_id}").json["status"] == status

    with driver() as conn:
        _, stored = claims.claim(conn, [UUID(again["run_id"])], Terms("w", 30, 3600))[0]
    assert stored is not None
    assert f"data of {SECOND}".encode() in b"".join(stored)


def test_a_run_that_reached_nothing_starts_over(api: Api, thread_id: str) -> None:
    ended(api, thread_id, FIRST, status="success")
    run_id = ended(api, thread_id, input={"a": 1})
    again = retry(api, thread_id, run_id).json
    assert (again["kwargs"]["input"], again["kwargs"]["command"]) == ({"a": 1}, None)
    assert "checkpoint_id" not in again["kwargs"]["config"]["configurable"]


def test_what_was_asked_of_an_open_question_is_asked_again(api: Api, thread_id: str) -> None:
    ended(api, thread_id, FIRST, status="success")
    place = str(uuid4())
    run_id = ended(
        api, thread_id, command={"resume": "yes"}, strict_resume=True, checkpoint={"checkpoint_id": place}
    )
    kwargs = retry(api, thread_id, run_id).json["kwargs"]
    assert (kwargs["command"], kwargs["strict_resume"]) == ({"resume": "yes"}, True)
    assert kwargs["config"]["configurable"]["checkpoint_id"] == place


def test_a_thread_that_moved_on_must_be_forced(api: Api, thread_id: str) -> None:
    run_id = ended(api, thread_id, FIRST)
    ended(api, thread_id, SECOND, status="success")

    refused = retry(api, thread_id, run_id)
    assert refused.status_code == 409
    assert "has changed since" in refused.json["detail"]

    forced = retry(api, thread_id, run_id, force=True).json
    assert forced["kwargs"]["config"]["configurable"]["checkpoint_id"] == FIRST
    assert forced["kwargs"]["input"] is None


def test_a_state_set_by_hand_since_is_a_move(api: Api) -> None:
    for reached in ((), (FIRST,)):
        thread_id = api.post("/threads").json["thread_id"]
        run_id = ended(api, thread_id, *reached)
        writer = make.run(api.deployment, UUID(thread_id), status=RunStatus.RUNNING, attempt=1, owner="w")
        make.stored(one("SELECT * FROM run WHERE run_id = :id", id=writer), ELSEWHERE)
        execute("DELETE FROM run WHERE run_id = :id", id=writer)
        assert (reached, retry(api, thread_id, run_id).status_code) == (reached, 409)
        forced = retry(api, thread_id, run_id, force=True).json["kwargs"]["config"]["configurable"]
        assert forced.get("checkpoint_id") == (FIRST if reached else None)


def test_a_run_that_never_ran_is_no_move(api: Api, thread_id: str) -> None:
    run_id = ended(api, thread_id, FIRST)
    pending = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"}).json["run_id"]
    assert retry(api, thread_id, run_id, force=True).status_code == 409, "busy, whatever is forced"
    api.call("POST", f"/threads/{thread_id}/runs/{pending}/cancel")
    assert retry(api, thread_id, run_id).status_code == 200


@pytest.mark.usefixtures("own_key")
def test_a_retry_sent_twice_makes_one_run(api: Api, thread_id: str) -> None:
    run_id = ended(api, thread_id, FIRST)
    path = f"/threads/{thread_id}/runs/{run_id}/retry"
    first, second = (api.call("POST", path, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert first.status_code == second.status_code == 200
    assert first.json == second.json
    assert len(api.get(f"/threads/{thread_id}/runs").json) == 2
