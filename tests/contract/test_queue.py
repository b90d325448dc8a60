"""Reasons why runs wait, in the record of each run and for a whole deployment."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import text

import tests.support.factories as make
from shared import fleet
from shared.fleet import Heartbeat
from shared.infra.postgres import connection
from tests.contract.conftest import Api, caller, new_key
from tests.contract.statements import execute
from tests.support.acting import Actor


def runner(*, slots: int = 10, pool: str = "default", state: str = "ready") -> None:
    said = Heartbeat(
        id=f"{pool} {state}",
        kind="runner",
        pool=pool,
        host_name="h",
        pid=1,
        version="1",
        isolation=2,
        slots=slots,
        state=state,
    )
    with connection() as conn:
        fleet.record_heartbeat(conn, said)


def silence_runners() -> None:
    execute("UPDATE worker SET seen_at = now() - interval '13 seconds'")


def start(api: Api, thread_id: str | None = None, **body: Any) -> Any:
    path = f"/threads/{thread_id}/runs" if thread_id else "/runs"
    response = api.post(path, {"assistant_id": "agent", "on_completion": "keep", **body})
    assert response.status_code == 200, response.text
    return response.json


def queue_of(api: Api, run: Any) -> Any:
    return api.get(f"/threads/{run['thread_id']}/runs/{run['run_id']}").json.get("queue")


def line_of(api: Api, run: Any) -> tuple[int | None, str]:
    queue = queue_of(api, run)
    assert queue["waiting_seconds"] >= 0
    return queue["position"], queue["reason"]


def limit(api: Api, number: int | None) -> None:
    execute("UPDATE deployment SET max_concurrent_runs = :n WHERE id = :id", n=number, id=api.deployment.id)


def limit_key(key_id: str, number: int | None) -> None:
    with connection() as conn:
        query = text("UPDATE api_key SET max_concurrent_runs = :n WHERE id = :id")
        conn.execute(query, {"n": number, "id": key_id})


def friend(api: Api) -> tuple[Api, str]:
    """Create another key of the organization. Returns the deployment's API for that key, and the key's id."""
    key = new_key()
    return Api(caller(api.client.application, key), api.deployment), key.split("_")[1]


def test_a_run_says_what_it_waits_for_until_it_starts(api: Api) -> None:
    thread_id = api.post("/threads").json["thread_id"]
    first, second, third = (start(api, thread_id) for _ in range(3))
    assert "queue" not in first, "as it is created nothing is known yet"
    assert line_of(api, first) == (1, "no runner of pool default")
    assert line_of(api, second) == (1, "earlier run of its thread")
    assert line_of(api, third) == (2, "earlier run of its thread")

    actor = Actor(first["run_id"])
    assert queue_of(api, first) is None
    assert line_of(api, second) == (1, "earlier run of its thread")
    listed = api.get(f"/threads/{thread_id}/runs").json
    assert [run.get("queue", {}).get("position") for run in listed] == [2, 1, None]
    chosen = api.get(f"/threads/{thread_id}/runs?select=queue&limit=1").json
    assert chosen[0].keys() == {"queue"}

    actor.finish({})
    assert queue_of(api, first) is None
    assert line_of(api, second) == (1, "no runner of pool default")


def test_each_reason_is_given_in_its_order(api: Api) -> None:
    theirs, key_id = friend(api)
    first, other = start(theirs), start(theirs)
    later = start(api, after_seconds=3600)
    assert line_of(api, other) == (2, "no runner of pool default")
    runner(state="draining")
    runner(pool="gpu")
    assert line_of(api, other) == (2, "runners of pool default are drained")
    runner(slots=1)
    assert line_of(api, other) == (2, "not picked up yet")
    silence_runners()
    assert line_of(api, other) == (2, "no runner of pool default")
    runner(slots=1)

    Actor(first["run_id"])
    assert line_of(api, other) == (1, "runners are full")
    runner(slots=2)
    limit_key(key_id, 1)
    assert line_of(api, other) == (1, "key limit")
    limit_key(key_id, 2)
    assert line_of(api, other) == (1, "not picked up yet")
    limit_key(key_id, 1)
    limit(api, 1)
    assert line_of(api, other) == (1, "deployment limit")

    with connection() as conn:
        query = text("SELECT not_before FROM run WHERE run_id = :id")
        due = conn.execute(query, {"id": UUID(later["run_id"])}).scalar_one()
    said = queue_of(api, later)
    assert said == {
        "position": None, "waiting_seconds": 0, "reason": f"not due before {due.isoformat()[:-6]}Z"
    }  # fmt: skip


def test_the_position_counts_other_keys_round_robin(api: Api) -> None:
    theirs, _ = friend(api)
    mine = [start(api) for _ in range(5)]
    other = [start(theirs) for _ in range(2)]
    assert [line_of(api, run)[0] for run in mine] == [1, 3, 5, 6, 7]
    assert [line_of(api, run)[0] for run in other] == [1, 3]


def test_a_queue_is_shown_by_reason(api: Api, neighbour: Api) -> None:
    start(neighbour)
    empty = {
        "pending": 0,
        "running": 0,
        "oldest_wait_seconds": 0.0,
        "waiting": [],
        "max_concurrent_runs": None,
        "pool": {"name": "default", "runners": 0, "slots": 0, "running": 0},
    }
    assert api.get("/queue").json == empty

    theirs, key_id = friend(api)
    thread_id = api.post("/threads").json["thread_id"]
    Actor(start(theirs, thread_id)["run_id"])
    start(theirs, thread_id)
    start(theirs)
    start(api, after_seconds=3600)
    mine = start(api)
    limit_key(key_id, 1)
    runner(slots=8)
    execute("UPDATE run SET created_at = now() - interval '1 hour' WHERE run_id = :id", id=mine["run_id"])

    said: Any = api.get("/queue").json

    assert (said["pending"], said["running"]) == (4, 1)
    assert said["pool"] == {"name": "default", "runners": 1, "slots": 8, "running": 1}
    assert {each["reason"]: each["runs"] for each in said["waiting"]} == {
        "not picked up yet": 1, "earlier run of its thread": 1, "key limit": 1, "not due yet": 1,
    }  # fmt: skip
    first = said["waiting"][0]
    assert (first["reason"], round(first["oldest_wait_seconds"], -2)) == ("not picked up yet", 3600)
    assert said["oldest_wait_seconds"] == first["oldest_wait_seconds"]

    limit(api, 1)
    said = api.get("/queue").json
    assert {each["reason"]: each["runs"] for each in said["waiting"]} == {
        "deployment limit": 2, "earlier run of its thread": 1, "not due yet": 1,
    }  # fmt: skip
    assert said["max_concurrent_runs"] == 1


def test_a_run_remembers_its_key(api: Api) -> None:
    theirs, key_id = friend(api)
    runs = [start(theirs), *theirs.post("/runs/batch", [{"assistant_id": "agent"}]).json, start(api)]
    found = execute("SELECT run_id, key_id FROM run")
    keys = {str(row.run_id): row.key_id for row in found}
    assert [keys[run["run_id"]] for run in runs] == [key_id, key_id, "bootstrap"]


def test_the_position_is_counted_over_every_deployment_of_the_pool(api: Api) -> None:
    other = make.deployment("other")
    for pending in (1, 49):  # 50 in total
        for _ in range(pending):
            make.run(other, key_id="somebody")
        runs = [start(api) for _ in range(2)]
        assert (pending, [line_of(api, run)[0] for run in runs]) == (pending, [1, 3])
        for run in runs:
            Actor(run["run_id"]).finish({})
