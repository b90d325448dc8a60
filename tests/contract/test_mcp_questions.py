"""MCP calls whose graph asks the client: the questions, the retry with answers, and the sealed state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import text

from shared.infra import encryption
from shared.infra.postgres import connection
from shared.removal import expiry
from tests.contract.conftest import Api, Notifications, Users, caller
from tests.contract.mcp_calls import (
    ELICITATION,
    ROME,
    TASKS,
    Calling,
    accept,
    answer,
    ask,
    body,
    call,
    refusal,
    resumes,
    set_options,
    threads,
)
from tests.contract.rpc import parsed
from tests.support.user_code import owner_only

pytestmark = pytest.mark.usefixtures("taking_graphs", "encryption_key")


def retry(api: Api, state: str, responses: Any, **more: Any) -> Any:
    params = {"name": "other", "arguments": ROME, "requestState": state, "inputResponses": responses, **more}
    return answer(api, "tools/call", ELICITATION, **params)


def refused(api: Api, state: str, responses: Any = None, **more: Any) -> tuple[int, int]:
    params = {"name": "other", "arguments": ROME, "requestState": state, **more}
    return refusal(api, "tools/call", ELICITATION, inputResponses=responses or {}, **params)


def test_a_question_is_answered_by_the_client_and_the_thread_is_deleted(
    api: Api, notifications: Notifications
) -> None:
    asked = Calling(api, notifications).asks({"i1": "Which?"})
    state = asked.pop("requestState")
    assert asked == {
        "resultType": "input_required",
        "inputRequests": {
            "i1": {
                "method": "elicitation/create",
                "params": {
                    "mode": "form",
                    "message": "Which?",
                    "requestedSchema": {
                        "type": "object",
                        "properties": {"answer": {"type": "string"}},
                        "required": ["answer"],
                    },
                },
            }
        },
    }
    responses = {"i1": accept("this"), "unknown": 1}
    resumed = Calling(api, notifications, requestState=state, inputResponses=responses)
    assert resumes(api.deployment) == [{"i1": "this"}]
    ended = resumed.ends({"city": "Rome"})
    assert ended == {
        "resultType": "complete",
        "isError": False,
        "content": [{"type": "text", "text": '{"city":"Rome"}'}],
    }
    assert threads(api.deployment) == []


def test_lists_leave_out_the_thread_of_a_call_and_the_inbox_its_question(
    api: Api, notifications: Notifications
) -> None:
    calling = Calling(api, notifications)
    (thread,) = threads(api.deployment)
    assert (thread["ttl_minutes"], thread["ttl_strategy"]) == (120, "delete")
    calling.asks({"i1": "Which?"})
    for query in ({}, {"ids": [str(thread["thread_id"])]}, {"metadata": {"mcp": True}}):
        response = api.post("/threads/search", query)
        assert response.json == []
        assert response.headers["X-Pagination-Total"] == "0"
        assert api.post("/threads/count", query).json == 0
    with connection() as conn:
        assert conn.execute(text("SELECT count(*) FROM question")).scalar_one() == 0
        assert expiry.sweep(conn) == 0
        conn.execute(text("UPDATE thread SET updated_at = now() - interval '121 minutes'"))
        assert expiry.sweep(conn) == 1
    assert threads(api.deployment) == []


def test_two_questions_may_be_answered_one_after_the_other(api: Api, notifications: Notifications) -> None:
    asked = Calling(api, notifications).asks({"i1": "First?", "i2": {"question": "Second?"}})
    assert list(asked["inputRequests"]) == ["i1", "i2"]
    part = retry(api, asked["requestState"], {"i2": accept("[2]")})
    assert list(part["inputRequests"]) == ["i1"]
    assert part["requestState"] != asked["requestState"]
    Calling(api, notifications, requestState=part["requestState"], inputResponses={"i1": accept("1")})
    assert resumes(api.deployment) == [{"i1": "1", "i2": [2]}]


def test_a_state_is_used_once_even_if_the_graph_asks_again_with_the_same_id(
    api: Api, notifications: Notifications
) -> None:
    first = Calling(api, notifications).asks({"i1": "First?"})["requestState"]
    responses = {"i1": accept("one")}
    again = Calling(api, notifications, requestState=first, inputResponses=responses)
    assert refused(api, first, responses) == (400, -32602)  # while the run that it made is live
    second = again.asks({"i1": "Second?"})
    assert list(second["inputRequests"]) == ["i1.2"]
    assert refused(api, first, responses) == (400, -32602)
    state = second["requestState"]
    assert list(retry(api, state, responses)["inputRequests"]) == ["i1.2"]
    last = Calling(api, notifications, requestState=state, inputResponses={"i1.2": accept("two")})
    assert last.ends({})["isError"] is False
    assert refused(api, state, {"i1.2": accept("two")}) == (400, -32602)
    assert len(notifications.heard) == 3


def test_a_state_that_is_used_twice_at_once_makes_one_run(
    api: Api, app: Flask, notifications: Notifications
) -> None:
    state = Calling(api, notifications).asks({"i1": "Which?"})["requestState"]
    key = str(api.client.environ_base["HTTP_X_API_KEY"])
    clients = [Api(caller(app, key), api.deployment) for _ in range(4)]
    params = {"requestState": state, "inputResponses": {"i1": accept("this")}, "arguments": ROME}

    def send(client: Api) -> int:
        return call(client, "tools/call", ELICITATION, name="other", **params).status_code

    with ThreadPoolExecutor(len(clients)) as pool:
        assert sorted(pool.map(send, clients)) == [200, 400, 400, 400]
    assert resumes(api.deployment) == [{"i1": "this"}]


def test_a_state_belongs_to_one_call(api: Api, users: Users, notifications: Notifications) -> None:
    state = Calling(users.ann, notifications).asks({"i1": "Which?"})["requestState"]
    responses = {"i1": accept("this")}
    for client, more in (
        (users.bob, {}),
        (users.ann, {"arguments": {"city": "Oslo"}}),
        (users.ann, {"name": "agent"}),
        (users.ann, {"requestState": state + "-TAMPERED"}),
        (users.ann, {"requestState": "x"}),
    ):
        assert refused(client, **{"state": state, **more_of(more), "responses": responses}) == (400, -32602)
    assert resumes(api.deployment) == []
    Calling(users.ann, notifications, requestState=state, inputResponses=responses)
    assert resumes(api.deployment) == [{"i1": "this"}]


def test_a_state_reveals_no_tool_of_another_user(users: Users) -> None:
    users.played.on(owner_only)
    created = users.ann.post("/assistants", {"graph_id": "agent", "name": "secret"})
    assert created.status_code == 200
    messages = []
    for client, name in ((users.bob, "secret"), (users.bob, "nothing"), (users.ann, "secret")):
        params = {"name": name, "arguments": {"messages": "hi"}, "requestState": "x", "inputResponses": {}}
        messages.append(body(call(client, "tools/call", ELICITATION, **params))["error"]["message"])
    assert messages[:2] == ["Unknown tool: secret", "Unknown tool: nothing"]
    assert messages[2].startswith("requestState: ")


def more_of(more: dict[str, Any]) -> dict[str, Any]:
    return {"state" if name == "requestState" else name: value for name, value in more.items()}


def test_a_declined_question_ends_the_call(api: Api, notifications: Notifications) -> None:
    for action in ("decline", "cancel"):
        state = Calling(api, notifications).asks({"i1": "Which?"})["requestState"]
        assert retry(api, state, {"i1": {"action": action}}) == {
            "resultType": "complete",
            "isError": True,
            "content": [{"type": "text", "text": "The question was declined"}],
        }
        assert threads(api.deployment) == []
        assert refused(api, state, {"i1": {"action": action}}) == (400, -32602)


def test_responses_that_do_not_fit_are_refused_and_can_be_sent_again(
    api: Api, notifications: Notifications
) -> None:
    state = Calling(api, notifications).asks({"i1": "Which?"})["requestState"]
    for response in (12345, {}, {"action": "accept", "content": {"answer": 1}}, {"action": "accept"}):
        assert refused(api, state, {"i1": response}) == (400, -32602)
    for responses in (None, [], "x"):
        params = {"name": "other", "arguments": ROME, "requestState": state, "inputResponses": responses}
        assert refusal(api, "tools/call", ELICITATION, **params) == (400, -32602)
    Calling(api, notifications, requestState=state, inputResponses={"i1": accept("this")})


def test_a_client_that_declares_no_form_is_not_asked(api: Api, notifications: Notifications) -> None:
    for capabilities in ({}, {"elicitation": {"url": {}}}, {"elicitation": 1}, {"sampling": {}}):
        calling = Calling(api, notifications, capabilities)
        result = calling.asks({"i1": "Which?"})
        assert result["resultType"] == "complete"
        assert "__interrupt__" in result["content"][-1]["text"]
    encryption.configure([])
    assert Calling(api, notifications).asks({"i1": "Which?"})["resultType"] == "complete"
    assert threads(api.deployment) == []


def test_a_call_with_progress_asks_in_its_stream(api: Api, notifications: Notifications) -> None:
    calling = Calling(api, notifications, meta={"progressToken": 1})
    ask(calling.actor, {"i1": "Which?"})
    *_, last = parsed(calling.response.get_data(as_text=True))
    assert list(last["result"]["inputRequests"]) == ["i1"]
    calling = Calling(api, notifications, TASKS, meta={"progressToken": 1})
    calling.actor.finish({}, output={})
    *_, last = parsed(calling.response.get_data(as_text=True))
    assert last["result"]["resultType"] == "complete"


def test_leaving_a_call_deletes_its_thread_and_a_waiting_call_stays(
    api: Api, notifications: Notifications
) -> None:
    calling = Calling(api, notifications)
    calling.response.close()
    assert threads(api.deployment) == []
    calling = Calling(api, notifications)
    calling.asks({"i1": "Which?"})
    calling.response.close()
    assert len(threads(api.deployment)) == 1


def test_a_call_that_is_refused_makes_no_thread(api: Api, notifications: Notifications) -> None:
    unknown = call(api, "tools/call", ELICITATION, name="nothing", arguments={})
    assert body(unknown)["error"]["message"] == "Unknown tool: nothing"
    assert answer(api, "tools/call", ELICITATION, name="other", arguments={})["isError"] is True
    set_options(api.deployment, task_required=True)
    response = call(api, "tools/call", ELICITATION, name="other", arguments=ROME)
    assert response.status_code == 400
    error = body(response)["error"]
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": TASKS}
    assert threads(api.deployment) == notifications.heard == []
