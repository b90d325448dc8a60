"""Questions of graphs as MCP elicitation requests, and the clients' responses as values that resume the graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any
from uuid import UUID, uuid4

import pytest

from shared.infra import encryption
from shared.infra.sealed import seal
from web.deployment_api.protocols.mcp.questions import (
    Declined,
    InvalidResponse,
    Question,
    answers_to,
    open_questions,
    requests,
    uses_after,
)
from web.deployment_api.protocols.mcp.request_state import CallIdentity, InvalidState, RequestState

FLAT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "format": "email", "pattern": "x"},
        "size": {"type": "integer", "minimum": 1},
        "color": {"type": "string", "enum": ["red", "blue"], "format": "hue"},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "missing"],
}


def asked(value: Any, **more: Any) -> Question:
    (question,) = open_questions({"task": [{"id": "i1", "value": value, **more}]}, {})
    return question


def params(value: Any, **more: Any) -> Any:
    request = asked(value, **more).request()
    assert request["method"] == "elicitation/create"
    assert request["params"]["mode"] == "form"
    return request["params"]


def accept(**content: Any) -> Any:
    return {"action": "accept", "content": content}


def test_the_message_is_the_text_of_the_question() -> None:
    cases: Mapping[str, Any] = {
        "Which one?": "Which one?",
        "m": {"message": "m", "question": "q"},
        "q": {"question": "q", "description": "d", "message": ""},
        "d": {"description": "d"},
        "send": {"action_request": {"action": "send"}},
        '{"a":1}': {"a": 1},
        "[1,2]": [1, 2],
        "null": None,
    }
    for message, value in cases.items():
        assert params(value)["message"] == message
    assert len(params("x" * 5000)["message"]) == 4000


def test_a_question_without_a_schema_asks_for_one_text() -> None:
    assert params("Which?")["requestedSchema"] == {
        "type": "object",
        "properties": {"answer": {"type": "string"}},
        "required": ["answer"],
    }
    assert asked("Which?").resume_value(accept(answer="5")) == "5"
    assert asked({"question": "Which?"}).resume_value(accept(answer="5")) == 5
    assert asked({"question": "Which?"}).resume_value(accept(answer="five")) == "five"


def test_a_flat_schema_of_the_graph_is_the_form() -> None:
    for question in (asked({"response_schema": FLAT}), asked("Who?", response_schema=FLAT)):
        assert question.request()["params"]["requestedSchema"] == {
            "type": "object",
            "properties": {
                "name": {"type": "string", "format": "email"},
                "size": {"type": "integer", "minimum": 1},
                "color": {"type": "string", "enum": ["red", "blue"]},
                "ok": {"type": "boolean"},
            },
            "required": ["name"],
        }
        assert question.resume_value(accept(name="a", ok=False, other=1)) == {"name": "a", "ok": False}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}]}}},
        {"type": "array", "properties": {}},
        {"type": "object", "properties": []},
        "text",
    ],
)
def test_any_other_schema_asks_for_a_text(schema: Any) -> None:
    assert list(params({"response_schema": schema})["requestedSchema"]["properties"]) == ["answer"]


def test_content_that_does_not_fit_names_the_field() -> None:
    question = asked({"response_schema": FLAT})
    cases: Mapping[str, Any] = {
        "inputResponses.i1.content.name: this field is required": accept(size=1),
        "inputResponses.i1.content.name: must be a string": accept(name=1),
        "inputResponses.i1.content.size: must be an integer": accept(name="a", size=True),
        "inputResponses.i1.content.ok: must be true or false": accept(name="a", ok=1),
        "inputResponses.i1.content.color: must be one of red, blue": accept(name="a", color="green"),
        "inputResponses.i1.content: must be an object": {"action": "accept", "content": [1]},
        "inputResponses.i1.action: must be accept, decline or cancel": 12345,
    }
    for message, response in cases.items():
        with pytest.raises(InvalidResponse) as error:
            question.resume_value(response)
        assert error.value.message == message
    assert question.resume_value(accept(name="a", size=2.0)) == {"name": "a", "size": 2.0}


def review(*names: str, **allowed: list[str]) -> Any:
    return {
        "action_requests": [{"name": name, "args": {"to": "Ann"}} for name in names],
        "review_configs": [
            {"action_name": name, "allowed_decisions": some} for name, some in allowed.items()
        ],
    }


def test_a_review_asks_for_a_decision_about_each_tool_call() -> None:
    asks = params(review("send", "drop", drop=["approve", "reject"]))
    assert asks["message"] == 'send {"to":"Ann"}\n\ndrop {"to":"Ann"}'
    schema = asks["requestedSchema"]
    assert schema["required"] == ["decision", "decision_2"]
    assert schema["properties"]["decision"]["enum"] == ["approve", "edit", "reject"]
    assert schema["properties"]["decision_2"]["enum"] == ["approve", "reject"]
    assert "edited_args" in schema["properties"]
    assert "edited_args_2" not in schema["properties"]
    edited = asked(review("send", "drop")).resume_value(
        accept(decision="edit", edited_args='{"to": "Bo"}', decision_2="reject", message_2="no")
    )
    assert edited == {
        "decisions": [
            {"type": "edit", "edited_action": {"name": "send", "args": {"to": "Bo"}}},
            {"type": "reject", "message": "no"},
        ]
    }
    with pytest.raises(InvalidResponse, match="edited_args: must be the JSON text of an object"):
        asked(review("send")).resume_value(accept(decision="edit", edited_args="to Bo"))


def test_a_declined_review_is_a_rejection_and_any_other_refusal_ends_the_call() -> None:
    decline, cancel = {"action": "decline"}, {"action": "cancel"}
    assert asked(review("send")).resume_value(decline) == {"decisions": [{"type": "reject"}]}
    for question, response in (
        (asked(review("send", send=["approve"])), decline),
        (asked(review("send")), cancel),
        (asked("Which?"), decline),
        (asked("Which?"), cancel),
    ):
        with pytest.raises(Declined):
            question.resume_value(response)


def test_keys_tell_apart_the_uses_of_a_name() -> None:
    interrupts = {
        "a": [{"id": "i1", "value": {"key": "user", "question": "Who?"}}],
        "b": [{"id": "i2", "value": {"key": "user"}}, {"id": "i3", "value": "Which?"}],
        "c": [{"id": "i3", "value": "again"}, {"value": "without an id"}],
    }
    questions = open_questions(interrupts, {"i3": 2})
    assert [question.key for question in questions] == ["user", "user.2", "i3.3"]
    assert list(requests(questions)) == ["user", "user.2", "i3.3"]
    assert uses_after(questions, {"i3": 2}) == {"user": 2, "i3": 3}
    assert open_questions(None, {}) == []


def test_answers_are_collected_until_none_is_missing() -> None:
    questions = open_questions({"a": [{"id": "i1", "value": "1?"}, {"id": "i2", "value": "2?"}]}, {})
    part = answers_to(questions, {}, {"i2": accept(answer="two"), "other": 1})
    assert part.responses == {"i2": accept(answer="two")}
    assert [question.key for question in part.missing] == ["i1"]
    whole = answers_to(questions, {"i1": accept(answer="one")}, part.responses)
    assert whole.missing == []
    assert whole.resume == {"i1": "one", "i2": "two"}


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> Iterator[CallIdentity]:
    monkeypatch.setattr("shared.infra.sealed.database_seconds", lambda: 1000.0)
    encryption.configure([encryption.new_key()])
    yield CallIdentity.of(uuid4(), uuid4(), "ann", "tool", {"a": 1, "b": 2})
    encryption.configure([])


def test_a_state_returns_as_it_was_sealed(identity: CallIdentity) -> None:
    state = RequestState(thread_id=uuid4(), run=3, answers={"i1": accept(answer="one")})
    assert RequestState.unseal(state.seal(identity), identity) == state


def test_a_state_of_another_call_is_refused(identity: CallIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
    state = RequestState(thread_id=UUID(int=1), run=1)
    sealed = state.seal(identity)
    ids = {"deployment_id": identity.deployment_id, "assistant_id": identity.assistant_id}
    arguments = {"b": 2, "a": 1}
    assert CallIdentity.of(*ids.values(), "ann", "tool", arguments) == identity
    others = (
        CallIdentity.of(uuid4(), ids["assistant_id"], "ann", "tool", arguments),
        CallIdentity.of(ids["deployment_id"], uuid4(), "ann", "tool", arguments),
        CallIdentity.of(*ids.values(), "bo", "tool", arguments),
        CallIdentity.of(*ids.values(), "ann", "other", arguments),
        CallIdentity.of(*ids.values(), "ann", "tool", {"a": 1, "b": 3}),
    )
    for other in others:
        with pytest.raises(InvalidState):
            RequestState.unseal(sealed, other)
    foreign = seal("feedback", {"identity": asdict(identity), **asdict(state)}, seconds=60)
    padded = (RequestState(thread_id=UUID(int=1), run=10**n).seal(identity) for n in range(40))
    with_padding = next(text for text in padded if text.endswith("="))
    for text in (sealed + "A", with_padding + "-TAMPERED", sealed[:-8] + "AAAAAAA=", "", "ü", foreign):
        with pytest.raises(InvalidState):
            RequestState.unseal(text, identity)
    monkeypatch.setattr("shared.infra.sealed.database_seconds", lambda: 4601.0)
    with pytest.raises(InvalidState):
        RequestState.unseal(sealed, identity)


def test_a_question_whose_names_are_no_texts_is_asked() -> None:
    review = {
        "action_requests": [{"name": ["x"]}, {"name": {"y": 1}}],
        "review_configs": [{"action_name": {"y": 1}, "allowed_decisions": ["approve"]}],
    }
    properties = params(review)["requestedSchema"]["properties"]
    assert properties["decision"]["enum"] == ["approve", "edit", "reject"]
    assert properties["decision_2"]["enum"] == ["approve"]
    flat = {"properties": {"name": {"type": "string"}}, "required": [["name"], "name"]}
    assert params({"response_schema": flat})["requestedSchema"]["required"] == ["name"]


def test_no_two_questions_have_the_same_key() -> None:
    names = ("q", "q", "q.2", "q.3", "q")
    items = [{"id": f"i{at}", "value": {"key": name}} for at, name in enumerate(names)]
    questions = open_questions({"task": items}, {})
    assert [question.key for question in questions] == ["q", "q.2", "q.2.2", "q.3", "q.4"]
    assert len(requests(questions)) == len(items)
