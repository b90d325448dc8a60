"""The inbox: questions of an organization's graphs, and their answers."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask

import tests.support.factories as make
from shared.infra.postgres import dumps
from shared.models import ThreadStatus
from tests.contract.conftest import Api, ControlPlane, Users, caller, new_key
from tests.contract.test_deployment_changes import at_once
from tests.support import owning, user_code
from tests.support.user_code import PlayedAuth, owner_only, refuse

ONE = {"task": [{"id": "q", "value": {"question": "May I?"}}]}
TWO = {"task": [{"id": "q", "value": 1}], "other": [{"id": "r", "value": 2}]}
FIELDS = (
    "id", "deployment_id", "deployment_name", "thread_id", "thread_title", "run_id", "assistant_id", "assistant_name",
    "graph_id", "interrupt_id", "kind", "value", "asked_at", "asked_by", "status", "assignee", "snoozed_until",
    "expires_at", "on_expiry", "answered_at", "answered_by", "answered_from", "answer", "answer_run_id", "metadata",
)  # fmt: skip


@pytest.fixture
def inbox(api: Api) -> ControlPlane:
    return ControlPlane(api.client)


def end(run: dict[str, Any], interrupts: Any = None, *, next: list[str] | None = None) -> None:
    """End a pending run at these interrupts, or before these nodes."""
    (claimed,) = owning.claim(UUID(run["run_id"]))
    waits = bool(interrupts or next)
    owning.finish(
        claimed,
        thread_status=ThreadStatus.INTERRUPTED if waits else ThreadStatus.IDLE,
        values="{}",
        interrupts=dumps(interrupts or {}),
        state=dumps(make.state(run["thread_id"], "c", next=next or (["work"] if interrupts else []))),
    )


def ask(api: Api, interrupts: Any = ONE, *, next: list[str] | None = None, **body: Any) -> dict[str, Any]:
    """End a run of a new thread at these interrupts. Returns the run's record."""
    thread: Any = api.post("/threads", {"metadata": {"title": "Refund"}}).json
    created = api.post(f"/threads/{thread['thread_id']}/runs", {"assistant_id": "agent", "input": {}, **body})
    assert created.status_code == 200, created.text
    run: Any = created.json
    end(run, interrupts, next=next)
    return run


def listed(inbox: ControlPlane, **query: Any) -> list[Any]:
    response = inbox.get("/v2/inbox", **query)
    assert response.status_code == 200, response.text
    page: Any = response.json
    return page["resources"]


def total(inbox: ControlPlane, **query: Any) -> int:
    page: Any = inbox.get("/v2/inbox", **query).json
    return page["total"]


def searched(user: Api, **body: Any) -> list[Any]:
    page: Any = user.post("/inbox/search", body).json
    return page["resources"]


def answer(inbox: ControlPlane, question: Any, value: Any = "yes") -> Any:
    return inbox.post(f"/v2/inbox/{question['id']}/answer", {"answer": value})


def test_a_question_is_listed_read_and_answered(api: Api, inbox: ControlPlane) -> None:
    run = ask(api)

    (question,) = listed(inbox)
    assert tuple(question) == (*FIELDS, "is_value_left_out")
    known = {"run_id": run["run_id"], "thread_title": "Refund", "status": "open", "deployment_name": "chat"}
    assert {name: question[name] for name in known} == known
    assert question["value"] == {"question": "May I?"}
    assert question["metadata"]["title"] == "Refund"
    assert question.pop("is_value_left_out") is False
    assert inbox.get(f"/v2/inbox/{question['id']}").json == question

    answered = answer(inbox, question)
    assert answered.status_code == 200, answered.text
    assert answered.json["question"]["answer_run_id"] == answered.json["run_id"]
    again = answer(inbox, question, "no")
    assert again.status_code == 409
    assert again.json["detail"].startswith("This question was answered by bootstrap at ")
    assert listed(inbox) == []
    assert listed(inbox, status="answered") == [{**answered.json["question"], "is_value_left_out": False}]
    assert answered.json["question"]["answered_from"] == "127.0.0.1"


@pytest.mark.parametrize("text", [random.Random(1).randbytes(50_000).hex(), "x" * 70_000])
def test_a_large_value_is_left_out_of_the_list_and_read_alone(
    api: Api, inbox: ControlPlane, text: str
) -> None:
    ask(api, {"task": [{"id": "q", "value": text}]})
    ask(api, {"task": [{"id": "q", "value": None}]})
    large, small = listed(inbox)
    assert (large["value"], large["is_value_left_out"]) == (None, True)
    assert (small["value"], small["is_value_left_out"]) == (None, False)
    whole: Any = inbox.get(f"/v2/inbox/{large['id']}").json
    assert whole["value"] == text
    assert [question["value"] for question in searched(api)] == [text, None]


def test_an_answer_is_repeated_under_its_key(api: Api, control: ControlPlane) -> None:
    ask(api)
    (question,) = listed(control)
    address, headers = f"/v2/inbox/{question['id']}/answer", {"Idempotency-Key": "one"}
    first, again = (control.call("POST", address, {"answer": "yes"}, headers=headers) for _ in "12")
    assert (again.status_code, again.headers.get("Idempotent-Replayed"), again.data) == (
        200,
        "true",
        first.data,
    )
    runs: Any = api.get(f"/threads/{question['thread_id']}/runs").json
    record: Any = again.json
    assert [run["run_id"] for run in runs if run["status"] == "pending"] == [record["run_id"]]


def test_the_answer_continues_with_the_configuration_of_the_run_that_asked(
    api: Api, inbox: ControlPlane
) -> None:
    assistant: Any = api.post("/assistants", {"graph_id": "other"}).json
    run = ask(
        api,
        assistant_id=assistant["assistant_id"],
        config={"recursion_limit": 7, "tags": ["a"]},
        context={"k": 1},
        metadata={"m": 1},
        stream_mode=["updates"],
        durability="sync",
        interrupt_after=["work"],
        webhook="https://93.184.216.34/hook",
    )
    (question,) = listed(inbox)
    run_id = answer(inbox, question, {"approved": True}).json["run_id"]

    new: Any = api.get(f"/threads/{run['thread_id']}/runs/{run_id}").json
    assert new["assistant_id"] == run["assistant_id"]
    assert new["metadata"] == run["metadata"]
    kwargs, before = new["kwargs"], run["kwargs"]
    assert kwargs["command"] == {"resume": {"q": {"approved": True}}}
    for name in ("context", "stream_mode", "durability", "interrupt_after", "webhook"):
        assert kwargs[name] == before[name], name
    assert (kwargs["config"]["recursion_limit"], kwargs["config"]["tags"]) == (7, ["a"])
    assert kwargs["config"]["configurable"]["run_id"] == run_id


def test_a_question_of_a_deleted_assistant_stays_open(api: Api, inbox: ControlPlane) -> None:
    assistant: Any = api.post("/assistants", {"graph_id": "other"}).json
    ask(api, assistant_id=assistant["assistant_id"])
    assert api.delete(f"/assistants/{assistant['assistant_id']}").status_code == 204
    (question,) = listed(inbox)
    refused = answer(inbox, question)
    assert refused.status_code == 404
    assert "The assistant that asked this question is deleted." in refused.json["detail"]
    assert len(listed(inbox)) == 1


def test_a_breakpoint_takes_null_and_nothing_else(api: Api, inbox: ControlPlane) -> None:
    run = ask(api, {}, next=["work"])
    (question,) = listed(inbox)
    assert (question["kind"], question["value"]) == ("breakpoint", ["work"])

    refused = answer(inbox, question, "go")
    assert (refused.status_code, refused.json["detail"][0]["loc"]) == (422, ["body", "answer"])
    run_id = answer(inbox, question, None).json["run_id"]
    continued: Any = api.get(f"/threads/{run['thread_id']}/runs/{run_id}").json
    kwargs = continued["kwargs"]
    assert kwargs["command"] is None
    assert [row["status"] for row in listed(inbox, status="all")] == ["answered"]


def test_of_several_answers_at_once_one_wins(api: Api, inbox: ControlPlane) -> None:
    run = ask(api)
    (question,) = listed(inbox)
    answers = at_once(4, lambda n: answer(inbox, question, n))
    assert sorted(response.status_code for response in answers) == [200, 409, 409, 409]
    assert all("was answered by" in r.json["detail"] for r in answers if r.status_code == 409)
    runs: Any = api.get(f"/threads/{run['thread_id']}/runs").json
    assert len(runs) == 2


def test_the_other_question_of_a_thread_is_answered_while_the_first_answer_runs(
    api: Api, inbox: ControlPlane
) -> None:
    ask(api, TWO)
    questions = listed(inbox)
    results: Any = inbox.post("/v2/inbox/answer", {"ids": [q["id"] for q in questions], "answer": "yes"}).json
    assert [list(result) for result in results["results"]] == [["id", "run_id"]] * 2
    assert listed(inbox) == []
    unknown = str(uuid4())
    again: Any = inbox.post("/v2/inbox/answer", {"ids": [questions[0]["id"], unknown], "answer": 1}).json
    assert again["results"][0]["error"].startswith("This question was answered by")
    assert again["results"][1] == {"id": unknown, "error": "Question not found"}


def test_answers_of_every_interface_are_recorded(api: Api, inbox: ControlPlane, taking_graphs: None) -> None:
    """Who answers, by which interface, does not matter to the record."""

    def resume(run: Any) -> Any:
        body = {"assistant_id": "agent", "command": {"resume": "sdk"}}
        return api.post(f"/threads/{run['thread_id']}/runs", body)

    def respond(run: Any) -> Any:
        params = {"interrupt_id": "q", "response": "v2"}
        command = {"id": 1, "method": "input.respond", "params": params}
        return api.post(f"/threads/{run['thread_id']}/commands", command)

    def start(run: Any) -> Any:
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "agent", "input": "start"}}
        return api.post(f"/threads/{run['thread_id']}/commands", command)

    def send_message(run: Any) -> Any:
        message = {
            "messageId": "m",
            "role": "user",
            "parts": [{"text": "a2a"}],
            "contextId": run["thread_id"],
        }
        assistant_id = run["assistant_id"]
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
        body["params"]["configuration"] = {"blocking": False}
        return api.post(f"/a2a/{assistant_id}", body)

    for give, value in ((resume, "sdk"), (respond, "v2"), (start, "start"), (send_message, "a2a")):
        run = ask(api)
        response = give(run)
        assert response.status_code == 200, response.text
        question = next(q for q in listed(inbox, status="all") if q["run_id"] == run["run_id"])
        assert (question["status"], question["answer"]) == ("answered", value), (value, response.text)
        assert (question["answered_by"], question["answered_from"]) == ("bootstrap", "127.0.0.1")
        assert question["answer_run_id"] is not None


def test_an_answer_names_the_key_and_a_key_is_never_shown(app: Flask, api: Api, inbox: ControlPlane) -> None:
    key = new_key("run", name="ops")
    ask(api)
    (question,) = listed(inbox)
    answered = answer(ControlPlane(caller(app, key)), question).json["question"]
    assert answered["answered_by"] == f"ops ({key.split('_')[1]})"


def test_questions_are_assigned_and_snoozed(inbox: ControlPlane, api: Api) -> None:
    ask(api)
    (question,) = listed(inbox)
    path = f"/v2/inbox/{question['id']}"
    later = datetime.now(UTC) + timedelta(hours=1)

    changed: Any = inbox.call("PATCH", path, {"assignee": "ann", "snoozed_until": later.isoformat()}).json
    assert (changed["assignee"], changed["status"]) == ("ann", "snoozed")
    assert listed(inbox) == []
    assert listed(inbox, status="snoozed", assignee="ann") == [{**changed, "is_value_left_out": False}]
    assert listed(inbox, status="snoozed", assignee="bob") == []
    woken: Any = inbox.call("PATCH", path, {"snoozed_until": None}).json
    assert (woken["assignee"], woken["status"]) == ("ann", "open")
    answer(inbox, question)
    assert inbox.call("PATCH", path, {"assignee": None}).status_code == 409


def test_the_filters_of_the_list(api: Api, inbox: ControlPlane) -> None:
    first, second = ask(api), ask(api)
    api.patch(f"/threads/{second['thread_id']}", {"metadata": {"team": "b"}})
    one, two = listed(inbox)
    assert [one["run_id"], two["run_id"]] == [first["run_id"], second["run_id"]]  # oldest first

    assert listed(inbox, metadata='{"team": "b"}') == [{**two, "metadata": {**two["metadata"], "team": "b"}}]
    assert listed(inbox, deployment="chat", limit=1) == [one]
    assert listed(inbox, deployment="other") == []
    assert [q["id"] for q in listed(inbox, asked_after=one["asked_at"])] == [two["id"]]
    assert [q["id"] for q in listed(inbox, asked_before=two["asked_at"])] == [one["id"]]
    assert len(listed(inbox, assistant_id=first["assistant_id"])) == 2
    assert listed(inbox, assistant_id=str(uuid4())) == []
    assert [q["id"] for q in listed(inbox, status="all")] == [two["id"], one["id"]]
    assert inbox.get("/v2/inbox", limit=0).json == {"resources": [], "offset": 0, "total": 2}
    assert total(inbox, limit=1, offset=1) == 2
    for query in ({"metadata": "{"}, {"metadata": "[]"}, {"status": "none"}, {"metadata": '{"a":"\\u0000"}'}):
        assert inbox.get("/v2/inbox", **query).status_code == 422, query


def test_a_deleted_deployment_has_no_questions(api: Api, inbox: ControlPlane) -> None:
    ask(api)
    (question,) = listed(inbox)
    assert inbox.call("DELETE", f"/v2/deployments/{api.deployment.id}").status_code == 204
    assert listed(inbox) == []
    assert inbox.get(f"/v2/inbox/{question['id']}").status_code == 404
    assert answer(inbox, question).status_code == 404


# Deployments with their own authorization


@pytest.mark.usefixtures("control")  # encrypts the response that is stored under an idempotency key
def test_users_see_and_answer_what_their_handlers_let_them(users: Users, played: PlayedAuth) -> None:
    played.on(owner_only, "threads")
    run = ask(users.ann)
    found: Any = users.ann.post("/inbox/search", {}).json
    (question,) = found["resources"]
    assert (found["total"], question["asked_by"], question["run_id"]) == (1, "ann", run["run_id"])

    assert searched(users.bob, status="all") == []
    refused = users.bob.post(f"/inbox/{question['id']}/answer", {"answer": 1})
    assert (refused.status_code, refused.json) == (404, {"detail": "Question not found"})
    missing = users.ann.post(f"/inbox/{uuid4()}/answer", {"answer": 1})
    assert (missing.status_code, missing.json) == (404, {"detail": "Question not found"})
    assert users.nobody.post("/inbox/search", {}).status_code == 401

    played.on(refuse, "threads", "create_run")
    assert users.ann.post(f"/inbox/{question['id']}/answer", {"answer": 1}).status_code == 403
    played.on(owner_only, "threads", "create_run")
    once = {"Idempotency-Key": "one"}
    answered, again = (
        users.ann.post(f"/inbox/{question['id']}/answer", {"answer": 1}, headers=once) for _ in "12"
    )
    assert (again.status_code, again.json) == (200, answered.json)
    record: Any = again.json
    assert record["question"]["answered_by"] == "ann"


def test_platform_keys_act_as_the_studio_user(app: Flask, users: Users, played: PlayedAuth) -> None:
    inbox, reader = ControlPlane(users.owner.client), ControlPlane(caller(app, new_key("read")))
    ask(users.ann)
    (question,) = listed(inbox)
    assert listed(reader) == []
    assert reader.get(f"/v2/inbox/{question['id']}").status_code == 404

    played.on(owner_only, "threads")  # the Studio user owns nothing
    assert listed(inbox) == []
    assert inbox.get(f"/v2/inbox/{question['id']}").status_code == 404
    assert answer(inbox, question).status_code == 404
    played.on(refuse, "threads")
    assert listed(inbox) == []
    assert answer(inbox, question).status_code == 403
    played.handlers.clear()
    answered: Any = answer(inbox, question).json
    assert answered["question"]["answered_by"] == "langgraph-studio-user"


def test_disable_studio_auth_hides_a_deployment(users: Users) -> None:
    inbox = ControlPlane(users.owner.client)
    user_code.protect(users.deployment, disable_studio_auth=True)
    ask(users.ann)
    (question,) = searched(users.ann)
    assert listed(inbox, status="all") == []
    assert total(inbox, limit=0) == 0
    assert inbox.get(f"/v2/inbox/{question['id']}").status_code == 404
    assert answer(inbox, question).status_code == 404
    assert searched(users.ann) == [question]
