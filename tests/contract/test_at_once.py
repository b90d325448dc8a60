"""Simultaneous calls of several clients to one deployment, also while it has runs in progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import orjson

from shared.eventlog import events
from shared.infra import redis as shared_redis
from shared.models import RunStatus
from tests.contract.conftest import Api, ControlPlane
from tests.contract.statements import column, execute
from tests.support.acting import Actor


def test_the_runs_of_a_deleted_deployment_end_and_their_followers_see_it(
    control: ControlPlane, api: Api, redis: Any
) -> None:
    waiting, running = (api.post("/runs", {"assistant_id": "agent", "input": {}}).json for _ in range(2))
    actor = Actor(running["run_id"], owner="runner")
    with redis.pubsub() as runner:
        runner.subscribe(shared_redis.control_channel("runner"))
        assert runner.get_message(timeout=5)["type"] == "subscribe"

        response = control.call("DELETE", f"/v2/deployments/{api.deployment.id}")

        assert response.status_code == 204
        told = orjson.loads(runner.get_message(timeout=5)["data"])
    assert (told["run_id"], told["action"]) == (running["run_id"], "interrupt")
    assert told["reason"] == "the deployment was deleted"
    log = events.logged(redis, UUID(waiting["run_id"]), 0)
    assert [event.name for event in log] == ["end"]
    rows = execute("SELECT run_id, status, cancel_requested FROM run")
    assert {(str(row.run_id), row.status, row.cancel_requested) for row in rows} == {
        (waiting["run_id"], "interrupted", None),
        (running["run_id"], "running", "interrupt"),
    }
    assert api.post("/threads").status_code == 404
    actor.finish(status=RunStatus.INTERRUPTED)


def at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Call `act` in this many threads at the same moment. Returns their results."""
    gate = threading.Barrier(count)

    def go(n: int) -> Any:
        gate.wait(timeout=10)
        return act(n)

    with ThreadPoolExecutor(count) as crowd:
        return list(crowd.map(go, range(count)))


def test_of_two_creates_at_once_one_is_refused(control: ControlPlane) -> None:
    body = {"name": "chat", "source": "internal_source"}
    answers = at_once(4, lambda _: control.post("/v2/deployments", body).status_code)
    assert sorted(answers) == [201, 409, 409, 409]
    listed: Any = control.get("/v2/deployments").json
    assert len(listed["resources"]) == 1


def test_of_several_changes_at_once_each_makes_a_revision_and_the_last_one_waits(
    control: ControlPlane,
) -> None:
    made = control.create()
    first = control.deploy(made)["latest_revision_id"]
    answers = at_once(4, lambda n: control.change(made, secrets=[{"name": "N", "value": str(n)}]))
    listed = control.revisions(made)
    assert len({answer["latest_revision_id"] for answer in answers}) == 4
    assert {row["id"] for row in listed} == {first, *(answer["latest_revision_id"] for answer in answers)}
    assert [row["status"] for row in listed] == ["QUEUED", "SKIPPED", "SKIPPED", "SKIPPED", "AWAITING_BUILD"]
    shown: Any = control.get(f"/v2/deployments/{made['id']}").json
    assert shown["latest_revision_id"] == listed[0]["id"]


def test_of_a_change_and_a_deletion_at_once_nothing_is_left_on_its_way(control: ControlPlane) -> None:
    made = control.create()
    control.deploy(made)
    path = f"/v2/deployments/{made['id']}"
    answers = at_once(
        2,
        lambda n: (
            control.call("PATCH", path, {"secrets": [{"name": "A", "value": "1"}]}).status_code
            if n
            else control.call("DELETE", path).status_code
        ),
    )
    assert answers[0] == 204
    assert answers[1] in (200, 404)
    left = set(column("SELECT status FROM revision"))
    assert left <= {"INTERRUPTED", "SKIPPED"}
