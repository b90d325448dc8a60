"""The body of a run, `RunAgentInput`, and the query of a join. A null is the same as a missing field."""

from __future__ import annotations

from typing import Any, ClassVar

from marshmallow import ValidationError
from marshmallow import fields as base

from shared.records import OBJECT
from shared.runs.read import STRATEGIES
from web.deployment_api.assistants import CONFIG_BYTES, ConfigField
from web.schemas import fields
from web.schemas.validation import MAX_ITEMS

MAX_ID = 256
MAX_NAME = 1024


class OneOfSchemas(base.Field):
    """An object whose schema depends on one of its fields."""

    json_schema: ClassVar[dict[str, Any]] = OBJECT

    def __init__(self, key: str, schemas: dict[str, type[fields.Schema]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._key = key
        self._schemas = {name: schema() for name, schema in schemas.items()}
        names = ", ".join(map(repr, schemas))
        self._unknown = fields.Rule(f"must be one of {names}", "literal_error")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not isinstance(value, dict):
            raise ValidationError([fields.Rule("must be an object", "dict_type")])
        name = value.get(self._key)
        if not isinstance(name, str) or name not in self._schemas:
            raise ValidationError({self._key: [self._unknown]})
        return self._schemas[name].load(value)


class Source(fields.Schema):
    type = fields.OneOf("data", "url", "file", required=True)
    value = fields.StrictString(required=True, min_length=1)
    mimeType = fields.StrictString(max_length=MAX_NAME, allow_none=True)


class TextPart(fields.Schema):
    type = fields.OneOf("text", required=True)
    text = fields.StrictString(required=True)


class MediaPart(fields.Schema):
    type = fields.StrictString(required=True)
    source = fields.Nested(Source, required=True)


class BinaryPart(fields.Schema):
    """A file as clients before 1.0 send it."""

    type = fields.OneOf("binary", required=True)
    mimeType = fields.StrictString(required=True, max_length=MAX_NAME)
    id = fields.StrictString(allow_none=True)
    url = fields.StrictString(allow_none=True)
    data = fields.StrictString(allow_none=True)
    filename = fields.StrictString(max_length=MAX_NAME, allow_none=True)


PARTS: dict[str, type[fields.Schema]] = {
    "text": TextPart,
    **dict.fromkeys(("image", "audio", "video", "document"), MediaPart),
    "binary": BinaryPart,
}


class Content(fields.Field):
    """A text, or an array of parts."""

    type_rule = fields.Rule("must be a string or an array of parts", "value_error")
    json_schema: ClassVar[dict[str, Any]] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": OBJECT}]
    }
    text = fields.StrictString()
    parts = fields.ListOf(OneOfSchemas("type", PARTS))

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not isinstance(value, str | list):
            raise ValidationError([self.type_rule])
        return (self.text if isinstance(value, str) else self.parts).deserialize(value)


class Message(fields.Schema):
    id = fields.StrictString(required=True, min_length=1, max_length=MAX_NAME)
    role = fields.StrictString(required=True)
    name = fields.StrictString(max_length=MAX_NAME, allow_none=True)


class TextMessage(Message):
    content = fields.StrictString(required=True)


class UserMessage(Message):
    content = Content(required=True)


class Function(fields.Schema):
    name = fields.StrictString(required=True, min_length=1, max_length=MAX_NAME)
    arguments = fields.StrictString(required=True)


class SentCall(fields.Schema):
    id = fields.StrictString(required=True, min_length=1, max_length=MAX_NAME)
    function = fields.Nested(Function, required=True)


class AssistantMessage(Message):
    content = fields.StrictString(allow_none=True)
    toolCalls = fields.ListOf(fields.Nested(SentCall), allow_none=True)


class ToolMessage(Message):
    content = Content(required=True)
    toolCallId = fields.StrictString(required=True, min_length=1, max_length=MAX_NAME)
    error = fields.StrictString(allow_none=True)


MESSAGES: dict[str, type[fields.Schema]] = {
    "developer": TextMessage,
    "system": TextMessage,
    "assistant": AssistantMessage,
    "user": UserMessage,
    "tool": ToolMessage,
    "activity": Message,
    "reasoning": Message,
}


class Tool(fields.Schema):
    name = fields.StrictString(required=True, min_length=1, max_length=MAX_NAME)
    description = fields.StrictString(load_default="", allow_none=True)
    parameters = fields.AnyJson()


class ContextItem(fields.Schema):
    description = fields.StrictString(required=True)
    value = fields.StrictString(required=True)


class Resume(fields.Schema):
    interruptId = fields.StrictString(required=True, min_length=1, max_length=MAX_NAME)
    status = fields.OneOf("resolved", "cancelled", required=True)
    payload = fields.AnyJson()


class Command(fields.Schema):
    resume = fields.AnyJson()


class ForwardedProps(fields.Schema):
    """The properties that configure the run. The others are passed on to the graph."""

    config = ConfigField(max_bytes=CONFIG_BYTES, allow_none=True)
    context = fields.JsonObject(max_bytes=CONFIG_BYTES, allow_none=True)
    on_disconnect = fields.OneOf("cancel", "continue", allow_none=True)
    multitask_strategy = fields.OneOf(*STRATEGIES, allow_none=True)
    command = fields.Nested(Command, allow_none=True)
    streamSubgraphs = fields.StrictBoolean(allow_none=True)


class RunAgentInput(fields.Schema):
    example: ClassVar[dict[str, Any]] = {
        "threadId": "support-1",
        "runId": "1",
        "protocolVersion": "1.0",
        "messages": [{"id": "1", "role": "user", "content": "Hello"}],
    }

    threadId = fields.StrictString(required=True, min_length=1, max_length=MAX_ID)
    runId = fields.StrictString(required=True, min_length=1, max_length=MAX_ID)
    protocolVersion = fields.StrictString(max_length=MAX_ID, allow_none=True)
    parentRunId = fields.StrictString(max_length=MAX_ID, allow_none=True)
    state = fields.AnyJson()
    messages = fields.ListOf(OneOfSchemas("role", MESSAGES), required=True, max_items=MAX_ITEMS)
    tools = fields.ListOf(fields.Nested(Tool), allow_none=True)
    context = fields.ListOf(fields.Nested(ContextItem), allow_none=True)
    forwardedProps = fields.JsonObject(max_bytes=CONFIG_BYTES, allow_none=True)
    resume = fields.ListOf(fields.Nested(Resume), allow_none=True)


class JoinQuery(fields.Schema):
    threadId = fields.StrictString(required=True, min_length=1, max_length=MAX_ID)
    protocolVersion = fields.StrictString(max_length=MAX_ID)
