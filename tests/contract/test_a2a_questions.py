"""A2A tasks that wait for an answer: answered, continued, cancelled and followed, under one id."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from sqlalchemy import text
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared.hosts.pending_calls import HostCall
from shared.inbox import answers
from shared.infra.postgres import connection, dumps
from shared.models import RunStatus, ThreadStatus
from shared.runs import creation
from shared.runs.drafts import Creator
from shared.threads import state as thread_state
from tests.contract import rpc
from tests.contract.a2a_calls import (
    AGENT,
    CANCEL,
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
from tests.contract.rpc import text_message
from tests.support.acting import Actor

pytestmark = pytest.mark.usefixtures("taking_graphs")
versions = pytest.mark.parametrize("version", VERSIONS)


class Host:
    """A graph host that ends the open tasks of threads. `before` is called before it answers."""

    def __init__(self) -> None:
        self.before: Any = None

    def call(self, request: HostCall) -> bytes:
        if self.before is not None:
            self.before()
        ended = {"written": [], "state": {"next": [], "tasks": []}, "interrupts": {}}
        with connection() as conn:
            thread_state.store_update(
                conn,
                request.deployment_id,
                request.thread_id,
                uuid4(),
                ended,
                b"{}",
                [],
                from_newest=True,
                cancels=request.document["cancels"],
            )
        return dumps({"checkpoint": {}}).encode()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host()
    monkeypatch.setattr("shared.hosts.calls.call", host.call)
    return host


def asking(api: Api, heard: Notifications, version: str = "1.0", text: str = "hi") -> tuple[Any, Any]:
    """Send a message to which the graph asks a question. Returns the message and the task."""
    body = message(version, text)
    call = sent(api, heard, body, SEND[version])
    interrupt(call.run_id, {"messages": said(body)["messages"][:1]})
    return body, task_of(version, call.result())


def texts(task: Any) -> list[Any]:
    return [part.get("text", part.get("data")) for one in task["history"] for part in one["parts"]]


@versions
def test_an_answer_continues_the_task_under_its_id(
    api: Api, notifications: Notifications, version: str
) -> None:
    body, task = asking(api, notifications, version)
    assert task["status"]["state"] == state(version, "input-required")
    assert task["status"]["message"]["parts"][0]["text"] == "which?"
    (artifact,) = task["artifacts"]
    assert artifact["name"] == "Interrupt"
    assert [part["data"] for part in artifact["parts"]] == [{**QUESTION, "interrupts": [QUESTION]}]
    assert result(api, GET[version], {"id": task["id"]}) == task

    reply = message(version, "the red one", taskId=task["id"])
    answer = sent(api, notifications, reply, SEND[version])
    run = row(answer.run_id)
    assert run["kwargs"]["command"] == {"resume": "the red one"}
    origin = {"message_id": reply["messageId"], "task_id": task["id"], "after": body["messageId"], "at": 1}
    assert run["metadata"]["a2a"] == origin
    assert result(api, GET[version], {"id": task["id"]})["status"]["state"] == state(version, "working")
    values = {"messages": [*said(body)["messages"][:1], {"type": "ai", "content": "red then", "id": "a"}]}
    finish(answer.run_id, values)
    found = task_of(version, answer.result())
    assert (found["id"], found["contextId"]) == (task["id"], task["contextId"])
    assert found["status"]["state"] == state(version, "completed")
    assert found["artifacts"][0]["parts"][0]["text"] == "red then"
    assert texts(found) == ["hi", "the red one", "red then"]
    assert [one["messageId"] for one in found["history"]] == [body["messageId"], reply["messageId"], "a"]
    assert result(api, GET[version], {"id": task["id"]}) == found
    listed = result(api, "ListTasks")
    assert [one["id"] for one in listed["tasks"]] == [task["id"]]
    assert listed["totalSize"] == 1


def test_answers_are_shown_in_their_order_and_only_with_their_task(
    api: Api, notifications: Notifications
) -> None:
    body, task = asking(api, notifications)
    context = {"contextId": task["contextId"]}
    values = said(body)["messages"][:1]
    for number in range(2):
        answer = sent(api, notifications, text_message(f"answer {number}", **context))
        values = [*values, {"type": "ai", "content": f"so {number}", "id": f"so-{number}"}]
        (finish if number else interrupt)(answer.run_id, {"messages": values})
        assert answer.result()["task"]["id"] == task["id"]
    following = text_message("and now", **context)
    call = sent(api, notifications, following)
    values = [*values, *said(following)["messages"]]
    finish(call.run_id, {"messages": values})
    other = call.result()["task"]
    assert other["id"] != task["id"]
    whole = ["hi", "answer 0", "so 0", "answer 1", "so 1"]
    assert texts(other) == [*whole, "and now", "ho"]
    alone = {"historyScope": "task"}
    assert texts(result(api, "GetTask", {"id": task["id"], **alone})) == whole
    assert texts(result(api, "GetTask", {"id": other["id"], **alone})) == ["and now", "ho"]
    assert texts(result(api, "GetTask", {"id": task["id"], **alone, "historyLength": 2})) == [
        "answer 1",
        "so 1",
    ]
    first, _ = result(api, "ListTasks", {"historyLength": 10, **alone, "includeArtifacts": True})["tasks"]
    assert texts(first) == ["and now", "ho"]


def test_answers_are_texts_data_or_wrapped_values(api: Api, notifications: Notifications) -> None:
    rows: list[tuple[list[Any], Any]] = [
        ([{"data": {"i1": "red"}}], {"i1": "red"}),
        ([{"data": {"resume": [1, 2]}}], [1, 2]),
        ([{"data": {"resume": 1, "more": 2}}], {"resume": 1, "more": 2}),
        ([{"data": True}], True),
        ([{"data": ["a"]}], ["a"]),
        ([{"text": "a"}, {"text": "b"}], "a\nb"),
        (
            [{"text": "this"}, {"url": "http://x/cat", "mediaType": "image/png"}],
            [
                {"type": "text", "text": "this"},
                {"type": "image", "url": "http://x/cat", "mime_type": "image/png"},
            ],
        ),
    ]
    for parts, expected in rows:
        _, task = asking(api, notifications)
        answer = sent(api, notifications, {**text_message(contextId=task["contextId"]), "parts": parts})
        assert row(answer.run_id)["kwargs"]["command"] == {"resume": expected}
        answer.response.close()
    _, task = asking(api, notifications)
    for parts in ([{"data": None}], [{"data": {"resume": None}}]):
        body = {**text_message(contextId=task["contextId"]), "parts": parts}
        assert error(api, "SendMessage", {"message": body}) == -32602


def test_a_graph_without_messages_is_answered_with_text(api: Api, notifications: Notifications) -> None:
    call = sent(
        api, notifications, {**text_message(), "parts": [{"data": {"city": "Rome"}}]}, path="/a2a/other"
    )
    interrupt(call.run_id, {"city": "Rome"})
    context_id = call.result()["task"]["contextId"]
    answer = sent(api, notifications, text_message("yes", contextId=context_id), path="/a2a/other")
    assert row(answer.run_id)["kwargs"]["command"] == {"resume": "yes"}
    finish(answer.run_id, {"city": "Rome"})
    assert texts(answer.result()["task"]) == ["yes"]


def test_several_interrupts_are_a_part_each(api: Api, notifications: Notifications) -> None:
    call = sent(api, notifications, text_message())
    both = [QUESTION, {"id": "i2", "value": {"question": "how many?"}}]
    output = [{**both[0], "response_schema": None}, {**both[1], "response_schema": {"type": "integer"}}]
    Actor(call.run_id).finish(
        {},
        thread_status=ThreadStatus.INTERRUPTED,
        interrupts={"one": both[:1], "two": both[1:]},
        output={"__interrupt__": output},
    )
    task = call.result()["task"]
    parts = [part["data"] for part in task["artifacts"][0]["parts"]]
    assert parts == [
        {**QUESTION, "interrupts": [QUESTION, {**both[1], "response_schema": {"type": "integer"}}]},
        {**both[1], "response_schema": {"type": "integer"}},
    ]
    body = {**text_message(taskId=task["id"]), "parts": [{"data": {"i1": "red", "i2": 3}}]}
    answer = sent(api, notifications, body)
    assert row(answer.run_id)["kwargs"]["command"] == {"resume": {"i1": "red", "i2": 3}}


def test_the_second_of_two_answers_at_once_is_refused(
    api: Api, notifications: Notifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, task = asking(api, notifications)
    answer = sent(api, notifications, text_message("mine", taskId=task["id"]))
    # the second client's message arrived before the first client's answer was stored
    monkeypatch.setattr(
        "web.deployment_api.protocols.a2a.incoming._asked", lambda *call: frozenset({QUESTION["id"]})
    )
    for method in ("SendMessage", "SendStreamingMessage"):
        for names in ({"taskId": task["id"]}, {"contextId": task["contextId"]}):
            assert error(api, method, {"message": text_message(**names)}) == -32004
    monkeypatch.undo()
    answer.response.close()


def test_a_message_to_a_task_that_works_is_the_next_run_of_the_task(
    api: Api, notifications: Notifications
) -> None:
    bodies = [text_message("one"), text_message("two")]
    first = sent(api, notifications, bodies[0])
    run = row(first.run_id)
    task_id = f"{run['thread_id']}:{first.run_id}"
    bodies[1]["taskId"] = task_id
    second = sent(api, notifications, bodies[1])
    assert row(second.run_id)["input"]["messages"][0]["content"] == "two"
    finish(first.run_id, said(bodies[0], "first"))
    now = result(api, "GetTask", {"id": task_id})
    assert (now["status"]["state"], texts(now)) == ("TASK_STATE_WORKING", ["one", "first", "two"])
    finish(second.run_id, {"messages": said(bodies[0], "first")["messages"] + said(bodies[1])["messages"]})
    tasks = [call.result()["task"] for call in (first, second)]
    assert tasks[0] == tasks[1]
    assert (tasks[0]["id"], tasks[0]["artifacts"][0]["parts"]) == (task_id, [{"text": "ho"}])
    alone = result(api, "GetTask", {"id": task_id, "historyScope": "task"})
    assert texts(alone) == ["one", "first", "two", "ho"]


@versions
def test_a_task_that_has_ended_takes_no_message(
    api: Api, notifications: Notifications, host: Host, version: str
) -> None:
    failed, cancelled, waiting = live(api), live(api), asking(api, notifications)[1]
    Actor(run_of(failed)).finish(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR)
    result(api, "CancelTask", {"id": cancelled["id"]})
    result(api, "CancelTask", {"id": waiting["id"]})
    heard = len(notifications.heard)
    for task in (done(api, notifications), failed, cancelled, waiting):
        for method in (SEND[version], STREAM[version]):
            told = {"message": message(version, taskId=task["id"])}
            assert error(api, method, told) == -32004
    assert len(notifications.heard) == heard + 1


@versions
def test_the_question_of_a_cancelled_task_is_dropped(
    api: Api, notifications: Notifications, host: Host, version: str
) -> None:
    _, task = asking(api, notifications, version)
    cancelled = result(api, CANCEL[version], {"id": task["id"]})
    assert (cancelled["id"], cancelled["status"]["state"]) == (task["id"], state(version, "canceled"))
    assert "artifacts" not in cancelled
    assert cancelled["status"]["timestamp"] > task["status"]["timestamp"]
    assert error(api, CANCEL[version], {"id": task["id"]}) == -32002
    thread: Any = api.get(f"/threads/{task['contextId']}").json
    assert (thread["status"], thread["interrupts"]) == ("idle", {})
    again = live(api, contextId=task["contextId"])
    assert again["id"] != task["id"]
    run = row(run_of(again))
    assert (run["kwargs"]["command"], run["input"]["messages"][0]["content"]) == (None, "hi")
    states = {one["id"]: one["status"]["state"] for one in result(api, "ListTasks")["tasks"]}
    assert states == {task["id"]: "TASK_STATE_CANCELED", again["id"]: "TASK_STATE_SUBMITTED"}


def test_the_second_of_two_cancels_at_once_is_refused(
    api: Api, notifications: Notifications, host: Host
) -> None:
    _, task = asking(api, notifications)
    codes: list[Any] = []

    def first() -> None:  # comes to its end while the other one waits for the graph host
        host.before = None
        codes.append(result(api, "CancelTask", {"id": task["id"]})["status"]["state"])

    host.before = first
    codes.append(error(api, "CancelTask", {"id": task["id"]}))
    assert codes == ["TASK_STATE_CANCELED", -32002]


def test_an_answer_that_arrives_before_the_cancel_is_cancelled(
    api: Api, notifications: Notifications, host: Host
) -> None:
    _, task = asking(api, notifications)
    host.before = lambda: live(api, taskId=task["id"])
    cancelled = result(api, "CancelTask", {"id": task["id"]})
    assert (cancelled["id"], cancelled["status"]["state"]) == (task["id"], "TASK_STATE_CANCELED")
    host.before = None
    again = live(api, contextId=task["contextId"])
    assert row(run_of(again))["kwargs"]["command"] is None, "the question returned, but its task has ended"


@versions
def test_a_subscriber_of_a_task_that_waits_gets_what_the_answer_brings(
    api: Api, notifications: Notifications, version: str
) -> None:
    body, task = asking(api, notifications, version)
    joined = rpc.post(api, AGENT, SUBSCRIBE[version], {"id": task["id"]}, buffered=False)
    chunks = joined.iter_encoded()
    read = next(chunks)
    while b": heartbeat" not in read:
        read += next(chunks)
    answer = live(api, taskId=task["id"])
    assert answer["id"] == task["id"]
    (run,) = [run for _, run in notifications.heard[-1:]]
    actor = Actor(run)
    actor.emit("messages", [{"type": "AIMessageChunk", "id": "m", "content": "red"}, {}])
    values = {"messages": [*said(body)["messages"][:1], {"type": "ai", "content": "red", "id": "m"}]}
    actor.finish(values, output=values)
    items = items_of(version, read + b"".join(chunks))
    assert {item.get("taskId", item.get("id")) for item in items} == {task["id"]}
    states = [item["status"]["state"] for item in items if "status" in item]
    assert (states[0], states[1], states[-1]) == (
        state(version, "input-required"),
        state(version, "working"),
        state(version, "completed"),
    )
    assert items[-2]["artifact"]["parts"][0]["text"] == "red"


@versions
def test_a_subscriber_sees_a_question_and_its_answer(
    api: Api, notifications: Notifications, version: str
) -> None:
    task = live(api)
    actor = Actor(run_of(task))
    joined = rpc.post(api, AGENT, SUBSCRIBE[version], {"id": task["id"]}, buffered=False)
    chunks = joined.iter_encoded()
    read = next(chunks)
    asked = [{**QUESTION, "response_schema": None}]
    actor.finish(
        {},
        thread_status=ThreadStatus.INTERRUPTED,
        interrupts={"t": [QUESTION]},
        output={"__interrupt__": asked},
    )
    word = state(version, "input-required").encode()
    while word not in read:
        read += next(chunks)
    live(api, taskId=task["id"])
    Actor(notifications.heard[-1][1]).finish({"messages": []}, output={"messages": []})
    items = items_of(version, read + b"".join(chunks))
    updates = [item for item in items if "status" in item][1:]
    words = [item["status"]["state"] for item in updates]
    assert words == [state(version, word) for word in ("input-required", "working", "completed")]
    if version == "0.3":
        assert [item["final"] for item in updates] == [False, False, True]


def test_a_subscriber_of_a_task_that_waits_sees_its_cancellation(
    api: Api, notifications: Notifications, host: Host
) -> None:
    _, task = asking(api, notifications)
    joined = rpc.post(api, AGENT, "SubscribeToTask", {"id": task["id"]}, buffered=False)
    result(api, "CancelTask", {"id": task["id"]})
    *_, last = rpc.events(joined)
    assert last["result"]["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"


def answer_in_inbox(api: Api, thread_id: str) -> str:
    with connection() as conn:
        query = text("SELECT question_id FROM question WHERE thread_id = :id AND closed_at IS NULL")
        question_id = conn.execute(query, {"id": thread_id}).scalar_one()
    request = answers.answer_request({"question_id": question_id, "thread_id": UUID(thread_id)}, "red")
    (created,) = creation.create_runs(Creator(api.deployment), [request])
    return str(created.run_id)


def answer_over_api(api: Api, thread_id: str) -> str:
    body = {"assistant_id": "agent", "command": {"resume": "red"}}
    created: Any = api.post(f"/threads/{thread_id}/runs", body).json
    return created["run_id"]


def answer_over_ag_ui(api: Api, thread_id: str) -> str:
    resume = [{"interruptId": QUESTION["id"], "status": "resolved", "payload": "red"}]
    body = {"threadId": thread_id, "runId": "r", "messages": [], "resume": resume}
    response = api.post("/ag-ui/agent", body, headers={"Accept": "text/event-stream"}, buffered=False)
    assert response.status_code == 200, response.text
    return response.headers["Content-Location"].rpartition("/")[2]


def test_an_answer_of_another_interface_continues_the_task(api: Api, notifications: Notifications) -> None:
    for interface in (answer_in_inbox, answer_over_api, answer_over_ag_ui):
        _, task = asking(api, notifications)
        other = {"assistant_id": "agent", "input": {}}
        cancelled: Any = api.post(f"/threads/{task['contextId']}/runs", other).json
        api.post(f"/threads/{task['contextId']}/runs/{cancelled['run_id']}/cancel")
        run_id = interface(api, task["contextId"])
        working = result(api, "GetTask", {"id": task["id"]})
        assert working["status"]["state"] == "TASK_STATE_WORKING", interface
        finish(run_id, {"messages": [{"type": "ai", "content": "red then", "id": "a"}]})
        found = result(api, "GetTask", {"id": task["id"]})
        assert found["status"]["state"] == "TASK_STATE_COMPLETED"
        assert found["artifacts"][0]["parts"] == [{"text": "red then"}]
        assert texts(found) == ["red then"]


def test_a_run_of_another_interface_on_the_thread_of_a_task_is_no_task(
    api: Api, notifications: Notifications
) -> None:
    task = done(api, notifications)
    copy: Any = api.post(f"/threads/{task['contextId']}/copy").json
    assert not {"a2a", "mcp"} & copy["metadata"].keys()
    for thread_id in (task["contextId"], copy["thread_id"]):
        created: Any = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", "input": {}}).json
        assert "a2a" not in created["metadata"]
    assert [one["id"] for one in result(api, "ListTasks")["tasks"]] == [task["id"]]


def test_a_retry_of_a_failed_answer_is_a_new_task(api: Api, notifications: Notifications) -> None:
    _, task = asking(api, notifications)
    answer = sent(api, notifications, text_message("red", taskId=task["id"]))
    Actor(answer.run_id).finish(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR)
    retried: Any = api.post(f"/threads/{task['contextId']}/runs/{answer.run_id}/retry", {}).json
    assert "task_id" not in row(retried["run_id"])["metadata"]["a2a"]
    states = {one["id"]: one["status"]["state"] for one in result(api, "ListTasks")["tasks"]}
    new = f"{task['contextId']}:{retried['run_id']}"
    assert states == {task["id"]: "TASK_STATE_FAILED", new: "TASK_STATE_SUBMITTED"}


def test_a_thread_that_another_assistant_asked_on_is_answered_as_a_new_task(
    api: Api, notifications: Notifications
) -> None:
    _, task = asking(api, notifications)
    assistant_id = str(make.assistant(api.deployment.id, graph_id="agent"))
    path = f"/a2a/{assistant_id}"
    body = text_message("red", contextId=task["contextId"])
    answer = sent(api, notifications, body, path=path)
    assert row(answer.run_id)["kwargs"]["command"] == {"resume": "red"}
    assert "task_id" not in row(answer.run_id)["metadata"]["a2a"]
    assert error(api, "SendMessage", {"message": text_message(taskId=task["id"])}, path=path) == -32001


def items_of(version: str, stream: bytes) -> list[Any]:
    items = [event["result"] for event in rpc.parsed(stream.decode())]
    return [next(iter(item.values())) for item in items] if version == "1.0" else items


def test_settings_of_an_assistant_make_no_tasks_of_its_other_runs(api: Api) -> None:
    assistant_id = str(make.assistant(api.deployment.id, graph_id="agent", metadata={"a2a": {"a2ui": True}}))
    run: Any = api.post("/threads", {}).json
    created: TestResponse = api.post(f"/threads/{run['thread_id']}/runs", {"assistant_id": assistant_id})
    assert "a2a" not in orjson.loads(created.data)["metadata"]
    assert result(api, "ListTasks", path=f"/a2a/{assistant_id}")["totalSize"] == 0
