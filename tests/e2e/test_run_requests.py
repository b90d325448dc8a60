"""Options of run requests against the whole platform: checkpoint, start time, condition, idempotency key, streaming."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx
from langgraph_sdk.client import SyncLangGraphClient


def log_of(values: Any) -> list[Any]:
    return values["log"]


def test_an_answered_question_is_asked_again_in_a_fork(sdk: SyncLangGraphClient, thread_id: str) -> None:
    sdk.runs.wait(thread_id, "asks", input={})
    waiting: Any = sdk.threads.get_state(thread_id)
    first = sdk.runs.wait(thread_id, "asks", command={"resume": "first"})

    asked: Any = sdk.runs.wait(thread_id, "asks", checkpoint=waiting["checkpoint"])
    again: Any = sdk.threads.get_state(thread_id)
    second = sdk.runs.wait(thread_id, "asks", command={"resume": "second"})

    assert "__interrupt__" in asked
    assert again["parent_checkpoint"]["checkpoint_id"] == waiting["checkpoint"]["checkpoint_id"]
    assert (log_of(first), log_of(second)) == (["before", "first", "after"], ["before", "second", "after"])
    history: Any = sdk.threads.get_history(thread_id, limit=50)
    ids = {state["checkpoint"]["checkpoint_id"] for state in history}
    parents = {state["parent_checkpoint"]["checkpoint_id"] for state in history if state["parent_checkpoint"]}
    assert parents <= ids


def test_a_question_is_not_answered_or_wiped_out_by_accident(
    sdk: SyncLangGraphClient, http: httpx.Client, thread_id: str
) -> None:
    sdk.runs.wait(thread_id, "asks", input={})
    before: Any = sdk.threads.get(thread_id)
    path = f"/threads/{thread_id}/runs/wait"

    refused = http.post(path, json={"assistant_id": "asks", "input": {}, "if_thread_status": "idle"})
    stray = {"assistant_id": "asks", "command": {"resume": {uuid4().hex: 1}}, "strict_resume": True}
    failed = http.post(path, json=stray).json()

    assert refused.status_code == 409
    assert failed["__error__"]["error"] == "UnknownInterruptError"
    after: Any = sdk.threads.get(thread_id)
    assert {**after, "updated_at": ""} == {**before, "updated_at": ""}
    (id,) = [item["id"] for items in after["interrupts"].values() for item in items]
    right = {"assistant_id": "asks", "command": {"resume": {id: "yes"}}, "strict_resume": True}
    assert log_of(http.post(path, json={**right, "if_thread_status": ["interrupted"]}).json())[1] == "yes"


def test_a_run_for_later_starts_by_itself_and_shows_a_join_what_it_wants(
    sdk: SyncLangGraphClient, thread_id: str
) -> None:
    later = sdk.runs.create(thread_id, "echo", input={"text": "later"}, after_seconds=1)
    behind = sdk.runs.create(thread_id, "echo", input={"text": "behind"})

    seen = [
        (part.event, part.data)
        for part in sdk.runs.join_stream(thread_id, later["run_id"], stream_mode="updates")
    ]
    sdk.runs.join(thread_id, behind["run_id"])

    assert seen == [("updates", {"node": {"log": ["later"]}})]
    assert log_of(sdk.threads.get(thread_id)["values"]) == ["later", "behind"]


def test_a_stream_sent_twice_under_a_key_runs_once(
    sdk: SyncLangGraphClient, http: httpx.Client, thread_id: str
) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    body = {"assistant_id": "echo", "input": {"text": "once"}, "stream_mode": ["values", "updates"]}
    path = f"/threads/{thread_id}/runs/stream"
    first, again = (http.post(path, json=body, headers=key) for _ in range(2))

    assert first.text == again.text
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(sdk.runs.list(thread_id)) == 1
    assert log_of(sdk.threads.get(thread_id)["values"]) == ["once"]
