"""Questions of a graph to an MCP client: interrupts as elicitation requests, and responses as resume values.

An elicitation asks for an object whose properties have primitive types. A question therefore has one of three forms: the
graph's own `response_schema` if it is flat, a review of tool calls, or one text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from shared.errors import Refused
from shared.infra.postgres import dumps
from shared.threads import records
from web.deployment_api.protocols.conversation import has_type

MAX_MESSAGE = 4000  # characters
ACCEPT, DECLINE, CANCEL = "accept", "decline", "cancel"
TYPES = {"string": "a string", "number": "a number", "integer": "an integer", "boolean": "true or false"}
# Members of a property that MCP knows. Clients may refuse others.
MEMBERS = (
    "type", "title", "description", "default", "enum", "enumNames", "oneOf", "format", "minLength", "maxLength",
    "minimum", "maximum",
)  # fmt: skip
FORMATS = ("email", "uri", "date", "date-time")
TEXT = {"type": "string"}

Responses = Mapping[str, Any]  # key of an input request → the client's response


class InvalidResponse(Refused):
    """A response of a client does not fit its question. The message names the field."""


class Declined(Refused):
    """The question was declined"""


@dataclass(frozen=True)
class Question:
    """An open interrupt. `name` is the key without the number that tells apart several uses of a name in one call."""

    key: str
    name: str
    interrupt_id: str
    value: Any
    form: Form

    def request(self) -> dict[str, Any]:
        """Return the question as an entry of `inputRequests`."""
        params = {"mode": "form", "message": _message(self.value), "requestedSchema": self.form.schema()}
        return {"method": "elicitation/create", "params": params}

    def resume_value(self, response: Any) -> Any:
        """Return the value that answers the interrupt. Raises InvalidResponse and Declined."""
        path = f"inputResponses.{self.key}"
        action = response.get("action") if isinstance(response, dict) else None
        if action == ACCEPT:
            content = response.get("content")
            if content is None:
                content = {}
            if not isinstance(content, dict):
                raise InvalidResponse(f"{path}.content: must be an object")
            return self.form.accepted(content, f"{path}.content")
        if action == DECLINE:
            return self.form.declined()
        if action == CANCEL:
            raise Declined
        raise InvalidResponse(f"{path}.action: must be {ACCEPT}, {DECLINE} or {CANCEL}")


def open_questions(interrupts: Mapping[str, Any] | None, uses: Mapping[str, int]) -> list[Question]:
    """Return the open interrupts of a thread. `uses`: how often each name was answered in this call."""
    counted = dict(uses)
    keys: set[str] = set()
    questions: dict[str, Question] = {}
    for item in records.interrupt_list(interrupts):
        id, value = item.get("id"), item.get("value")
        if not isinstance(id, str) or id in questions:
            continue
        name = _name(value) or id
        key = ""
        while not key or key in keys:  # another question may be named like a second use
            counted[name] = counted.get(name, 0) + 1
            key = name if counted[name] == 1 else f"{name}.{counted[name]}"
        keys.add(key)
        questions[id] = Question(key, name, id, value, _form(item))
    return list(questions.values())


def requests(questions: Iterable[Question]) -> dict[str, Any]:
    """Return `inputRequests` for these questions."""
    return {question.key: question.request() for question in questions}


def uses_after(questions: Iterable[Question], uses: Mapping[str, int]) -> dict[str, int]:
    """Return how often each name was answered, once these questions are answered too."""
    counted = dict(uses)
    for question in questions:
        counted[question.name] = counted.get(question.name, 0) + 1
    return counted


@dataclass(frozen=True)
class Answers:
    """Responses to open questions. `resume` maps interrupts to values. Questions without a response are `missing`."""

    responses: dict[str, Any]
    resume: dict[str, Any]
    missing: list[Question]


def answers_to(questions: Sequence[Question], *responses: Responses) -> Answers:
    """Return the valid responses to these questions. The last response to a question counts; unknown keys are ignored.

    Raises InvalidResponse, and Declined if a question was declined that cannot be answered with that.
    """
    merged = {key: response for sent in responses for key, response in sent.items()}
    answered = [question for question in questions if question.key in merged]
    return Answers(
        responses={question.key: merged[question.key] for question in answered},
        resume={question.interrupt_id: question.resume_value(merged[question.key]) for question in answered},
        missing=[question for question in questions if question.key not in merged],
    )


def _name(value: Any) -> str | None:
    """Return the key that an interrupt's value proposes for its question."""
    key = value.get("key") if isinstance(value, dict) else None
    return key if isinstance(key, str) and key else None


def _message(value: Any) -> str:
    """Return the text that a person reads."""
    return (_text(value) or dumps(value))[:MAX_MESSAGE]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return ""
    for name in ("message", "question", "description"):
        if isinstance(value.get(name), str) and value[name]:
            return value[name]
    actions = [value.get("action_request"), *_actions(value)]
    return "\n\n".join(_action_text(action) for action in actions if isinstance(action, dict))


def _action_text(action: Mapping[str, Any]) -> str:
    if isinstance(action.get("description"), str) and action["description"]:
        return action["description"]
    name = action.get("name") or action.get("action")
    arguments = action.get("args")
    return f"{name} {dumps(arguments)}" if arguments else str(name)


# Forms


class Form(ABC):
    """The form of a question: what the client asks for, and what the graph gets."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Return the `requestedSchema`."""

    @abstractmethod
    def accepted(self, content: dict[str, Any], path: str) -> Any:
        """Return the value that resumes the graph. Raises InvalidResponse, which names the field below `path`."""

    def declined(self) -> Any:
        """Return the value that resumes the graph after a refusal. Raises Declined if there is none."""
        raise Declined


@dataclass(frozen=True)
class ObjectForm(Form):
    """The graph's own `response_schema`. The content resumes the graph as it is."""

    properties: dict[str, Any]
    required: list[str]

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": self.properties, "required": self.required}

    def accepted(self, content: dict[str, Any], path: str) -> Any:
        return _checked(content, self.properties, self.required, path)


@dataclass(frozen=True)
class TextForm(Form):
    """One text. It resumes the graph as it is, or parsed if the graph's own value was no text."""

    parses: bool

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": {"answer": TEXT}, "required": ["answer"]}

    def accepted(self, content: dict[str, Any], path: str) -> Any:
        answer = _checked(content, {"answer": TEXT}, ["answer"], path)["answer"]
        return _json_or_text(answer) if self.parses else answer


APPROVE, EDIT, REJECT = "approve", "edit", "reject"


@dataclass(frozen=True)
class ReviewForm(Form):
    """A review of tool calls, as LangChain's human-in-the-loop middleware asks for it. Each call gets a decision."""

    actions: list[dict[str, Any]]
    decisions: list[list[str]]  # those allowed for each action

    def schema(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        for at, allowed in enumerate(self.decisions):
            properties[_numbered("decision", at)] = {**TEXT, "enum": allowed}
            properties[_numbered("message", at)] = {
                **TEXT,
                "description": "Sent to the agent with a decision",
            }
            if EDIT in allowed:
                described = {**TEXT, "description": "The arguments of the edited call, as a JSON object"}
                properties[_numbered("edited_args", at)] = described
        required = [_numbered("decision", at) for at in range(len(self.actions))]
        return {"type": "object", "properties": properties, "required": required}

    def accepted(self, content: dict[str, Any], path: str) -> Any:
        schema = self.schema()
        values = _checked(content, schema["properties"], schema["required"], path)
        decisions = [self._decision(values, at, path) for at in range(len(self.actions))]
        return {"decisions": decisions}

    def declined(self) -> Any:
        if not all(REJECT in allowed for allowed in self.decisions):
            raise Declined
        return {"decisions": [{"type": REJECT} for _ in self.actions]}

    def _decision(self, values: Mapping[str, Any], at: int, path: str) -> dict[str, Any]:
        decision = {"type": values[_numbered("decision", at)]}
        message = values.get(_numbered("message", at))
        if decision["type"] == EDIT:
            return {**decision, "edited_action": self._edited(values, at, path)}
        if message and decision["type"] != APPROVE:
            return {**decision, "message": message}
        return decision

    def _edited(self, values: Mapping[str, Any], at: int, path: str) -> dict[str, Any]:
        action, name = self.actions[at], _numbered("edited_args", at)
        arguments = action.get("args") or {}
        if values.get(name):
            arguments = _json_or_text(values[name])
        if not isinstance(arguments, dict):
            raise InvalidResponse(f"{path}.{name}: must be the JSON text of an object")
        return {"name": action.get("name"), "args": arguments}


def _form(item: Mapping[str, Any]) -> Form:
    value = item.get("value")
    schema = item.get("response_schema")
    if schema is None and isinstance(value, dict):
        schema = value.get("response_schema")
    if (form := _object_form(schema)) is not None:
        return form
    if actions := _actions(value):
        return ReviewForm(actions, _allowed_decisions(value, actions))
    return TextForm(parses=not isinstance(value, str))


def _object_form(schema: Any) -> ObjectForm | None:
    """Return the form of a flat schema, or None for any other schema."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or schema.get("type", "object") != "object":
        return None
    if not all(isinstance(one, dict) and one.get("type") in tuple(TYPES) for one in properties.values()):
        return None
    required = schema.get("required")
    names = [name for name in properties if name in required] if isinstance(required, list) else []
    return ObjectForm({name: _property(one) for name, one in properties.items()}, names)


def _property(schema: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: schema[name] for name in MEMBERS if name in schema}
    if kept.get("format") not in FORMATS:
        kept.pop("format", None)
    return kept


def _actions(value: Any) -> list[dict[str, Any]]:
    actions = value.get("action_requests") if isinstance(value, dict) else None
    if not isinstance(actions, list) or not all(isinstance(action, dict) for action in actions):
        return []
    return actions


def _allowed_decisions(value: Any, actions: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    configs = value.get("review_configs")
    by_name: dict[str, list[str]] = {}
    for config in configs if isinstance(configs, list) else ():
        allowed = config.get("allowed_decisions") if isinstance(config, dict) else None
        if isinstance(allowed, list) and allowed:
            by_name[dumps(config.get("action_name"))] = [str(one) for one in allowed]
    return [by_name.get(dumps(action.get("name")), [APPROVE, EDIT, REJECT]) for action in actions]


def _numbered(name: str, at: int) -> str:
    return name if at == 0 else f"{name}_{at + 1}"


def _checked(
    content: Mapping[str, Any], properties: Mapping[str, Any], required: Sequence[str], path: str
) -> dict[str, Any]:
    """Return the content's known members. Raises InvalidResponse."""
    for name in required:
        if content.get(name) is None:
            raise InvalidResponse(f"{path}.{name}: this field is required")
    known = {name: value for name, value in content.items() if name in properties and value is not None}
    for name, value in known.items():
        schema = properties[name]
        if not has_type(value, [schema["type"]]):
            raise InvalidResponse(f"{path}.{name}: must be {TYPES[schema['type']]}")
        if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
            raise InvalidResponse(f"{path}.{name}: must be one of {', '.join(map(str, schema['enum']))}")
    return known


def _json_or_text(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
