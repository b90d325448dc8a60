"""The body of every call that creates a run → RunRequest."""

from __future__ import annotations

from typing import Any

from flask import request
from marshmallow import ValidationError

from shared.errors import Invalid
from shared.runs import RunRequest
from web.deployment_api.assistants import (
    CONFIG_BYTES,
    METADATA_BYTES,
    ConfigField,
    refuse_two_configurations,
)
from web.deployment_api.pages import refuse
from web.validation import (
    AnyJson,
    Field,
    ItemOrList,
    JsonObject,
    ListOf,
    Nested,
    OneOf,
    Rule,
    Schema,
    StrictBoolean,
    StrictNumber,
    StrictString,
    load,
)

STREAM_MODES = (
    "values", "messages", "messages-tuple", "tasks", "checkpoints", "updates", "events", "debug", "custom",
    "tools", "lifecycle",
)  # fmt: skip


class NodeNames(Field):
    """`"*"` or an array of node names."""

    type_rule = Rule('must be "*" or an array of node names', "value_error")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if value == "*" or (isinstance(value, list) and all(isinstance(name, str) for name in value)):
            return value
        raise ValidationError([self.type_rule])


class Update(Field):
    """A state update: an object, or an array of pairs of channel and value."""

    type_rule = Rule("must be an object or an array of pairs of name and value", "value_error")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if isinstance(value, dict) or (isinstance(value, list) and all(map(_is_pair, value))):
            return value
        raise ValidationError([self.type_rule])


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


class Goto(Field):
    """A node name, an object with `node` and `input`, or an array of these."""

    type_rule = Rule("must be a node name, an object with a node, or an array of these", "value_error")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if all(map(_is_target, value if isinstance(value, list) else [value])):
            return value
        raise ValidationError([self.type_rule])


def _is_target(value: Any) -> bool:
    return isinstance(value.get("node") if isinstance(value, dict) else value, str)


class Command(Schema):
    resume = AnyJson()
    update = Update(allow_none=True)
    goto = Goto(allow_none=True)


class RunCreate(Schema):
    assistant_id = StrictString(required=True, min_length=1)
    input = AnyJson()
    command = Nested(Command, allow_none=True)
    metadata = JsonObject(max_bytes=METADATA_BYTES, searchable=True)
    config = ConfigField(max_bytes=CONFIG_BYTES)
    context = JsonObject(max_bytes=CONFIG_BYTES)
    interrupt_before = NodeNames(allow_none=True)
    interrupt_after = NodeNames(allow_none=True)
    stream_mode = ItemOrList(OneOf(*STREAM_MODES), allow_none=True)
    stream_subgraphs = StrictBoolean()
    stream_resumable = StrictBoolean()
    multitask_strategy = OneOf("reject", "rollback", "interrupt", "enqueue", allow_none=True)
    if_not_exists = OneOf("create", "reject", allow_none=True)
    on_completion = OneOf("delete", "keep", allow_none=True)
    on_disconnect = OneOf("cancel", "continue", allow_none=True)
    durability = OneOf("sync", "async", "exit", allow_none=True)
    checkpoint_during = StrictBoolean(allow_none=True)
    langsmith_tracer = JsonObject(allow_none=True)  # names a vendor's project: means nothing here
    # checked, then refused where they ask for something, while they are not served
    webhook = StrictString(min_length=1, max_length=65_536, allow_none=True)
    after_seconds = StrictNumber(allow_none=True)
    checkpoint = JsonObject(allow_none=True)
    checkpoint_id = StrictString(allow_none=True)
    feedback_keys = ListOf(StrictString(), allow_none=True)
    strict_resume = StrictBoolean(allow_none=True)


NOT_SERVED = ("webhook", "checkpoint", "checkpoint_id", "feedback_keys", "strict_resume")


def run_request() -> tuple[RunRequest, str]:
    """The body as the rules want it, and what a disconnect does."""
    body = load(RunCreate)
    if (body.pop("after_seconds", None) or 0) > 0:
        raise Invalid("after_seconds: not supported by this server", loc=("body", "after_seconds"))
    refuse(body, *NOT_SERVED)
    refuse_two_configurations(body)
    _refuse_places(body)
    sent = {name: value for name, value in body.items() if value is not None}
    during = sent.pop("checkpoint_during", None)
    if during is not None:
        sent.setdefault("durability", "async" if during else "exit")
    sent["command"] = _command(sent.pop("command", None))
    sent["stream_mode"] = sent.get("stream_mode") or ["values"]
    sent.pop("langsmith_tracer", None)
    on_disconnect = sent.pop("on_disconnect", "continue")
    return RunRequest(**sent), on_disconnect


def _refuse_places(body: dict[str, Any]) -> None:
    """Neither a checkpoint to start from nor namespaces to stream are served."""
    if body.get("config", {}).get("configurable", {}).get("checkpoint_id") is not None:
        raise Invalid(
            "config.configurable.checkpoint_id: not supported by this server",
            loc=("body", "config", "configurable", "checkpoint_id"),
        )
    refuse_namespaces()


def refuse_namespaces() -> None:
    if "namespace" in request.args:
        raise Invalid("namespace: not supported by this server", loc=("query", "namespace"))


def _command(command: dict[str, Any] | None) -> dict[str, Any] | None:
    """The parts of a command that say something; None when none does, which acts like no command."""
    return {name: value for name, value in (command or {}).items() if value is not None} or None
