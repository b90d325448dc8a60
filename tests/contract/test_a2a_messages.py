"""A2A messages and tasks: graph input and contexts; tasks followed, joined, found, listed and cancelled."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import orjson
import pytest

from shared.models import RunStatus, ThreadStatus
from tests.contract import rpc
from tests.contract.a2a_calls import (
    AGENT,
    CANCEL,
    FAILURE,
    GET,
    QUESTION,
    SEND,
    STREAM,
    SUBSCRIBE,
    VERSIONS,
    done,
    error,
    finish,
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
from tests.contract.rpc import BOTH, text_message
from tests.support.acting import Actor

pytestmark = pytest.mark.usefixtures("taking_graphs")
versions = pytest.mark.parametrize("version", VERSIONS)
NOBODYS = "5f0c6d1e-7a39-4a51-9d3c-0d0f9f1b2c3d"


@versions
def test_a_message_is_a_run_and_its_end_a_task(api: Api, notifications: Notifications, version: str) -> None:
    body = message(version, metadata={"from": "me"})
    call = sent(api, notifications, body, SEND[version], metadata={"also": 1})
    run = row(call.run_id)
    assert run["input"] == {"messages": [{"role": "user", "content": "hi", "id": body["messageId"]}]}
    origin = {"message_id": body["messageId"], "metadata": {"also": 1, "from": "me"}}
    assert run["metadata"]["a2a"] == origin
    assert not run["temporary"]
    finish(call.run_id, said(body))

    task = task_of(version, call.result())
    context_id = str(run["thread_id"])
    assert (task["id"], task["contextId"]) == (f"{context_id}:{call.run_id}", context_id)
    assert task["status"]["state"] == state(version, "completed")
    assert task["status"]["timestamp"].endswith("Z")
    (artifact,) = task["artifacts"]
    part = {"text": "ho"} if version == "1.0" else {"kind": "text", "text": "ho"}
    assert (artifact["name"], artifact["parts"]) == ("Assistant Response", [part])
    roles = ["ROLE_USER", "ROLE_AGENT"] if version == "1.0" else ["user", "agent"]
    assert [one["role"] for one in task["history"]] == roles
    assert task["history"][0]["messageId"] == body["messageId"]
    assert task.get("kind") == (None if version == "1.0" else "task")
    assert result(api, GET[version], {"id": task["id"]}) == task


def test_data_is_the_input_and_goes_together_with_text(api: Api, notifications: Notifications) -> None:
    body = {**text_message(), "parts": [{"data": {"city": "Rome"}}]}
    call = sent(api, notifications, body, path="/a2a/other")
    assert row(call.run_id)["input"] == {"city": "Rome"}
    finish(call.run_id, {"city": "Rome", "log": [1]})
    (artifact,) = call.result()["task"]["artifacts"]
    assert artifact["parts"] == [{"data": {"city": "Rome", "log": [1]}}]

    body = {**text_message(), "parts": [{"text": "a"}, {"data": {"more": 1}}, {"text": "b"}]}
    call = sent(api, notifications, body)
    message = {"role": "user", "content": "a\nb", "id": body["messageId"]}
    assert row(call.run_id)["input"] == {"more": 1, "messages": [message]}


def test_a_graph_without_messages_takes_no_text(api: Api, notifications: Notifications) -> None:
    code, text = rpc.error(api, "/a2a/other", "SendMessage", {"message": text_message()})
    assert code == -32602
    assert "city, nights, note" in text
    assert not notifications.heard


BAD_MESSAGES: list[Any] = [
    {},
    {"message": 7},
    {"message": text_message(messageId="")},
    {"message": text_message(messageId="\x00")},
    {"message": text_message(messageId="x" * 2000)},
    {"message": text_message(role="ROLE_AGENT")},
    {"message": text_message(role=None)},
    {"message": text_message(parts=[])},
    {"message": text_message(parts=["hi"])},
    {"message": text_message(parts=[{}])},
    {"message": text_message(parts=[{"kind": "text"}])},
    {"message": text_message(parts=[{"data": [1]}])},
    {"message": text_message(parts=[{"data": {}}, {"data": 1}])},
    {"message": text_message(parts=[{"text": "a", "url": "http://x"}])},
    {"message": text_message(parts=[{"raw": "aGk=", "url": "http://x"}])},
    {"message": text_message(parts=[{"raw": "not base64!"}])},
    {"message": text_message(parts=[{"raw": "a"}])},
    {"message": text_message(parts=[{"raw": 7}])},
    {"message": text_message(parts=[{"url": ["http://x"]}])},
    {"message": text_message(parts=[{"raw": "aGk=", "mediaType": 7}])},
    {"message": text_message(parts=[{"raw": "aGk=", "filename": "x" * 2000}])},
    {"message": text_message(parts=[{"kind": "file", "file": "aGk="}])},
    {"message": text_message(parts=[{"kind": "file", "file": {}}])},
    {"message": text_message(parts=[{"kind": "file", "file": {"bytes": "aGk=", "uri": "http://x"}}])},
    {"message": text_message(parts=[{"data": {}, "metadata": {"mimeType": "application/json+a2ui"}}])},
    {"message": text_message(parts=[{"text": "a"}, {"data": {"messages": []}}])},
    {"message": text_message(contextId="mine")},
    {"message": text_message(contextId=7)},
    {"message": text_message(metadata={"a": "\x00"})},
    {"message": text_message(metadata={"a": "x" * 70_000})},
    {"message": text_message(), "configuration": {"historyLength": -1}},
    {"message": text_message(), "configuration": {"historyScope": "all"}},
    {"message": text_message(), "configuration": {"returnImmediately": "yes"}},
]


def test_a_message_that_makes_no_sense_is_refused(api: Api, notifications: Notifications) -> None:
    for params in BAD_MESSAGES:
        for method in ("SendMessage", "SendStreamingMessage"):
            assert error(api, method, params) == -32602, (method, params)
    assert not notifications.heard


@versions
def test_a_task_may_be_answered_at_once(api: Api, version: str) -> None:
    told = {"returnImmediately": True} if version == "1.0" else {"blocking": False}
    task = task_of(version, result(api, SEND[version], {"message": message(version), "configuration": told}))
    assert task["status"]["state"] == state(version, "submitted")
    assert [one["parts"][0]["text"] for one in task["history"]] == ["hi"]
    Actor(run_of(task))
    assert result(api, GET[version], {"id": task["id"]})["status"]["state"] == state(version, "working")


def test_a_long_answer_is_kept_alive_by_line_feeds(api: Api, notifications: Notifications) -> None:
    body = text_message()
    call = sent(api, notifications, body)
    chunks = call.response.iter_encoded()
    while next(chunks) != b"\n":
        pass
    finish(call.run_id, said(body))
    assert orjson.loads(b"".join(chunks).strip())["result"]["task"]


@versions
def test_a_failure_is_a_state(api: Api, notifications: Notifications, version: str) -> None:
    call = sent(api, notifications, message(version), SEND[version])
    Actor(call.run_id).finish(
        status=RunStatus.ERROR,
        thread_status=ThreadStatus.ERROR,
        error=FAILURE,
        output={"__error__": FAILURE},
    )
    task = task_of(version, call.result())
    assert task["status"]["state"] == state(version, "failed")
    assert task["status"]["message"]["parts"][0]["text"] == "Error executing assistant: ValueError: boom"
    assert "artifacts" not in task
    assert result(api, GET[version], {"id": task["id"]}) == task


def test_a_context_is_a_thread_that_is_made_when_it_is_missing(
    api: Api, notifications: Notifications
) -> None:
    context_id = str(uuid4())
    task = done(api, notifications, contextId=context_id)
    assert task["contextId"] == context_id
    assert api.get(f"/threads/{context_id}").json["metadata"]["graph_id"] == "agent"  # type: ignore[index]
    again = live(api, contextId=context_id)
    assert again["id"] != task["id"]
    both = {"taskId": task["id"], "contextId": str(uuid4())}
    assert error(api, "SendMessage", {"message": text_message(**both)}) == -32602


def test_a_task_that_is_unknown_is_not_continued(api: Api, notifications: Notifications) -> None:
    context_id = done(api, notifications)["contextId"]
    unknown = f"{context_id}:{uuid4()}"
    for named in (
        {"taskId": "nonsense"},
        {"taskId": f"{NOBODYS}:{NOBODYS}"},
        {"taskId": NOBODYS},
        {"taskId": f"{'-' * 36}:{'-' * 36}"},
        {"taskId": unknown},
        {"taskId": unknown, "contextId": context_id},
    ):
        assert (named, error(api, "SendMessage", {"message": text_message(**named)})) == (named, -32001)


def test_two_messages_at_once_are_taken_one_after_the_other(api: Api, notifications: Notifications) -> None:
    context_id = str(uuid4())
    bodies = [text_message(text, contextId=context_id) for text in ("one", "two")]
    calls = [sent(api, notifications, body) for body in bodies]
    finish(calls[0].run_id, said(bodies[0], "first"))
    values = said(bodies[0], "first")["messages"] + said(bodies[1], "second")["messages"]
    finish(calls[1].run_id, {"messages": values})
    tasks = [call.result()["task"] for call in calls]
    assert [task["artifacts"][0]["parts"][0]["text"] for task in tasks] == ["first", "second"]


def test_the_history_is_that_of_the_context_or_of_the_task(api: Api, notifications: Notifications) -> None:
    context_id = str(uuid4())
    bodies = [text_message(text, contextId=context_id) for text in ("one", "two")]
    values: list[Any] = []
    ids = []
    for body in bodies:
        call = sent(api, notifications, body)
        values += said(body)["messages"]
        finish(call.run_id, {"messages": values})
        ids.append(call.result()["task"]["id"])

    def texts(id: str, headers: Any = BOTH, **told: Any) -> list[str]:
        found = result(api, "GetTask", {"id": id, **told}, headers=headers)
        return [one["parts"][0]["text"] for one in found["history"]]

    assert texts(ids[0]) == ["one", "ho", "two", "ho"]
    assert texts(ids[0], historyScope="task") == ["one", "ho"]
    assert texts(ids[1], historyScope="task", historyLength=1) == ["ho"]
    assert "history" not in result(api, "GetTask", {"id": ids[0], "historyLength": 0})
    assert texts(ids[0], history_length=1) == ["ho"]
    header = {**BOTH, "LangGraph-A2A-History-Scope": "task"}
    assert texts(ids[0], header) == ["one", "ho"]
    assert texts(ids[0], header, historyScope="context") == ["one", "ho", "two", "ho"]
    wrong = {**BOTH, "LangGraph-A2A-History-Scope": "all"}
    assert error(api, "GetTask", {"id": ids[0]}, headers=wrong) == -32602


def test_what_was_cancelled_is_no_question(api: Api, notifications: Notifications) -> None:
    task = live(api)
    Actor(run_of(task)).finish(
        {"messages": []}, status=RunStatus.INTERRUPTED, thread_status=ThreadStatus.INTERRUPTED
    )
    again = live(api, contextId=task["contextId"])
    assert row(run_of(again))["kwargs"]["command"] is None


# Tasks


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
    assert artifact["artifact"]["parts"][0]["data"] == {**QUESTION, "interrupts": [QUESTION]}
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
    if version == "1.0":
        assert item["error"]["code"] == -32004
    else:
        assert item["result"]["status"]["state"] == "completed"


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


def test_tasks_are_listed_by_their_last_change_in_pages(
    api: Api, notifications: Notifications, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"}).json
    assert error(api, "GetTask", {"id": f"{thread_id}:{run['run_id']}"}) == -32001, "it was no message"
    bodies = [text_message(str(number)) for number in range(3)]
    calls = [sent(api, notifications, body) for body in bodies]
    for at in (1, 2, 0):
        finish(calls[at].run_id, said(bodies[at]))
    ids = [call.result()["task"]["id"] for call in calls]
    first = result(api, "ListTasks", {"pageSize": 2})
    assert [task["id"] for task in first["tasks"]] == [ids[0], ids[2]]
    assert (first["pageSize"], first["totalSize"]) == (2, 3)
    second = result(api, "ListTasks", {"page_size": 2, "page_token": first["nextPageToken"]})
    assert [task["id"] for task in second["tasks"]] == [ids[1]]
    assert second["nextPageToken"] == ""
    assert result(api, "ListTasks", path="/a2a/other")["tasks"] == []
    monkeypatch.setattr("shared.runs.a2a_tasks.MAX_COUNT", 2)
    assert result(api, "ListTasks")["totalSize"] == 2


def test_a_list_shows_what_is_asked_for(api: Api, notifications: Notifications) -> None:
    task = done(api, notifications)
    (plain,) = result(api, "ListTasks")["tasks"]
    assert not {"history", "artifacts"} & plain.keys()
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
    assert ids(contextId=str(uuid4())) == ids(contextId="mine") == []
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
        {"pageToken": f"1.{uuid4()}x"},
        {"pageToken": f"{10**30}.{NOBODYS}"},
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
