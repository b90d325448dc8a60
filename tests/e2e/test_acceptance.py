"""Behaviour that clients rely on and that no other test covers end to end."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError

from tests.support.waiting import wait_until


def running(sdk: SyncLangGraphClient, thread_id: str) -> str:
    """Start a run that has finished its first step and runs until it is cancelled. Returns its id."""
    run_id = sdk.runs.create(thread_id, "sleeps", input={"text": "x"}, durability="sync")["run_id"]
    wait_until(lambda: sdk.threads.get_state(thread_id)["next"] == ["sleep"])
    return run_id


def end_of(sdk: SyncLangGraphClient, thread_id: str, run_id: str) -> str | None:
    """Return the status of a run, None if it does not exist."""
    try:
        return sdk.runs.get(thread_id, run_id)["status"]
    except NotFoundError:
        return None


@pytest.mark.parametrize(
    ("strategy", "old", "log"),
    [
        ("interrupt", "interrupted", ["kept", "before", "new"]),
        ("rollback", None, ["kept", "new"]),
        ("enqueue", "success", ["kept", "before", "woke", "new"]),
    ],
)
def test_a_strategy_for_a_busy_thread(
    sdk: SyncLangGraphClient, thread_id: str, strategy: Any, old: str | None, log: list[str]
) -> None:
    sdk.runs.wait(thread_id, "echo", input={"text": "kept"})
    if strategy == "enqueue":
        first = sdk.runs.create(thread_id, "sleeps", input={"seconds": 1})["run_id"]
    else:
        first = running(sdk, thread_id)
    with pytest.raises(ConflictError, match="already running"):
        sdk.runs.create(thread_id, "echo", input={"text": "no"}, multitask_strategy="reject")

    stream = sdk.runs.stream(thread_id, "echo", input={"text": "new"}, multitask_strategy=strategy)
    parts = list(stream)

    assert [part.event for part in parts] == ["metadata", "values", "values"]
    assert parts[-1].data["log"] == log
    assert end_of(sdk, thread_id, first) == old
    assert sdk.runs.get(thread_id, parts[0].data["run_id"])["status"] == "success"
    thread = sdk.threads.get(thread_id)
    assert (thread["status"], thread["error"], thread["values"]["log"]) == ("idle", None, log)


def test_cancels_and_deletes_answer_with_these_statuses(
    sdk: SyncLangGraphClient, http: httpx.Client, thread_id: str
) -> None:
    def said(answer: httpx.Response) -> tuple[int, bytes]:
        return answer.status_code, answer.content.strip()

    runs = f"/threads/{thread_id}/runs"
    first, second = running(sdk, thread_id), sdk.runs.create(thread_id, "echo", input={"text": "x"})["run_id"]
    assert said(http.post(f"{runs}/{second}/cancel")) == (202, b"")
    answer = http.post(f"{runs}/{first}/cancel", params={"wait": 1})
    assert said(answer) == (200, b"{}")
    assert answer.headers["Content-Location"] == f"{runs}/{first}"
    assert answer.headers["Location"] == f"{runs}/{first}/join"
    assert http.post(f"{runs}/{first}/cancel").status_code == 404
    third = running(sdk, thread_id)
    assert said(http.post("/runs/cancel", json={"thread_id": thread_id, "run_ids": [third]})) == (204, b"")

    cron = sdk.crons.create("echo", schedule="0 0 1 1 *")["cron_id"]  # type: ignore[typeddict-item]
    assistant = sdk.assistants.create("echo")["assistant_id"]
    for path in (
        f"{runs}/{second}",
        f"/threads/{thread_id}",
        f"/runs/crons/{cron}",
        f"/assistants/{assistant}",
    ):
        assert said(http.delete(path)) == (204, b""), path
        assert http.delete(path).status_code == 404, path
    item = {"namespace": ["none"], "key": "none"}
    assert said(http.request("DELETE", "/store/items", json=item)) == (204, b"")


def test_a_missing_item_is_null_and_namespaces_are_in_an_object(http: httpx.Client) -> None:
    missing = http.get("/store/items", params={"namespace": "no.where", "key": "k"})
    assert (missing.status_code, missing.json()) == (200, None)
    found = http.post("/store/namespaces", json={"prefix": ["no", "where"]})
    assert (found.status_code, found.json()) == (200, {"namespaces": []})


def test_addresses_begin_at_the_deployment_s_own_root(http: httpx.Client, thread_id: str) -> None:
    body = {"assistant_id": "echo", "input": {"text": "x"}}
    for path, suffix in (("runs", None), ("runs/wait", "/join"), ("runs/stream", "/stream")):
        answer = http.post(f"/threads/{thread_id}/{path}", json=body)
        content = answer.headers["Content-Location"]
        assert content.startswith(f"/threads/{thread_id}/runs/")
        assert answer.headers.get("Location") == (None if suffix is None else content + suffix)
        assert http.get(content).status_code == 200
