"""Figures of runs over HTTP: series and overview of the caller's organization."""

from __future__ import annotations

from uuid import uuid4

import pytest

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

    assert set(found) == {"step_seconds", "from", "until", "points"}
    assert (found["step_seconds"], len(found["points"])) == (60, 60)
    assert all(set(point) == set(POINT) for point in found["points"])
    ended = [point for point in found["points"] if point["success"]]
    assert [(point["input_tokens"], point["output_tokens"]) for point in ended] == [(3, 4)]
    assert ended[0]["duration_p50"] >= 0
    assert ended[0]["first_token_p50"] is None
    assert sum(point["created"] for point in found["points"]) == 1
    others = neighbour.client.get("/v2/metrics/series").json
    assert sum(point["created"] for point in others["points"]) == 0


@pytest.mark.parametrize(("window", "points"), [("day", 24), ("week", 168)])
def test_longer_windows(api: Api, window: str, points: int) -> None:
    run_once(api)

    found = api.client.get(f"/v2/metrics/series?window={window}&deployment_id={api.deployment.id}").json

    assert len(found["points"]) == points
    assert sum(point["success"] for point in found["points"]) == 1
    of_key = api.client.get(f"/v2/metrics/series?window={window}&key_id=nobodyskey").json
    assert sum(point["success"] for point in of_key["points"]) == 0


def test_the_overview_has_every_deployment_of_the_caller(api: Api, neighbour: Api) -> None:
    run_once(api)

    (found,) = api.client.get("/v2/metrics/overview?window=week").json["deployments"]

    assert set(found) == set(DEPLOYMENT)
    assert (found["id"], found["name"], found["revision_number"]) == (str(api.deployment.id), "chat", 1)
    assert (found["success"], found["failed"], found["running"], found["waiting"]) == (1, 0, 0, 0)
    (theirs,) = neighbour.client.get("/v2/metrics/overview").json["deployments"]
    assert (theirs["id"], theirs["success"]) == (str(neighbour.deployment.id), 0)


@pytest.mark.parametrize("path", ["series?window=year", "series?deployment_id=1", "overview?window="])
def test_what_is_asked_wrongly_is_named(api: Api, path: str) -> None:
    answer = api.client.get(f"/v2/metrics/{path}")

    assert answer.status_code == 422
    assert answer.json["detail"][0]["loc"][1] in ("window", "deployment_id")


def test_a_deployment_that_is_not_ones_own_is_not_found(api: Api, neighbour: Api) -> None:
    for id in (uuid4(), neighbour.deployment.id):
        assert api.client.get(f"/v2/metrics/series?deployment_id={id}").status_code == 404
