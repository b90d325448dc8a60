"""Figures of runs over HTTP: the series and the overview of the caller's organization."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from shared.models import RunStatus
from tests.contract.conftest import Api
from tests.support.acting import act

POINT = (
    "at", "created", "success", "error", "timeout", "interrupted", "attempts", "input_tokens", "output_tokens",
    "wait_p50", "wait_p95", "duration_p50", "duration_p95", "first_token_p50", "first_token_p95",
)  # fmt: skip
DEPLOYMENT = (
    "id", "name", "status", "pool", "revision_number", "runs_a_minute", "success", "failed", "wait_p50",
    "duration_p50", "duration_p95", "running", "waiting", "oldest_wait_seconds",
)  # fmt: skip


def run_once(api: Api) -> None:
    made = api.post("/threads", {}).json
    run = api.post(f"/threads/{made['thread_id']}/runs", {"assistant_id": "agent"}).json
    act(run["run_id"], {"a": 1}, usage={"m": {"input_tokens": 3, "output_tokens": 4}})


def test_a_run_is_in_the_series_as_soon_as_it_has_ended(api: Api, neighbour: Api) -> None:
    run_once(api)

    found = api.client.get("/v2/metrics/series").json

    assert set(found) == {"step_seconds", "from", "until", "points", "total"}
    assert set(found["total"]) == set(POINT) - {"at"}
    assert (found["total"]["success"], found["total"]["input_tokens"]) == (1, 3)
    assert (found["step_seconds"], len(found["points"])) == (60, 60)
    assert all(set(point) == set(POINT) for point in found["points"])
    ended = [point for point in found["points"] if point["success"]]
    assert [(point["input_tokens"], point["output_tokens"]) for point in ended] == [(3, 4)]
    assert ended[0]["duration_p50"] >= 0
    assert ended[0]["first_token_p50"] is None
    assert sum(point["created"] for point in found["points"]) == 1
    for id in (uuid4(), neighbour.deployment.id):
        assert api.client.get(f"/v2/metrics/series?deployment_id={id}").status_code == 404
    for query, name in (
        ("window=year", "window"),
        ("window=", "window"),
        ("deployment_id=1", "deployment_id"),
    ):
        refused = api.client.get(f"/v2/metrics/series?{query}")
        assert (refused.status_code, refused.json["detail"][0]["loc"][1]) == (422, name), query
    others = neighbour.client.get("/v2/metrics/series").json
    assert sum(point["created"] for point in others["points"]) == 0


def test_longer_windows(api: Api) -> None:
    run_once(api)
    for window, points in (("day", 24), ("week", 168)):
        path = f"/v2/metrics/series?window={window}"
        found = api.client.get(f"{path}&deployment_id={api.deployment.id}").json
        sums = len(found["points"]), sum(point["success"] for point in found["points"])
        assert (window, *sums) == (window, points, 1)
        of_key = api.client.get(f"{path}&key_id=nobodyskey").json
        assert (window, sum(point["success"] for point in of_key["points"])) == (window, 0)


def test_the_overview_has_every_deployment_of_the_caller(api: Api, neighbour: Api) -> None:
    run_once(api)

    (found,) = api.client.get("/v2/metrics/overview?window=week").json["deployments"]

    assert set(found) == set(DEPLOYMENT)
    assert (found["id"], found["name"], found["revision_number"]) == (str(api.deployment.id), "chat", 1)
    assert (found["success"], found["failed"], found["running"], found["waiting"]) == (1, 0, 0, 0)
    (theirs,) = neighbour.client.get("/v2/metrics/overview").json["deployments"]
    assert (theirs["id"], theirs["success"]) == (str(neighbour.deployment.id), 0)


def fail(api: Api, error: str = "ValueError") -> dict[str, Any]:
    thread = api.post("/threads", {}).json
    run = api.post(f"/threads/{thread['thread_id']}/runs", {"assistant_id": "agent"}).json
    act(run["run_id"], {}, status=RunStatus.ERROR, error={"error": error, "message": "no"})
    return run


def test_failures_are_counted_by_reason_and_a_search_finds_exactly_these(api: Api, neighbour: Api) -> None:
    failed = [fail(api), fail(api), fail(api, "KeyError")]
    run_once(api)

    found = api.client.get("/v2/metrics/failures?window=day").json

    assert [(row["status"], row["error"], row["runs"]) for row in found["reasons"]] == [
        ("error", "ValueError", 2),
        ("error", "KeyError", 1),
    ]
    assert {(row["deployment_id"], row["deployment"]) for row in found["reasons"]} == {
        (str(api.deployment.id), "chat")
    }
    assert (found["unrecorded"], found["incomplete"]) == ([], [])
    filters = {"status": ["error"], "error": "ValueError", "since": found["from"], "until": found["until"]}
    searched = api.post("/runs/search", filters).json
    assert {run["run_id"] for run in searched} == {run["run_id"] for run in failed[:2]}
    assert neighbour.client.get("/v2/metrics/failures").json["reasons"] == []


def test_failures_that_left_no_record_are_counted_apart(api: Api) -> None:
    fail(api)
    api.delete(f"/threads/{fail(api)['thread_id']}")

    found = api.client.get("/v2/metrics/failures").json

    assert [row["runs"] for row in found["reasons"]] == [1]
    assert found["unrecorded"] == [{"deployment_id": str(api.deployment.id), "status": "error", "runs": 1}]
