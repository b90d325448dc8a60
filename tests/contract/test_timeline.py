"""Timelines of runs and threads over HTTP."""

from __future__ import annotations

from typing import Any

from shared.models import ThreadStatus
from tests.contract.conftest import Api
from tests.contract.run_calls import start
from tests.support.acting import Actor

QUESTION = {"task": [{"id": "q1", "value": "Send it?"}]}
SPANS = {
    "attempt_ms": 5,
    "lasted_ms": 4,
    "claimed_ms": 0.5,
    "spans": [{"id": "a", "kind": "node", "name": "ask", "from": 0, "until": 4, "error": "interrupted"}],
}


def kinds(api: Api, path: str) -> list[tuple[str, str]]:
    response = api.get(path)
    assert response.status_code == 200, response.json
    return [(band["kind"], band["status"]) for band in response.json["bands"]]


def test_a_run_shows_its_wait_then_its_attempt_with_what_its_host_reported(api: Api, thread_id: str) -> None:
    run = start(api, thread_id)
    path = f"/threads/{thread_id}/runs/{run['run_id']}/timeline"

    assert kinds(api, path) == [("queue", "waiting")]
    assert api.get(path).json["until"] is None

    Actor(run["run_id"]).finish({}, spans=SPANS)

    line = api.get(path).json
    assert [band["kind"] for band in line["bands"]] == ["queue", "attempt", "claim", "host_start", "node"]
    assert line["from"] == run["created_at"]
    assert line["until"] == line["bands"][1]["ended_at"]
    assert {band["run_id"] for band in line["bands"]} == {run["run_id"]}


def test_a_thread_shows_its_runs_with_one_persons_band_between_a_question_and_its_answer(
    api: Api, thread_id: str
) -> None:
    asking = start(api, thread_id)
    Actor(asking["run_id"]).finish(
        {}, thread_status=ThreadStatus.INTERRUPTED, interrupts=QUESTION, spans=SPANS
    )
    path = f"/threads/{thread_id}"
    assert kinds(api, f"{path}/runs/{asking['run_id']}/timeline")[-1] == ("person", "waiting")

    answering = start(api, thread_id, input=None, command={"resume": "yes"})
    Actor(answering["run_id"]).finish({})

    assert kinds(api, f"{path}/runs/{asking['run_id']}/timeline")[-1] == ("person", "success")
    assert kinds(api, f"{path}/runs/{answering['run_id']}/timeline")[0] == ("person", "success")
    line: dict[str, Any] = api.get(f"{path}/timeline").json
    assert [band["kind"] for band in line["bands"]].count("person") == 1
    assert line["from"] == asking["created_at"]


def test_a_thread_without_runs_has_an_empty_timeline(api: Api, thread_id: str) -> None:
    assert api.get(f"/threads/{thread_id}/timeline").json["bands"] == []


def test_a_run_of_another_thread_is_missing(api: Api, thread_id: str) -> None:
    run = start(api, thread_id)
    other = api.post("/threads", {}).json["thread_id"]

    assert api.get(f"/threads/{other}/runs/{run['run_id']}/timeline").status_code == 404
