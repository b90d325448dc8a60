"""Options of a new run beside its input: start time, checkpoint, precondition; also batches and bulk cancels."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from shared.infra.postgres import connection, driver
from shared.models import ThreadStatus
from shared.runs import backlog, claims, nesting
from tests.contract.conftest import Api, Notifications
from tests.contract.run_calls import MISSING, start
from tests.contract.statements import column, execute, scalar
from tests.support.acting import Actor, act

CHECKPOINT = "1f1e0000-0000-6000-8000-000000000001"


def statuses(api: Api, thread_id: str) -> list[str]:
    """Return the statuses of a thread's runs, oldest first."""
    return [run["status"] for run in reversed(api.get(f"/threads/{thread_id}/runs").json)]


def claimable(run: dict[str, Any]) -> bool:
    """Return whether the run can be claimed now, without claiming it."""
    with driver() as conn, conn.transaction(force_rollback=True):
        return bool(claims.claim(conn, [UUID(run["run_id"])], claims.Terms("w", 30, 60)))


def due(run: dict[str, Any]) -> None:
    execute("UPDATE run SET not_before = now() WHERE run_id = :id", id=run["run_id"])


# Delayed runs


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
        overlooked = backlog.mark_notified(conn)
    assert (row.same, row.later) == (True, True)
    assert later["created_at"] > later["updated_at"]
    assert notifications.heard == [("runs.default", behind["run_id"])]
    assert overlooked == []
    assert (later["status"], api.get(f"/threads/{thread_id}").json["status"]) == ("pending", "busy")
    assert (claimable(later), claimable(behind)) == (False, False)

    due(later)
    with connection() as conn:
        assert [str(run.run_id) for run in backlog.mark_notified(conn)] == [later["run_id"]]
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


def test_a_time_that_has_come_is_now(api: Api, notifications: Notifications) -> None:
    for seconds in (0, -5, 0.0, None):
        run = api.post("/runs", {"assistant_id": "agent", "after_seconds": seconds}).json
        assert (seconds, notifications.heard[-1]) == (seconds, ("runs.default", run["run_id"]))
        assert claimable(run), seconds


# Runs from a checkpoint

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


def test_the_checkpoint_to_start_from_is_frozen_into_the_run(
    api: Api, thread_id: str, subtests: pytest.Subtests
) -> None:
    for body, place in PLACES:
        with subtests.test(body=body, place=place):
            kwargs = start(api, thread_id, context={"c": 1} if "config" not in body else {}, **body)["kwargs"]
            found = {
                name: value for name, value in kwargs["config"]["configurable"].items() if name not in OURS
            }
            assert found == ({"c": 1} if "config" not in body else {}) | place
            assert "checkpoint_id" not in kwargs["context"]


def test_a_checkpoint_is_on_the_runs_own_thread(api: Api, thread_id: str) -> None:
    body = {"assistant_id": "agent", "checkpoint": {"checkpoint_id": CHECKPOINT, "thread_id": thread_id}}
    assert api.post(f"/threads/{thread_id}/runs", body).status_code == 200
    body["checkpoint"] = {"checkpoint_id": CHECKPOINT, "thread_id": MISSING}
    assert api.post(f"/threads/{thread_id}/runs", body).status_code == 422
    run = api.post("/runs", {**body, "on_completion": "keep"}).json
    assert "checkpoint_id" not in run["kwargs"]["config"]["configurable"]


# Preconditions on the thread's status


def test_a_thread_of_another_status_than_expected_is_409(
    api: Api, thread_id: str, subtests: pytest.Subtests
) -> None:
    rows: list[Any] = [
        ("interrupted", 200),
        (["idle", "interrupted"], 200),
        ("idle", 409),
        (["busy", "error"], 409),
        (None, 200),
    ]
    for wanted, status in rows:
        with subtests.test(wanted=wanted, status=status):
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


def test_a_thread_on_which_something_runs_is_busy_and_one_that_is_made_for_the_run_was_idle(
    api: Api, thread_id: str
) -> None:
    first = start(api, thread_id, if_thread_status="idle")
    body = {"assistant_id": "agent", "if_thread_status": "idle", "multitask_strategy": "rollback"}
    assert api.post(f"/threads/{thread_id}/runs", body).status_code == 409
    assert statuses(api, thread_id) == ["pending"]
    start(api, thread_id, if_thread_status="busy")
    assert claimable(first)

    new = str(uuid4())
    refused = api.post(f"/threads/{new}/runs", {"assistant_id": "agent", "if_thread_status": "idle"})
    body = {"assistant_id": "agent", "if_not_exists": "create", "if_thread_status": "interrupted"}
    assert (refused.status_code, api.post(f"/threads/{new}/runs", body).status_code) == (404, 409)
    start(api, new, if_not_exists="create", if_thread_status="idle")


# Batches


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
    asked = column("SELECT cancel_requested FROM run WHERE status = 'running'")
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


# Runs created by runs


def depth_of(run: Any) -> int:
    with connection() as conn:
        found = conn.execute(text("SELECT depth FROM run WHERE run_id = :id"), {"id": UUID(run["run_id"])})
        return found.scalar_one()


def test_a_run_that_a_run_creates_is_one_deeper(api: Api, thread_id: str) -> None:
    calling = start(api, thread_id)
    headers = {nesting.HEADER: calling["run_id"]}
    on_thread = f"/threads/{api.post('/threads').json['thread_id']}/runs"

    def depths() -> list[int]:
        created = [
            api.post(path, {"assistant_id": "agent"}, headers=headers) for path in ("/runs", on_thread)
        ]
        batch = api.post("/runs/batch", [{"assistant_id": "agent"}], headers=headers)
        return [depth_of(run) for run in (*(response.json for response in created), *batch.json)]

    assert depths() == [0, 0, 0], "a run that does not run calls nobody"
    Actor(calling["run_id"])
    assert depths() == [1, 1, 1]


def test_a_run_that_is_nested_too_deep_creates_none(api: Api, thread_id: str) -> None:
    calling = start(api, thread_id)
    Actor(calling["run_id"])
    execute("UPDATE run SET depth = :depth", depth=nesting.MAX_DEPTH)
    headers = {nesting.HEADER: calling["run_id"]}

    for path in ("/runs", "/runs/wait", "/runs/stream"):
        refused = api.post(path, {"assistant_id": "agent"}, headers=headers)
        assert refused.status_code == 409
        assert f"Run {calling['run_id']} is nested 10 deep" in refused.json["detail"]
    assert scalar("SELECT count(*) FROM run") == 1


def test_what_names_no_run_is_refused_with_the_header(api: Api) -> None:
    for value in ("nobody", "", "٠" * 32, "0x" + "a" * 30, f"{uuid4()}, {uuid4()}", "a" * 1_000_000):
        refused = api.post("/runs", {"assistant_id": "agent"}, headers={nesting.HEADER: value})

        assert refused.status_code == 422
        assert refused.json["detail"] == f"{nesting.HEADER}: must be a UUID"
