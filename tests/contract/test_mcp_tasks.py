"""MCP tasks: calls that go on without their client, read, answered and cancelled by id."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from flask import Flask
from sqlalchemy import text

from shared.infra import encryption
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from shared.removal import expiry
from shared.runs import mcp_calls
from tests.contract import rpc
from tests.contract.conftest import Api, MakeApp, Notifications, Users, caller
from tests.contract.mcp_calls import (
    ALL_CAPABILITIES,
    ELICITATION,
    ID,
    PREFIX,
    ROME,
    TASKS,
    Calling,
    accept,
    answer,
    ask,
    call,
    refusal,
    resumes,
    set_options,
    threads,
)
from tests.contract.rpc import parsed
from tests.support.acting import Actor
from web.deployment_api.protocols.mcp import progress, subscriptions

pytestmark = pytest.mark.usefixtures("taking_graphs", "encryption_key")


AGE = "UPDATE thread SET updated_at = updated_at - CAST(:age AS interval) WHERE thread_id = :id"


class Task:
    """A task of the tool `other`, whose run the test executes."""

    def __init__(self, api: Api, notifications: Notifications, capabilities: Any = ALL_CAPABILITIES) -> None:
        set_options(api.deployment, task_after=0)
        self.api, self.notifications, self.capabilities = api, notifications, capabilities
        self.created = answer(api, "tools/call", capabilities, name="other", arguments=ROME)
        self.id = self.created["taskId"]
        self.actor = Actor(notifications.heard[-1][1])

    def get(self, api: Api | None = None) -> Any:
        return answer(api or self.api, "tasks/get", self.capabilities, taskId=self.id)

    def update(self, **responses: Any) -> None:
        sent = {"taskId": self.id, "inputResponses": responses}
        assert answer(self.api, "tasks/update", self.capabilities, **sent) == {"resultType": "complete"}

    def cancel(self) -> None:
        assert answer(self.api, "tasks/cancel", self.capabilities, taskId=self.id) == {
            "resultType": "complete"
        }

    def resumed(self) -> Actor:
        return Actor(self.notifications.heard[-1][1])


def statuses(task: Task) -> tuple[str, set[str]]:
    shown = task.get()
    return shown["status"], shown.keys() & {"inputRequests", "result", "error"}


def test_a_task_is_read_from_its_beginning_to_its_end(api: Api, notifications: Notifications) -> None:
    task = Task(api, notifications)
    assert UUID(task.id).version == 4
    created = {**task.created}
    for name in ("createdAt", "lastUpdatedAt"):
        assert datetime.fromisoformat(created.pop(name)).utcoffset() is not None
    assert created == {
        "resultType": "task",
        "taskId": task.id,
        "status": "working",
        "ttlMs": None,
        "pollIntervalMs": 1000,
    }
    assert statuses(task) == ("working", set())
    task.actor.emit("updates", {"search": {"a": 1}})
    assert task.get()["statusMessage"] == "search"
    task.actor.finish({"city": "Rome"}, output={"city": "Rome"})
    shown = task.get()
    assert shown["resultType"] == "complete"
    assert (shown["taskId"], shown["status"]) == (task.id, "completed")
    assert shown["result"] == {"isError": False, "content": [{"type": "text", "text": '{"city":"Rome"}'}]}
    assert 3_600_000 <= shown["ttlMs"] < 3_700_000
    assert "statusMessage" not in shown


def test_the_end_of_the_run_decides_how_a_task_ends(api: Api, notifications: Notifications) -> None:
    rows: list[tuple[RunStatus, str, str, set[str]]] = [
        (RunStatus.ERROR, "ValueError", "completed", {"result"}),
        (RunStatus.TIMEOUT, "TimeoutError", "completed", {"result"}),
        (RunStatus.ERROR, "RunAbandoned", "failed", {"error"}),
        (RunStatus.INTERRUPTED, "UserInterrupt", "cancelled", set()),
    ]
    for status, error, expected, members in rows:
        task = Task(api, notifications)
        task.actor.finish(
            status=status, thread_status=ThreadStatus.ERROR, error={"error": error, "message": "boom"}
        )
        assert statuses(task) == (expected, members), error
        shown = task.get()
        if "result" in members:
            assert shown["result"]["isError"] is True
            assert shown["result"]["content"][0]["text"] == f"{error}: boom"
        if "error" in members:
            assert shown["error"] == {"code": -32603, "message": "boom"}


def test_a_call_that_takes_long_becomes_a_task_that_outlives_its_client(
    api: Api, notifications: Notifications
) -> None:
    set_options(api.deployment, task_after=0.1)
    calling = Calling(api, notifications, TASKS)
    (thread,) = threads(api.deployment)
    assert refusal(api, "tasks/get", TASKS, taskId=str(thread["thread_id"])) == (400, -32602)
    created = calling.result()
    assert (created["resultType"], created["taskId"]) == ("task", str(thread["thread_id"]))
    calling.response.close()
    (thread,) = threads(api.deployment)
    assert (thread["status"], thread["ttl_minutes"]) == ("busy", 60)
    calling.actor.finish({}, output={})
    assert answer(api, "tasks/get", TASKS, taskId=created["taskId"])["status"] == "completed"


def test_a_call_that_ends_or_asks_soon_is_answered_at_once(api: Api, notifications: Notifications) -> None:
    assert Calling(api, notifications, ALL_CAPABILITIES).ends({})["resultType"] == "complete"
    asked = Calling(api, notifications, ALL_CAPABILITIES).asks({"i1": "Which?"})
    set_options(api.deployment, task_after=0.05)
    retried = Calling(
        api,
        notifications,
        ALL_CAPABILITIES,
        requestState=asked["requestState"],
        inputResponses={"i1": accept("this")},
    )
    created = retried.result()
    assert created["resultType"] == "task"
    assert created.keys().isdisjoint({"requestState", "inputRequests"})
    retried.actor.finish({"a": 1}, output={"a": 1})
    assert answer(api, "tasks/get", taskId=created["taskId"])["result"]["content"][0]["text"] == '{"a":1}'


def test_answers_are_kept_until_all_are_there_though_another_process_gets_each(
    api: Api, app_with: MakeApp, notifications: Notifications
) -> None:
    task = Task(api, notifications)
    ask(task.actor, {"i1": "First?", "i2": "Second?"})
    shown = task.get()
    assert (shown["status"], list(shown["inputRequests"])) == ("input_required", ["i1", "i2"])
    assert 86_400_000 <= shown["ttlMs"] < 86_500_000
    task.update(i1=accept("one"), unknown={"ignored": True})
    assert list(task.get()["inputRequests"]) == ["i2"]
    task.update(i1=accept("changed"))
    assert len(notifications.heard) == 1
    key = str(api.client.environ_base["HTTP_X_API_KEY"])
    task.api = Api(caller(app_with(), key), api.deployment)
    assert list(task.get()["inputRequests"]) == ["i2"]
    task.update(i2=accept("two"))
    assert resumes(api.deployment) == [{"i1": "one", "i2": "two"}]
    assert statuses(task) == ("working", set())
    task.update(i2=accept("two"))
    assert len(notifications.heard) == 2
    ask(task.resumed(), {"i2": "Third?"})
    assert list(task.get()["inputRequests"]) == ["i2.2"]
    task.update(**{"i2.2": accept("three")})
    task.resumed().finish({"a": 1}, output={"a": 1})
    assert statuses(task) == ("completed", {"result"})
    task.update(i1=accept("late"))
    assert len(notifications.heard) == 3


def test_answers_that_come_together_make_one_run(api: Api, app: Flask, notifications: Notifications) -> None:
    key = str(api.client.environ_base["HTTP_X_API_KEY"])
    clients = [Api(caller(app, key), api.deployment) for _ in range(4)]
    task = Task(api, notifications)
    ask(task.actor, {"i1": "First?", "i2": "Second?"})
    sent = [{"i1": accept("one")}, {"i2": accept("two")}] * 2

    def update(client: Api, responses: Any) -> Any:
        return answer(client, "tasks/update", taskId=task.id, inputResponses=responses)

    with ThreadPoolExecutor(len(clients)) as pool:
        assert list(pool.map(update, clients, sent)) == [{"resultType": "complete"}] * len(clients)
    assert resumes(api.deployment) == [{"i1": "one", "i2": "two"}]


def test_a_declined_question_completes_a_task_with_an_error(api: Api, notifications: Notifications) -> None:
    task = Task(api, notifications)
    ask(task.actor, {"i1": "First?", "i2": "Second?"})
    task.update(i1={"action": "decline"})
    shown = task.get()
    assert shown["status"] == "completed"
    assert shown["result"] == {
        "isError": True,
        "content": [{"type": "text", "text": "The question was declined"}],
    }
    task.update(i1=accept("one"), i2=accept("two"))
    task.cancel()
    assert task.get()["status"] == "completed"
    assert resumes(api.deployment) == []


def test_a_response_that_does_not_fit_is_refused(api: Api, notifications: Notifications) -> None:
    task = Task(api, notifications)
    ask(task.actor, {"i1": "First?"})
    for responses in ({"i1": 1}, {"i1": {"action": "accept", "content": {"answer": 1}}}):
        assert refusal(api, "tasks/update", taskId=task.id, inputResponses=responses) == (400, -32602)
    for params in ({}, {"taskId": 1}, {"taskId": task.id}, {"taskId": task.id, "inputResponses": None}):
        assert refusal(api, "tasks/update", **params) == (400, -32602)
    assert statuses(task) == ("input_required", {"inputRequests"})


def test_a_task_is_cancelled_in_any_state(api: Api, notifications: Notifications) -> None:
    pending = answer_task(api)
    assert answer(api, "tasks/cancel", taskId=pending) == {"resultType": "complete"}
    assert answer(api, "tasks/get", taskId=pending)["status"] == "cancelled"
    running = Task(api, notifications)
    running.cancel()
    assert running.get()["status"] == "working"
    running.actor.finish(status=RunStatus.INTERRUPTED, thread_status=ThreadStatus.INTERRUPTED)
    assert statuses(running) == ("cancelled", set())
    waiting = Task(api, notifications)
    ask(waiting.actor, {"i1": "Which?"})
    waiting.cancel()
    assert statuses(waiting) == ("cancelled", set())
    waiting.update(i1=accept("late"))
    ended = Task(api, notifications)
    ended.actor.finish({}, output={})
    ended.cancel()
    assert statuses(ended) == ("completed", {"result"})
    assert resumes(api.deployment) == []


def lives_after(task: Task, age: str) -> bool:
    """Remove expired threads when a task has not changed for this time. Returns whether its thread is left."""
    with connection() as conn:
        conn.execute(text(AGE), {"id": task.id, "age": age})
        while expiry.sweep(conn):
            pass
    return task.id in [str(thread["thread_id"]) for thread in threads(task.api.deployment)]


def test_the_thread_of_a_task_lives_for_a_day_while_it_waits_and_for_an_hour_after_its_end(
    api: Api, notifications: Notifications
) -> None:
    cancelled, declined, ended, forgotten = (Task(api, notifications) for _ in range(4))
    for task in (cancelled, declined, ended, forgotten):
        ask(task.actor, {"i1": "Which?"})
        assert lives_after(task, "23 hours 59 minutes")
        assert statuses(task) == ("input_required", {"inputRequests"})
    cancelled.cancel()
    declined.update(i1={"action": "decline"})
    ended.update(i1=accept("this"))
    ended.resumed().finish({}, output={})
    for task in (cancelled, declined, ended):
        assert lives_after(task, "59 minutes")
        assert not lives_after(task, "2 minutes")
    assert not lives_after(forgotten, "2 minutes")


def test_a_copy_of_the_thread_of_a_task_is_an_ordinary_thread(api: Api, notifications: Notifications) -> None:
    task = Task(api, notifications)
    ask(task.actor, {"i1": "Which?"})
    copy: Any = api.post(f"/threads/{task.id}/copy").json
    assert (copy["status"], "mcp" in copy["metadata"]) == ("idle", False)
    assert [thread["thread_id"] for thread in api.post("/threads/search", {}).json] == [copy["thread_id"]]
    assert "ttl" not in api.get(f"/threads/{copy['thread_id']}?include=ttl").json
    assert refusal(api, "tasks/get", taskId=copy["thread_id"]) == (400, -32602)


def answer_task(api: Api) -> str:
    """Create a task whose run stays pending. Returns its id."""
    set_options(api.deployment, task_after=0)
    return answer(api, "tools/call", name="other", arguments=ROME)["taskId"]


def test_tasks_of_others_and_expired_tasks_are_unknown(
    api: Api, users: Users, notifications: Notifications
) -> None:
    task = Task(users.ann, notifications)
    ask(task.actor, {"i1": "Which?"})
    methods: dict[str, Any] = {
        "tasks/get": {},
        "tasks/cancel": {},
        "tasks/update": {"inputResponses": {"i1": accept("this")}},
    }
    for method, params in methods.items():
        for id in (task.id, str(uuid4()), "nonsense"):
            assert refusal(users.bob, method, taskId=id, **params) == (400, -32602), method
    assert statuses(task) == ("input_required", {"inputRequests"})
    task.update(i1=accept("this"))
    task.resumed().finish({}, output={})
    with connection() as conn:
        conn.execute(text("UPDATE run SET ended_at = now() - interval '61 minutes'"))
    for method, params in methods.items():
        assert refusal(users.ann, method, taskId=task.id, **params) == (400, -32602), method


def test_a_filter_of_the_deployment_hides_tasks(users: Users, notifications: Notifications) -> None:
    task = Task(users.ann, notifications)
    users.played.on(lambda ctx, value: {"owner": "nobody"}, "threads", "read")
    assert refusal(users.ann, "tasks/get", taskId=task.id) == (400, -32602)


def test_handlers_get_changes_of_tasks_like_other_changes_of_threads(
    users: Users, notifications: Notifications
) -> None:
    values: list[Any] = []
    users.played.on(lambda ctx, value: values.append(value), "threads", "update")
    task = Task(users.ann, notifications)
    task.update()
    task.cancel()
    assert values == [
        {"thread_id": UUID(task.id), "metadata": {}},
        {
            "thread_id": UUID(task.id),
            "action": "interrupt",
            "metadata": {"run_ids": None, "status": None},
        },
    ]


def test_tasks_need_the_extension(api: Api, notifications: Notifications) -> None:
    set_options(api.deployment, task_required=True)
    created = answer(
        api, "tools/call", TASKS, name="other", arguments=ROME, meta={"progressToken": 1}, task={"ttl": 1}
    )
    assert created["resultType"] == "task"
    legacy = rpc.error(api, "/mcp", "tools/call", {"name": "other", "arguments": ROME})
    assert legacy[0] == -32021
    methods: dict[str, Any] = {
        "tasks/get": {"taskId": created["taskId"]},
        "tasks/update": {"taskId": "gate-test", "inputResponses": {}},
        "tasks/cancel": {"taskId": "gate-test"},
        "subscriptions/listen": {"notifications": {"taskIds": []}},
    }
    for method, params in methods.items():
        assert refusal(api, method, ELICITATION, **params) == (400, -32021), method
    for method in ("tasks/result", "tasks/list"):
        assert refusal(api, method, taskId=created["taskId"]) == (404, -32601)


def test_a_question_ends_the_task_of_a_client_that_cannot_be_asked(
    api: Api, notifications: Notifications
) -> None:
    encryption.configure([])
    asked = Task(api, notifications, ALL_CAPABILITIES)
    ask(asked.actor, {"i1": "Which?"})
    assert asked.get()["status"] == "input_required"
    task = Task(api, notifications, TASKS)
    ask(task.actor, {"i1": "Which?"})
    shown = task.get()
    assert shown["status"] == "completed"
    (interrupt,) = orjson.loads(shown["result"]["content"][0]["text"])["__interrupt__"]
    assert interrupt["value"] == "Which?"


def test_a_subscription_gets_a_task_at_each_change(
    api: Api, users: Users, notifications: Notifications
) -> None:
    task, foreign = Task(users.ann, notifications), Task(users.bob, notifications)
    named = {"taskIds": [task.id, foreign.id, str(uuid4()), "nonsense"], "toolsListChanged": True}
    response = call(users.ann, "subscriptions/listen", notifications=named)
    assert response.mimetype == "text/event-stream"
    chunks = response.iter_encoded()

    def next_message() -> Any:
        while True:
            for message in parsed(next(chunks).decode()):
                return message

    acknowledged = next_message()
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    meta = {f"{PREFIX}subscriptionId": ID}
    assert acknowledged["params"] == {"notifications": {"taskIds": [task.id]}, "_meta": meta}
    first = next_message()
    assert first["method"] == "notifications/tasks"
    assert (first["params"]["taskId"], first["params"]["status"]) == (task.id, "working")
    foreign.actor.finish({}, output={})
    ask(task.actor, {"i1": "Which?"})
    changed = next_message()["params"]
    assert changed.pop("_meta") == meta
    shown = task.get()
    del shown["resultType"]
    assert changed == shown
    response.close()


def test_one_statement_polls_the_tasks_of_all_subscriptions(
    users: Users, notifications: Notifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[int] = []
    states = mcp_calls.states

    def noted(conn: Any, followed: Any) -> Any:
        polls.append(len(followed))
        return states(conn, followed)

    monkeypatch.setattr(mcp_calls, "states", noted)
    monkeypatch.setattr(subscriptions, "_subscribers", subscriptions._Subscribers())
    callers = [users.ann, users.bob, users.ann, users.bob]
    followed = [Task(api, notifications) for api in callers]
    responses = [
        call(api, "subscriptions/listen", notifications={"taskIds": [task.id]})
        for api, task in zip(callers, followed, strict=True)
    ]
    streams = [response.iter_encoded() for response in responses]

    def next_status(stream: Any) -> str:
        while True:
            for message in parsed(next(stream).decode()):
                if "status" in message["params"]:
                    return message["params"]["status"]

    assert [next_status(stream) for stream in streams] == ["working"] * 4
    for task in followed:
        ask(task.actor, {"i1": "Which?"})
    polls.clear()
    time.sleep(subscriptions.POLL_SECONDS)  # all are due now, however long the lines above took
    assert [next_status(stream) for stream in streams] == ["input_required"] * 4
    assert polls == [4]
    for response in responses:
        response.close()


def test_a_notification_lacks_a_state_that_clients_cannot_take(
    api: Api, notifications: Notifications
) -> None:
    task, other = Task(api, notifications), Task(api, notifications)
    large = {"text": "x" * progress.MAX_EVENT}
    task.actor.finish(large, output=large)
    response = call(api, "subscriptions/listen", notifications={"taskIds": [task.id, other.id]})
    chunks = response.iter_encoded()
    next(chunks)
    # A chunk has one notification: a client that reads slowly does not fill the memory of the process.
    chunk = next(chunk for chunk in (next(chunks), next(chunks)) if task.id.encode() in chunk)
    assert len(chunk) <= progress.MAX_EVENT
    (message,) = parsed(chunk.decode())
    (content,) = message["params"]["result"]["content"]
    assert content["text"].endswith("Call tasks/get to get it.")
    response.close()
    assert orjson.loads(task.get()["result"]["content"][0]["text"]) == large


def test_a_subscription_to_nothing_stays_open(api: Api) -> None:
    for notifications in ({}, {"taskIds": []}, {"toolsListChanged": True}):
        response = call(api, "subscriptions/listen", notifications=notifications)
        chunks = response.iter_encoded()
        (message,) = parsed(next(chunks).decode())
        honoured = {"taskIds": []} if "taskIds" in notifications else {}
        assert message["params"]["notifications"] == honoured
        assert b"heartbeat" in b"".join(next(chunks) for _ in range(4))
        response.close()
    for bad in (
        {},
        {"notifications": []},
        {"notifications": {"taskIds": "x"}},
        {"notifications": {"taskIds": [1]}},
    ):
        assert refusal(api, "subscriptions/listen", **bad) == (400, -32602)
    many = {"taskIds": ["x"] * 101}
    assert refusal(api, "subscriptions/listen", notifications=many) == (400, -32602)
