"""A2A tasks: followed, joined, found, listed and cancelled."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from shared.models import RunStatus, ThreadStatus
from tests.contract import rpc
from tests.contract.a2a_calls import (
    AGENT,
    CANCEL,
    FAILURE,
    GET,
    QUESTION,
    STREAM,
    SUBSCRIBE,
    VERSIONS,
    done,
    error,
    interrupt,
    live,
    message,
    result,
    row,
    run_of,
    said,
    sent,
    state,
    task_of,
)
from tests.contract.conftest import Api, Notifications
from tests.contract.rpc import text_message
from tests.support.acting import Actor

pytestmark = pytest.mark.usefixtures("taking_graphs")
versions = pytest.mark.parametrize("version", VERSIONS)


@versions
def test_a_stream_shows_what_becomes_of_a_task(
    api: Api, notifications: Notifications, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.deployment_api.protocols.a2a.follow.UPDATE_SECONDS", 0.0)
    body = message(version)
    call = sent(api, notifications, body, STREAM[version])
    assert call.response.mimetype == "text/event-stream"
    chunks = call.response.iter_encoded()
    read = [next(chunks)]
    actor = Actor(call.run_id)

    def until(text: str) -> None:
        while text.encode() not in read[-1]:
            read.append(next(chunks))

    until(state(version, "working"))
    for token, so_far in (("he", "he"), ("llo", "hello")):
        actor.emit("messages", [{"type": "AIMessageChunk", "id": "m", "content": token}, {}])
        until(f'"{so_far}"')
    actor.finish(said(body, "hello"), output=said(body, "hello"))
    read += chunks
    items = [event["result"] for event in rpc.parsed(b"".join(read).decode())]
    if version == "1.0":
        assert all(len(item) == 1 for item in items)
        kinds = [next(iter(item)) for item in items]
        items = [next(iter(item.values())) for item in items]
        names = ("task", "statusUpdate", "artifactUpdate")
    else:
        kinds = [item["kind"] for item in items]
        names = ("task", "status-update", "artifact-update")
        assert [item["final"] for item in items if "final" in item] == [False, False, False, True]
    task, update, artifact = names
    assert kinds == [task, update, update, update, artifact, update]
    states = [item["status"]["state"] for item in items if "status" in item]
    words = ("submitted", "working", "working", "working", "completed")
    assert states == [state(version, word) for word in words]
    assert [item["status"]["message"]["parts"][0]["text"] for item in items[2:4]] == ["he", "hello"]
    assert items[4]["artifact"]["parts"][0]["text"] == "hello"
    assert items[4]["lastChunk"] is True
    assert {item.get("taskId", item.get("id")) for item in items} == {
        f"{items[0]['contextId']}:{call.run_id}"
    }


@versions
def test_a_stream_ends_with_a_failure_or_a_question(
    api: Api, notifications: Notifications, version: str
) -> None:
    def last(call: rpc.Called, count: int) -> list[Any]:
        """Return the last items of the call's stream, without their type names."""
        items = call.results()[-count:]
        return [next(iter(item.values())) for item in items] if version == "1.0" else items

    failing = sent(api, notifications, message(version), STREAM[version])
    Actor(failing.run_id).finish(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=FAILURE)
    (failed,) = last(failing, 1)
    assert failed["status"]["state"] == state(version, "failed")
    text = failed["status"]["message"]["parts"][0]["text"]
    assert text == "Error executing assistant: ValueError: boom"

    asking = sent(api, notifications, message(version), STREAM[version])
    interrupt(asking.run_id, {"messages": []})
    artifact, asked = last(asking, 2)
    assert artifact["artifact"]["name"] == "Interrupt"
    assert artifact["artifact"]["parts"][0]["data"] == {"interrupts": [QUESTION]}
    assert asked["status"]["state"] == state(version, "input-required")
    assert asked.get("final", True) is True


def test_texts_so_far_are_few_however_many_tokens_there_are(api: Api, notifications: Notifications) -> None:
    body = text_message()
    call = sent(api, notifications, body, "SendStreamingMessage")
    actor = Actor(call.run_id)
    for _ in range(200):
        actor.emit("messages", [{"type": "AIMessageChunk", "id": "m", "content": "x"}, {}])
    actor.finish(said(body), output=said(body))
    assert len(call.results()) < 100


def test_a_new_attempt_begins_its_text_anew(
    api: Api, notifications: Notifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.deployment_api.protocols.a2a.follow.UPDATE_SECONDS", 0.0)
    body = text_message()
    call = sent(api, notifications, body, "SendStreamingMessage")
    actor = Actor(call.run_id)
    actor.emit("messages", [{"type": "AIMessageChunk", "id": "m", "content": "he"}, {}])
    actor.emit("metadata", {"run_id": call.run_id, "attempt": 2})
    actor.emit("messages", [{"type": "AIMessageChunk", "id": "m", "content": "ho"}, {}])
    actor.finish(said(body), output=said(body))
    texts = [
        item["statusUpdate"]["status"]["message"]["parts"][0]["text"]
        for item in call.results()
        if "message" in item.get("statusUpdate", {}).get("status", {})
    ]
    assert texts[-1] == "ho"


def test_a_client_that_leaves_its_stream_leaves_the_task(api: Api, notifications: Notifications) -> None:
    call = sent(api, notifications, text_message(), "SendStreamingMessage")
    next(call.response.iter_encoded())
    call.response.close()
    assert row(call.run_id)["status"] == RunStatus.PENDING


@versions
def test_a_task_is_joined_in_the_middle(api: Api, notifications: Notifications, version: str) -> None:
    body = text_message()
    task = result(api, "SendMessage", {"message": body, "configuration": {"returnImmediately": True}})["task"]
    actor = Actor(run_of(task))
    actor.emit("messages", [{"type": "AIMessageChunk", "id": "m", "content": "he"}, {}])
    joined = rpc.post(api, AGENT, SUBSCRIBE[version], {"id": task["id"]}, buffered=False)
    actor.finish(said(body), output=said(body))
    items = [event["result"] for event in rpc.events(joined)]
    first, last = (items[0]["task"], items[-1]["statusUpdate"]) if version == "1.0" else (items[0], items[-1])
    assert (first["id"], first["status"]["state"]) == (task["id"], state(version, "working"))
    assert last["status"]["state"] == state(version, "completed")

    over = rpc.post(api, AGENT, SUBSCRIBE[version], {"id": task["id"]})
    (item,) = rpc.events(over)
    assert task_of(version, item["result"])["status"]["state"] == state(version, "completed")


@versions
def test_a_task_that_waits_is_cancelled_at_once_and_no_task_that_has_ended(
    api: Api, notifications: Notifications, version: str
) -> None:
    task = live(api)
    cancelled = result(api, CANCEL[version], {"id": task["id"]})
    assert cancelled["status"]["state"] == state(version, "canceled")
    for ended in (task, done(api, notifications)):
        assert error(api, CANCEL[version], {"id": ended["id"]}) == -32002


@versions
def test_a_task_that_works_is_answered_when_it_has_ended(api: Api, version: str) -> None:
    task = live(api)
    actor = Actor(run_of(task))
    response = rpc.post(api, AGENT, CANCEL[version], {"id": task["id"]}, buffered=False)
    assert row(run_of(task))["cancel_requested"] == "interrupt"
    actor.finish(status=RunStatus.INTERRUPTED, thread_status=ThreadStatus.IDLE)
    assert rpc.answered(response)["result"]["status"]["state"] == state(version, "canceled")


@versions
def test_unknown_tasks_are_refused(api: Api, version: str) -> None:
    task = live(api)
    thread_id, _, run_id = task["id"].partition(":")
    for method in (GET[version], CANCEL[version], SUBSCRIBE[version]):
        for id in ("nonsense", run_id, f"{thread_id}:{uuid4()}", f"{uuid4()}:{run_id}", f"{task['id']}:"):
            assert error(api, method, {"id": id}) == -32001, (method, id)
        assert error(api, method, {"id": task["id"]}, path="/a2a/other") == -32001, method
        for params in ({}, {"id": None}, {"id": 7}, {"id": ""}):
            assert error(api, method, params) == -32602, (method, params)


def test_tasks_are_listed_newest_first_in_pages(
    api: Api, notifications: Notifications, thread_id: str
) -> None:
    run: Any = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"}).json
    assert error(api, "GetTask", {"id": f"{thread_id}:{run['run_id']}"}) == -32001, "it was no message"
    ids = [done(api, notifications, f"{i}")["id"] for i in range(3)]
    first = result(api, "ListTasks", {"pageSize": 2})
    assert [task["id"] for task in first["tasks"]] == [ids[2], ids[1]]
    assert (first["pageSize"], first["totalSize"]) == (2, 3)
    second = result(api, "ListTasks", {"pageSize": 2, "pageToken": first["nextPageToken"]})
    assert [task["id"] for task in second["tasks"]] == [ids[0]]
    assert second["nextPageToken"] == ""
    assert result(api, "ListTasks", path="/a2a/other")["tasks"] == []


def test_a_list_shows_what_is_asked_for(api: Api, notifications: Notifications) -> None:
    task = done(api, notifications)
    (plain,) = result(api, "ListTasks")["tasks"]
    assert (plain["history"], "artifacts" in plain) == ([], False)
    (whole,) = result(api, "ListTasks", {"includeArtifacts": True, "historyLength": 10})["tasks"]
    assert whole == task


def test_tasks_are_listed_by_context_state_and_time(api: Api, notifications: Notifications) -> None:
    ended, waiting = done(api, notifications), live(api)
    asking = sent(api, notifications, text_message())
    interrupt(asking.run_id, {"messages": []})
    question = asking.result()["task"]

    def ids(**wanted: Any) -> list[str]:
        return [task["id"] for task in result(api, "ListTasks", wanted)["tasks"]]

    assert ids(contextId=ended["contextId"]) == [ended["id"]]
    assert ids(contextId=str(uuid4())) == []
    assert ids(status="TASK_STATE_SUBMITTED") == [waiting["id"]]
    assert ids(status="TASK_STATE_COMPLETED") == [ended["id"]]
    assert ids(status="TASK_STATE_INPUT_REQUIRED") == [question["id"]]
    assert ids(status="TASK_STATE_REJECTED") == []
    assert ids(statusTimestampAfter="2999-01-01T00:00:00Z") == []
    assert len(ids(statusTimestampAfter="2000-01-01T00:00:00Z", status="TASK_STATE_UNSPECIFIED")) == 3


def test_a_list_is_asked_for_in_known_words(api: Api, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        {"pageSize": -1},
        {"pageSize": "2"},
        {"pageToken": "nonsense"},
        {"contextId": "mine"},
        {"status": "TASK_STATE_NONSENSE"},
        {"statusTimestampAfter": "yesterday"},
        {"historyLength": -1},
        {"includeArtifacts": "yes"},
    ]
    for params in rows:
        with subtests.test(params=params):
            assert error(api, "ListTasks", params) == -32602


def test_a_thread_that_goes_takes_its_task_along(api: Api, notifications: Notifications) -> None:
    body = text_message()
    call = sent(api, notifications, body)
    stream = rpc.post(
        api,
        AGENT,
        "SubscribeToTask",
        {"id": f"{row(call.run_id)['thread_id']}:{call.run_id}"},
        buffered=False,
    )
    assert api.delete(f"/threads/{row(call.run_id)['thread_id']}").status_code == 204
    assert rpc.answered(call.response)["error"]["code"] == -32001
    assert list(rpc.events(stream))[-1]["error"]["code"] == -32001
