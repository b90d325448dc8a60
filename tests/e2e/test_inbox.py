"""The inbox against the whole platform: a graph asks through the SDK, and a person answers in the inbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import SyncLangGraphClient

from tests.support.stack import Stack


@pytest.fixture
def inbox(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=f"{stack.url}/v2/inbox", headers={"x-api-key": stack.api_key}, timeout=30
    ) as client:
        yield client


def questions(inbox: httpx.Client, thread_id: str, **query: str) -> list[Any]:
    found = inbox.get("", params={"limit": "100", **query}).raise_for_status().json()["resources"]
    return [question for question in found if question["thread_id"] == thread_id]


def test_a_question_is_answered_in_the_inbox(
    sdk: SyncLangGraphClient, inbox: httpx.Client, thread_id: str
) -> None:
    sdk.runs.wait(thread_id, "asks", input={"text": "a"}, metadata={"team": "b"})
    (question,) = questions(inbox, thread_id)
    assert question["value"] == {"question": "may I?"}

    answered = inbox.post(f"/{question['id']}/answer", json={"answer": "yes"}).raise_for_status().json()
    output: Any = sdk.runs.join(thread_id, answered["run_id"])
    assert output["log"] == ["before", "yes", "after"]
    run: Any = sdk.runs.get(thread_id, answered["run_id"])
    assert run["metadata"]["team"] == "b"
    assert inbox.get(f"/{question['id']}").json()["status"] == "answered"
    assert questions(inbox, thread_id) == []


def test_the_sdk_answers_and_the_inbox_knows(
    sdk: SyncLangGraphClient, inbox: httpx.Client, thread_id: str
) -> None:
    sdk.runs.wait(thread_id, "asks", input={"text": "a"})
    (question,) = questions(inbox, thread_id)
    run = sdk.runs.create(thread_id, "asks", command={"resume": "sdk"})
    refused = inbox.post(f"/{question['id']}/answer", json={"answer": "late"})
    assert refused.status_code == 409
    sdk.runs.join(thread_id, run["run_id"])
    after = inbox.get(f"/{question['id']}").json()
    assert (after["answer"], after["answer_run_id"]) == ("sdk", run["run_id"])


def test_a_breakpoint_is_continued(sdk: SyncLangGraphClient, inbox: httpx.Client, thread_id: str) -> None:
    sdk.runs.wait(thread_id, "goes", input={"text": "a"}, interrupt_before=["after"])
    (question,) = questions(inbox, thread_id)
    assert (question["kind"], question["value"]) == ("breakpoint", ["after"])
    answered = inbox.post(f"/{question['id']}/answer", json={"answer": None}).raise_for_status().json()
    sdk.runs.join(thread_id, answered["run_id"])
    assert questions(inbox, thread_id, status="all")[0]["status"] == "answered"


@pytest.mark.parametrize("options", [{}, {"interrupt_before": ["ask"]}])
def test_a_question_is_cancelled(
    sdk: SyncLangGraphClient, inbox: httpx.Client, thread_id: str, options: dict[str, Any]
) -> None:
    sdk.runs.wait(thread_id, "asks", input={"text": "a"}, **options)
    (question,) = questions(inbox, thread_id)
    cancelled = inbox.post(f"/{question['id']}/answer", json={"action": "cancel"}).raise_for_status().json()
    assert cancelled["run_id"] is None
    assert (cancelled["question"]["status"], cancelled["question"]["answered_at"]) == ("closed", None)
    assert cancelled["question"]["answered_by"]
    state: Any = sdk.threads.get_state(thread_id)
    assert (state["next"], state["values"]["log"]) == ([], ["before"])
    assert sdk.threads.get(thread_id)["status"] == "idle"
    late = inbox.post(f"/{question['id']}/answer", json={"answer": "yes"})
    assert (late.status_code, "was cancelled by" in late.text) == (409, True)
    output: Any = sdk.runs.wait(thread_id, "echo", input={"text": "b"})
    assert output["log"] == ["before", "b"]
