"""A2A messages: their mapping to graph input, contexts and interrupts."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import orjson
import pytest

from shared.models import RunStatus, ThreadStatus
from tests.contract import rpc
from tests.contract.a2a_calls import (
    FAILURE,
    GET,
    QUESTION,
    SEND,
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


@versions
def test_files_are_not_supported(api: Api, version: str) -> None:
    for part in (
        {"kind": "file", "file": {"uri": "http://x"}},
        {"raw": "aGk=", "mediaType": "text/plain"},
        {"url": "http://x", "mediaType": "text/plain"},
    ):
        body = {**message(version), "parts": [part, {"data": {}}]}
        assert (part, error(api, SEND[version], {"message": body})) == (part, -32005)


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
    again = live(api, taskId=task["id"])
    assert again["contextId"] == context_id
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
    assert texts(ids[0], historyLength=0) == []
    header = {**BOTH, "LangGraph-A2A-History-Scope": "task"}
    assert texts(ids[0], header) == ["one", "ho"]
    assert texts(ids[0], header, historyScope="context") == ["one", "ho", "two", "ho"]
    wrong = {**BOTH, "LangGraph-A2A-History-Scope": "all"}
    assert error(api, "GetTask", {"id": ids[0]}, headers=wrong) == -32602


@versions
def test_a_question_is_answered_in_its_context(api: Api, notifications: Notifications, version: str) -> None:
    body = message(version)
    call = sent(api, notifications, body, SEND[version])
    first = {"messages": said(body)["messages"][:1]}
    interrupt(call.run_id, first)
    task = task_of(version, call.result())
    assert task["status"]["state"] == state(version, "input-required")
    assert task["status"]["message"]["parts"][0]["text"] == "which?"
    (artifact,) = task["artifacts"]
    assert artifact["name"] == "Interrupt"
    assert artifact["parts"][0]["data"] == {"interrupts": [QUESTION]}
    assert result(api, GET[version], {"id": task["id"]}) == task

    reply = message(version, "the red one", contextId=task["contextId"])
    answer = sent(api, notifications, reply, SEND[version])
    assert row(answer.run_id)["kwargs"]["command"] == {"resume": "the red one"}
    values = {"messages": [*first["messages"], {"type": "ai", "content": "red then", "id": "a"}]}
    finish(answer.run_id, values)
    found = task_of(version, answer.result())
    assert found["status"]["state"] == state(version, "completed")
    assert found["artifacts"][0]["parts"][0]["text"] == "red then"
    alone = result(api, GET[version], {"id": found["id"], "historyScope": "task"})
    assert [one["parts"][0]["text"] for one in alone["history"]] == ["red then"]
    asked = result(api, GET[version], {"id": task["id"]})
    assert asked["status"]["state"] == state(version, "completed")


def test_a_question_is_answered_with_data(api: Api, notifications: Notifications) -> None:
    call = sent(api, notifications, text_message())
    interrupt(call.run_id, {"messages": []})
    context_id = call.result()["task"]["contextId"]
    reply = {**text_message(contextId=context_id), "parts": [{"data": {"i1": "red"}}]}
    answer = sent(api, notifications, reply)
    assert row(answer.run_id)["kwargs"]["command"] == {"resume": {"i1": "red"}}


def test_a_question_is_answered_once(
    api: Api, notifications: Notifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = sent(api, notifications, text_message())
    interrupt(call.run_id, {"messages": []})
    context_id = call.result()["task"]["contextId"]
    thread: Any = api.get(f"/threads/{context_id}").json
    sent(api, notifications, text_message(contextId=context_id))
    # the second client has read the thread before the first client's answer arrived
    monkeypatch.setattr("web.deployment_api.protocols.a2a.incoming._thread", lambda *key: thread)
    for method in ("SendMessage", "SendStreamingMessage"):
        assert error(api, method, {"message": text_message(contextId=context_id)}) == -32004


def test_what_was_cancelled_is_no_question(api: Api, notifications: Notifications) -> None:
    task = live(api)
    Actor(run_of(task)).finish(
        {"messages": []}, status=RunStatus.INTERRUPTED, thread_status=ThreadStatus.INTERRUPTED
    )
    again = live(api, contextId=task["contextId"])
    assert row(run_of(again))["kwargs"]["command"] is None
