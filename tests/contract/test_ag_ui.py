"""AG-UI at a deployment's address: the run that a request creates, refusals, joins, and access."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4, uuid5

import orjson
import pytest
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared.infra.postgres import connection
from shared.models import RUN, RunStatus, ThreadStatus
from tests.contract.bad_input import BODIES, MAX_BYTES
from tests.contract.conftest import Api, Notifications
from tests.contract.rpc import CHAT
from tests.support.acting import Actor
from tests.support.user_code import PlayedAuth, owner_only

AGENT = "/ag-ui/agent"
SCHEMA = {
    **CHAT,
    "properties": {
        **CHAT["properties"],
        "topic": {"type": "string"},
        "tools": {},
        "ag-ui": {},
        "copilotkit": {},
    },
}
QUESTIONS = [{"id": "i1", "value": "One?"}, {"id": "i2", "value": "Two?"}]
TOOL = {"name": "paint", "description": "Paints", "parameters": {"type": "object"}}


@pytest.fixture(autouse=True)
def _taking(request: pytest.FixtureRequest) -> None:
    make.takes(request.getfixturevalue("api").deployment, "agent", SCHEMA)


def user(id: str, content: Any = "hi") -> dict[str, Any]:
    return {"id": id, "role": "user", "content": content}


def human(id: str, content: str = "hi") -> dict[str, Any]:
    return {"type": "human", "id": id, "content": content}


def ai(id: str, content: str = "ho") -> dict[str, Any]:
    return {"type": "ai", "id": id, "content": content}


class Conversation:
    """A thread of a client, and the runs that its requests create."""

    def __init__(self, api: Api, notifications: Notifications, thread_id: str | None = None) -> None:
        self.api, self.notifications = api, notifications
        self.thread_id = thread_id or str(uuid4())

    def post(self, *messages: Any, **more: Any) -> TestResponse:
        body = {
            "threadId": self.thread_id,
            "runId": "r",
            "protocolVersion": "1.0",
            "messages": messages,
            **more,
        }
        return self.api.post(AGENT, body, buffered=False)

    def start(self, *messages: Any, **more: Any) -> Actor:
        """Create a run and claim it."""
        self.response = self.post(*messages, **more)
        assert self.response.status_code == 200, self.response.text
        return Actor(self.notifications.heard[-1][1])

    def has(self, *messages: Any, interrupts: Any = (), checkpoint: str = "", **values: Any) -> None:
        """Leave these values on the thread, by a run that has ended."""
        actor = self.start(user("first"))
        if checkpoint:
            make.stored(actor.run, checkpoint)
        status = ThreadStatus.INTERRUPTED if interrupts else ThreadStatus.IDLE
        whole = {"messages": [*messages], **values}
        actor.finish(
            whole,
            thread_status=status,
            interrupts={"task": list(interrupts)} if interrupts else {},
            output=whole,
        )
        events(self.response)

    def row(self, actor: Actor) -> Any:
        with connection() as conn:
            return conn.execute(RUN.select().where(RUN.c.run_id == actor.run.run_id)).mappings().one()


@pytest.fixture
def talk(api: Api, notifications: Notifications) -> Conversation:
    return Conversation(api, notifications)


def events(response: TestResponse) -> list[Any]:
    """Return the events of a stream, whose lines end with line feeds alone."""
    assert response.status_code == 200, response.text
    assert "\r" not in response.text
    parts = [part for part in response.text.split("\n\n") if part and part != ": heartbeat"]
    return [orjson.loads(part.removeprefix(": heartbeat\n").removeprefix("data: ")) for part in parts]


def types(response: TestResponse) -> list[str]:
    return [event["type"] for event in events(response)]


def test_a_run_streams_and_carries_the_ids_of_the_client(talk: Conversation) -> None:
    actor = talk.start(
        user("u"), parentRunId="p", forwardedProps={"page": 1, "config": {"recursion_limit": 7}}
    )
    row = talk.row(actor)
    assert row["metadata"]["ag_ui"] == {"thread_id": talk.thread_id, "run_id": "r", "parent_run_id": "p"}
    assert row["kwargs"]["stream_mode"] == ["messages-tuple", "values", "tasks", "custom"]
    assert (row["kwargs"]["subgraphs"], row["multitask_strategy"]) == (True, "reject")
    assert row["kwargs"]["config"]["recursion_limit"] == 7
    assert row["kwargs"]["config"]["configurable"]["ag_ui"] == {"page": 1}
    path = f"/threads/{talk.thread_id}/runs/{actor.run.run_id}"
    headers = talk.response.headers
    assert (headers["Content-Location"], headers["X-Accel-Buffering"]) == (path, "no")
    values = {"messages": [human("u"), ai("a")], "topic": "t"}
    actor.emit("values", values)
    actor.finish(values, output=values)
    assert types(talk.response) == [
        "RUN_STARTED", "STATE_SNAPSHOT", "STATE_SNAPSHOT", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED",
    ]  # fmt: skip


def test_only_what_is_new_is_the_input(talk: Conversation) -> None:
    talk.has(human("1"), ai("2"), topic="old", tools=["hidden"])
    known = [user("1"), {"id": "2", "role": "assistant", "content": "ho"}]
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"type": "data", "value": "eA==", "mimeType": "image/png"}},
        {"type": "document", "source": {"type": "url", "value": "https://a.example/x", "mimeType": None}},
        {"type": "audio", "source": {"type": "file", "value": "f1"}},
        {"type": "binary", "mimeType": "video/mp4", "data": "eA==", "filename": "a.mp4"},
    ]
    calls = [
        {"id": f"c{at}", "type": "function", "function": {"name": "paint", "arguments": text}}
        for at, text in enumerate(['{"a": 1}', "{"])
    ]
    new = [
        {"id": "3", "role": "assistant", "toolCalls": calls},
        {"id": "4", "role": "tool", "toolCallId": "c0", "content": "done"},
        {"id": "5", "role": "tool", "toolCallId": "c1", "content": "", "error": "broken"},
        {"id": "6", "role": "reasoning", "content": "left out"},
        {"id": "7", "role": "activity", "activityType": "x", "content": {}},
        {"id": "8", "role": "developer", "content": "be kind"},
        {**user("9", parts), "name": "ann"},
    ]
    context = [{"description": "page", "value": "checkout"}]
    state = {"topic": "new", "unknown": 1, "messages": [], "tools": ["mine"]}
    run = talk.row(talk.start(*known, *new, tools=[TOOL], context=context, state=state))
    assert {name: value for name, value in run["input"].items() if name != "messages"} == {
        "topic": "new",
        "tools": [TOOL],
        "ag-ui": {"tools": [TOOL], "context": context},
        "copilotkit": {"actions": [TOOL], "context": context},
    }
    third, fourth, fifth, eighth, ninth = run["input"]["messages"]
    assert third["tool_calls"] == [{"id": "c0", "name": "paint", "args": {"a": 1}, "type": "tool_call"}]
    assert [(call["id"], call["args"]) for call in third["invalid_tool_calls"]] == [("c1", "{")]
    assert fourth == {"id": "4", "type": "tool", "tool_call_id": "c0", "content": "done", "status": "success"}
    assert (fifth["status"], fifth["content"]) == ("error", "broken")
    assert eighth == {"id": "8", "type": "system", "content": "be kind"}
    assert ninth["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image", "base64": "eA==", "mime_type": "image/png"},
        {"type": "file", "url": "https://a.example/x"},
        {"type": "audio", "file_id": "f1"},
        {"type": "video", "mime_type": "video/mp4", "base64": "eA==", "extras": {"filename": "a.mp4"}},
    ]


def test_an_unchanged_conversation_is_no_input(talk: Conversation) -> None:
    talk.has(human("1"), topic="same")
    assert talk.row(talk.start(user("1"), state={"topic": "same"}))["input"]["messages"] == []


def test_any_text_names_a_thread_of_the_deployment(api: Api, notifications: Notifications) -> None:
    talk = Conversation(api, notifications, "my thread")
    actor = talk.start(user("1"))
    assert actor.run.thread_id == uuid5(api.deployment.id, "my thread")
    actor.finish({}, output={})
    assert events(talk.response)[0]["threadId"] == "my thread"


@pytest.mark.parametrize("sent", [[user("1", "changed")], [user("1")]])
def test_an_answer_is_generated_again_from_the_checkpoint_before_it(
    talk: Conversation, sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, fork, between, before = (str(UUID(int=at)) for at in (4, 3, 2, 1))
    talk.has(human("0"), ai("00"), human("1"), ai("2"), checkpoint=newest)
    history = [
        {
            "checkpoint_id": newest,
            "parent_checkpoint_id": between,
            "values": {"messages": [human("1"), ai("2")]},
        },
        {"checkpoint_id": fork, "parent_checkpoint_id": before, "values": {"messages": []}},
        {"checkpoint_id": between, "parent_checkpoint_id": before, "values": {"messages": [human("1")]}},
        {"checkpoint_id": before, "parent_checkpoint_id": None, "values": {"messages": [human("0")]}},
    ]
    monkeypatch.setattr("shared.hosts.calls.call", lambda call: orjson.dumps(history))
    row = talk.row(talk.start(*sent))
    assert row["kwargs"]["config"]["configurable"]["checkpoint_id"] == before
    assert [message["content"] for message in row["input"]["messages"]] == [sent[-1]["content"]]


def test_an_answer_is_not_generated_again_without_the_checkpoint(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = str(UUID(int=1))
    talk.has(human("1"), ai("2"), checkpoint=newest)
    history = [
        {"checkpoint_id": newest, "parent_checkpoint_id": None, "values": {"messages": [human("1"), ai("2")]}}
    ]
    monkeypatch.setattr("shared.hosts.calls.call", lambda call: orjson.dumps(history))
    assert talk.post(user("1")).status_code == 409


def test_a_system_message_at_the_end_does_not_count_as_dropped(talk: Conversation) -> None:
    note = {"type": "system", "id": "3", "content": "noted"}
    talk.has(human("1"), ai("2"), note)
    said = {"id": "2", "role": "assistant", "content": "ho"}
    row = talk.row(talk.start(user("1"), said, {"id": "3", "role": "system", "content": "noted"}))
    assert row["input"]["messages"] == []


def test_answers_resume_the_thread(talk: Conversation) -> None:
    talk.has(human("1"), interrupts=QUESTIONS)
    answers = [
        {"interruptId": "i1", "status": "resolved", "payload": {"ok": True}},
        {"interruptId": "i2", "status": "cancelled"},
        {"interruptId": "gone", "status": "resolved", "payload": 1},
    ]
    row = talk.row(talk.start(user("1"), user("2"), resume=answers))
    assert row["kwargs"]["command"] == {
        "resume": {"i1": {"ok": True}, "i2": {"__agui_cancelled__": True}},
        "update": {"messages": [{"type": "human", "id": "2", "content": "hi"}]},
    }
    assert talk.post(user("1"), resume=answers).status_code == 409


def test_an_answer_of_an_older_client_resumes_the_thread(talk: Conversation) -> None:
    talk.has(human("1"), interrupts=QUESTIONS[:1])
    row = talk.row(talk.start(user("1"), forwardedProps={"command": {"resume": "yes"}}))
    assert row["kwargs"]["command"] == {"resume": "yes"}


def test_a_thread_that_waits_takes_answers_to_all_questions_only(
    talk: Conversation, notifications: Notifications
) -> None:
    talk.has(human("1"), interrupts=QUESTIONS, topic="t")
    count = len(notifications.heard)
    one = [{"interruptId": "i1", "status": "resolved", "payload": 1}]
    for response in (talk.post(user("1"), user("2")), talk.post(user("1"), resume=one), talk.post()):
        shown = events(response)
        assert [event["type"] for event in shown] == [
            "RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "CUSTOM", "CUSTOM", "RUN_FINISHED",
        ]  # fmt: skip
        assert [one["id"] for one in shown[-1]["outcome"]["interrupts"]] == ["i1", "i2"]
    assert len(notifications.heard) == count


def test_a_message_replaces_a_question_of_a_node_that_the_revision_lacks(talk: Conversation) -> None:
    talk.has(human("1"), interrupts=QUESTIONS[:1])
    answer = [{"interruptId": "i1", "status": "resolved", "payload": 1}]
    error = {"error": "MissingNodeError", "message": "The question is of a node"}
    talk.start(user("1"), resume=answer).finish(
        status=RunStatus.ERROR,
        thread_status=ThreadStatus.INTERRUPTED,
        error=error,
        interrupts={"": QUESTIONS[:1]},
    )
    row = talk.row(talk.start(user("1"), user("2")))
    assert row["kwargs"]["command"] is None
    assert [message["id"] for message in row["input"]["messages"]] == ["2"]


def test_an_answer_to_nothing_runs_nothing(talk: Conversation, notifications: Notifications) -> None:
    talk.has(human("1"))
    count = len(notifications.heard)
    answer = [{"interruptId": "i1", "status": "resolved", "payload": 1}]
    for more in ({"resume": answer}, {"forwardedProps": {"command": {"resume": 1}}}):
        assert events(talk.post(user("1"), **more))[-1]["outcome"] == {"type": "success"}
    assert len(notifications.heard) == count


def test_ends_of_runs(talk: Conversation) -> None:
    failure = {"error": "ValueError", "message": "boom"}
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (
            {"status": RunStatus.ERROR, "error": failure, "output": {"__error__": failure}},
            {"message": "ValueError: boom"},
        ),
        ({"status": RunStatus.TIMEOUT, "error": failure}, {"code": "ValueError"}),
        ({"status": RunStatus.INTERRUPTED}, {"outcome": {"type": "cancelled"}}),
        ({"output": {"n": 1}}, {"outcome": {"type": "success"}}),
        ({"dies": True}, {"outcome": {"type": "success"}}),
    ]
    for end, expected in rows:
        actor = talk.start(user(str(uuid4())))
        actor.finish({"messages": [human("1")]}, **end)
        last = events(talk.response)[-1]
        assert last.items() >= expected.items(), end
    talk.start(user("x"))
    talk.api.delete(f"/threads/{talk.thread_id}")
    assert events(talk.response)[-1]["type"] == "RUN_ERROR"


def test_the_last_state_is_that_of_the_thread_though_the_graph_outputs_a_part_of_it(
    talk: Conversation,
) -> None:
    actor = talk.start(user("1"))
    values = {"messages": [human("1")], "plan": "x"}
    part = {"messages": values["messages"]}
    actor.emit("values", part)
    actor.finish(values, output=part)
    assert [event["snapshot"] for event in events(talk.response) if event["type"] == "STATE_SNAPSHOT"][
        -1
    ] == {"plan": "x"}


def test_what_is_no_request_is_refused(api: Api, talk: Conversation) -> None:
    for raw, kind in BODIES:
        assert api.client.post(f"/d/chat{AGENT}", data=raw).status_code == (
            400 if kind == "json_invalid" else 422
        ), raw[:40]
    assert api.client.post(f"/d/chat{AGENT}", data=b"").status_code == 400
    for name, value, words in (
        ("threadId", "", "threadId"), ("runId", "x" * 257, "runId"), ("protocolVersion", "2.0", "use 1.0"),
        ("messages", [{"id": "1", "role": "wizard"}], "messages.0.role"), ("messages", [user("1", [{"type": "x"}])], "messages.0.content.0.type"),
        ("tools", [{"name": ""}], "tools.0.name"), ("resume", [{"interruptId": "i", "status": "x"}], "resume.0.status"),
        ("forwardedProps", {"on_disconnect": "x"}, "forwardedProps.on_disconnect"),
    ):  # fmt: skip
        response = talk.post(**{name: value})
        answer: Any = response.json
        assert (response.status_code, words in answer["detail"]) == (422, True), answer
    body = {"threadId": "t", "runId": "r", "messages": []}
    for headers, status in (({"Accept": "application/json"}, 406), ({"Content-Type": "text/plain"}, 415)):
        assert api.post(AGENT, body, headers=headers).status_code == status
    assert api.post("/ag-ui/unknown", body).status_code == 404
    api.client.application.config["MAX_CONTENT_LENGTH"] = MAX_BYTES
    assert api.post(AGENT, {"a": "x" * MAX_BYTES}).status_code == 413


def test_a_busy_thread_is_a_conflict_and_a_newer_minor_version_is_served(talk: Conversation) -> None:
    talk.start(user("1"), protocolVersion="1.7", runId="null is absent", tools=None, resume=None, state=None)
    assert talk.post(user("2")).status_code == 409
    assert talk.post(user("2"), forwardedProps={"multitask_strategy": "enqueue"}).status_code == 200


def test_a_client_joins_in_the_middle_of_a_message(talk: Conversation) -> None:
    actor = talk.start(user("1"), runId="mine", forwardedProps={"on_disconnect": "continue"})
    actor.emit("values", {"messages": [human("1")]})
    part = [{"type": "AIMessageChunk", "id": "a", "content": "so far"}, {"langgraph_checkpoint_ns": "n:1"}]
    actor.emit("messages", part)
    joined = talk.api.get(f"{AGENT}/?threadId={talk.thread_id}&protocolVersion=1.0", buffered=False)
    part[0]["content"] = " so good"  # type: ignore[index]
    actor.emit("messages", part)
    values = {"messages": [human("1"), ai("a", "so far so good")]}
    actor.finish(values, output=values)
    shown = events(joined)
    assert shown[0]["runId"] == "mine"
    snapshot = next(event for event in shown if event["type"] == "MESSAGES_SNAPSHOT")
    assert [message["content"] for message in snapshot["messages"]] == ["hi", "so far"]
    assert [event["delta"] for event in shown if event["type"] == "TEXT_MESSAGE_CONTENT"] == [" so good"]
    assert shown[-1]["outcome"] == {"type": "success"}
    ended = talk.api.get(f"{AGENT}?threadId={talk.thread_id}")
    assert ended.headers["Cache-Control"] == "no-store"
    assert types(ended) == ["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]

    make.removed_graph(talk.api.deployment, "agent")
    assert types(talk.api.get(f"{AGENT}?threadId={talk.thread_id}")) == types(ended)
    assert talk.post(user("2")).status_code == 404


def test_a_thread_without_runs_is_joined_and_a_missing_one_is_not(api: Api, thread_id: str) -> None:
    assert types(api.get(f"{AGENT}?threadId={thread_id}")) == [
        "RUN_STARTED",
        "STATE_SNAPSHOT",
        "RUN_FINISHED",
    ]
    assert api.get(f"{AGENT}?threadId=missing").status_code == 404
    assert api.get(f"/ag-ui/unknown?threadId={thread_id}").status_code == 404


def test_capabilities(api: Api) -> None:
    found: Any = api.get(f"{AGENT}/capabilities").json
    assert found["identity"]["name"] == "agent"
    assert found["tools"]["clientProvided"]
    assert found["humanInTheLoop"]["interrupts"]
    assert api.get(f"{AGENT}/capabilities/").json == found
    other: Any = api.get("/ag-ui/other/capabilities").json
    assert "multimodal" not in other


def test_users_do_not_reach_each_others_threads(
    ann: Api, bob: Api, played: PlayedAuth, notifications: Notifications
) -> None:
    make.takes(ann.deployment, "agent", SCHEMA)
    played.on(owner_only, "threads")
    actor = Conversation(ann, notifications, "shared name").start(user("1"))
    actor.finish({"messages": [human("1")]})
    id = str(actor.run.thread_id)
    assert Conversation(bob, notifications, id).post(user("2")).status_code == 404
    assert bob.get(f"{AGENT}?threadId={id}").status_code == 404
    assert bob.get(f"{AGENT}?threadId=shared name").status_code == 404
    assert ann.get(f"{AGENT}?threadId=shared name").status_code == 200
    other = Conversation(bob, notifications, "shared name").start(user("2"))
    assert other.run.thread_id != actor.run.thread_id
    assert ann.get(f"{AGENT}?threadId=shared name").text.count('"content":"hi"') == 1
