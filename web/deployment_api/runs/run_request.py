"""Validation of the bodies of all calls that create a run, into a RunRequest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from marshmallow import ValidationError

from shared.errors import Invalid
from shared.infra.postgres import connection
from shared.models import ThreadStatus
from shared.records import OBJECT
from shared.runs import webhooks
from shared.runs.configurable import CHECKPOINT_KEYS
from shared.runs.drafts import RunRequest
from shared.runs.feedback import MOST_RECORDS
from shared.runs.read import STRATEGIES
from web.deployment_api.assistants import CONFIG_BYTES, METADATA_BYTES, ConfigField, refuse_two_configurations
from web.deployment_api.runs import stream_filter
from web.gate.context import run_headers, settings, unchecked_deployment
from web.schemas import fields
from web.schemas.feedback import FeedbackKey
from web.schemas.openapi_examples import GRAPH, MESSAGES
from web.schemas.validation import load, load_many, load_query

STREAM_MODES = (
    "values", "messages", "messages-tuple", "tasks", "checkpoints", "updates", "events", "debug", "custom",
    "tools", "lifecycle",
)  # fmt: skip
MAX_AFTER_SECONDS = 315_576_000  # ten years
MAX_BATCH = 1_000
BAD_CHECKPOINT_ID = "Invalid checkpoint ID"


class NodeNames(fields.Field):
    """`"*"` or an array of node names."""

    type_rule = fields.Rule('must be "*" or an array of node names', "value_error")
    json_schema: ClassVar[dict[str, Any]] = {
        "anyOf": [{"type": "string", "enum": ["*"]}, {"type": "array", "items": {"type": "string"}}]
    }

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if value == "*" or (isinstance(value, list) and all(isinstance(name, str) for name in value)):
            return value
        raise ValidationError([self.type_rule])


class Update(fields.Field):
    """A state update: an object, or an array of pairs of channel and value."""

    type_rule = fields.Rule("must be an object or an array of pairs of name and value", "value_error")
    json_schema: ClassVar[dict[str, Any]] = {
        "anyOf": [
            OBJECT,
            {
                "type": "array",
                "items": {
                    "type": "array",
                    "prefixItems": [{"type": "string"}],
                    "items": {},
                    "minItems": 2,
                    "maxItems": 2,
                },
            },
        ]
    }

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if isinstance(value, dict) or (isinstance(value, list) and all(map(_is_pair, value))):
            return value
        raise ValidationError([self.type_rule])


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


_TARGETS: list[dict[str, Any]] = [
    {"type": "string"},
    {**OBJECT, "required": ["node"], "properties": {"node": {"type": "string"}}},
]


class Goto(fields.Field):
    """A node name, an object with `node` and `input`, or an array of these."""

    type_rule = fields.Rule("must be a node name, an object with a node, or an array of these", "value_error")
    json_schema: ClassVar[dict[str, Any]] = {
        "anyOf": [*_TARGETS, {"type": "array", "items": {"anyOf": _TARGETS}}]
    }

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if all(map(_is_target, value if isinstance(value, list) else [value])):
            return value
        raise ValidationError([self.type_rule])


def _is_target(value: Any) -> bool:
    return isinstance(value.get("node") if isinstance(value, dict) else value, str)


class CheckpointId(fields.StrictString):
    """A checkpoint's id: a UUID in its usual form."""

    type_rule = fields.Rule("must be a string", "string_type")
    json_schema: ClassVar[dict[str, Any]] = {"format": "uuid"}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        text = super()._deserialize(value, attr, data, **kwargs)
        if not text:
            return text
        try:
            return str(UUID(text))
        except ValueError as error:
            raise Invalid(
                BAD_CHECKPOINT_ID, loc=("body", attr or "checkpoint_id"), kind="uuid_parsing"
            ) from error


class CheckpointMap(fields.JsonObject):
    """Checkpoint ids by namespace."""

    type_rule = fields.Rule("must be an object of checkpoint ids", "value_error")
    json_schema: ClassVar[dict[str, Any]] = {"additionalProperties": {"type": "string"}}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        checkpoints = super()._deserialize(value, attr, data, **kwargs)
        if not all(isinstance(id, str) for id in checkpoints.values()):
            raise ValidationError([self.type_rule])
        return checkpoints


class CheckpointConfig(fields.Schema):
    """The name of a checkpoint; `checkpoint_ns` and `checkpoint_map` name one of a subgraph."""

    checkpoint_id = CheckpointId(allow_none=True)
    checkpoint_ns = fields.StrictString(allow_none=True)
    checkpoint_map = CheckpointMap(allow_none=True)
    thread_id = fields.UuidField(allow_none=True)


class Command(fields.Schema):
    resume = fields.AnyJson()
    update = Update(allow_none=True)
    goto = Goto(allow_none=True)


class Tracer(fields.Schema):
    """Target of the run's traces: a tracing project, and the dataset example that the run is an attempt at."""

    project_name = fields.StrictString(min_length=1, max_length=1_024, allow_none=True)
    example_id = fields.UuidField(allow_none=True)


class RunCreate(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"assistant_id": GRAPH, "input": MESSAGES}

    assistant_id = fields.StrictString(required=True, min_length=1)
    input = fields.AnyJson()
    command = fields.Nested(Command, allow_none=True)
    metadata = fields.JsonObject(max_bytes=METADATA_BYTES, searchable=True)
    config = ConfigField(max_bytes=CONFIG_BYTES)
    context = fields.JsonObject(max_bytes=CONFIG_BYTES)
    interrupt_before = NodeNames(allow_none=True)
    interrupt_after = NodeNames(allow_none=True)
    stream_mode = fields.ItemOrList(fields.OneOf(*STREAM_MODES), allow_none=True)
    stream_subgraphs = fields.StrictBoolean()
    stream_resumable = fields.StrictBoolean()
    multitask_strategy = fields.OneOf(*STRATEGIES, allow_none=True)
    if_not_exists = fields.OneOf("create", "reject", allow_none=True)
    on_completion = fields.OneOf("delete", "keep", allow_none=True)
    on_disconnect = fields.OneOf("cancel", "continue", allow_none=True)
    durability = fields.OneOf("sync", "async", "exit", allow_none=True)
    checkpoint_during = fields.StrictBoolean(allow_none=True)
    after_seconds = fields.StrictNumber(maximum=MAX_AFTER_SECONDS, allow_none=True)
    checkpoint = fields.Nested(CheckpointConfig, allow_none=True)
    checkpoint_id = CheckpointId(allow_none=True)
    feedback_keys = fields.ListOf(
        FeedbackKey(),
        max_items=MOST_RECORDS,
        allow_none=True,
        metadata={"description": "The end of the stream has a feedback URL for each key"},
    )
    strict_resume = fields.StrictBoolean(allow_none=True)
    if_thread_status = fields.ItemOrList(fields.OneOf(*ThreadStatus), allow_none=True)
    langsmith_tracer = fields.Nested(Tracer, allow_none=True)
    webhook = fields.StrictString(min_length=1, max_length=65_536, allow_none=True)


class Namespaces(fields.QueryList):
    """Namespaces of a graph's events, as a repeated key or a JSON array; the empty namespace is the root graph."""

    def _words(self, text: str) -> list[Any]:
        return super()._words(text) if text.startswith("[") else [text]


class CreateQuery(fields.Schema):
    """Query parameters of the calls that create a run and stream it."""

    namespace = Namespaces(fields.StrictString())


def requested_namespaces() -> list[str] | None:
    """Return the namespaces whose events a streaming call requests; None means all."""
    return load_query(CreateQuery).get("namespace")


def read_run_request(thread_id: UUID | None, namespaces: list[str] | None = None) -> tuple[RunRequest, str]:
    """Return the validated body as `(request, on_disconnect)`. A `thread_id` of None means a run without a thread."""
    request, on_disconnect = _request(load(RunCreate), thread_id)
    check_webhooks([request.webhook])
    if stream_filter.needs_subgraphs(namespaces):
        request = replace(request, stream_subgraphs=True)
    return request, on_disconnect


def read_run_requests() -> list[RunRequest]:
    """Return the validated bodies of several runs without a thread."""
    requests = [_request(body, None)[0] for body in load_many(RunCreate, max_items=MAX_BATCH)]
    check_webhooks(request.webhook for request in requests)
    return requests


def check_webhooks(sent: Iterable[str | None]) -> None:
    """Raise Invalid if a webhook URL may not be called.

    Checks each distinct URL once, since a check resolves the URL's host name.
    """
    urls = {url for url in sent if url is not None}
    if not urls:
        return
    if unchecked_deployment().http.get("disable_webhooks"):
        raise Invalid("webhook: webhooks are disabled for this deployment", loc=("body", "webhook"))
    with connection() as conn:
        rules = webhooks.rules_of(conn, unchecked_deployment().active_revision_id)
    deployment_url = partial(webhooks.deployment_url, settings().url, unchecked_deployment().address_name)
    for url in urls:
        webhooks.check(url, rules, url_of=deployment_url)


def of_command(params: dict[str, Any], thread_id: UUID, **fixed: Any) -> RunRequest:
    """Return the request for the validated parameters of a protocol command.

    `fixed` sets fields that the client cannot choose.
    """
    return replace(_request(params, thread_id)[0], **fixed)


def _request(body: dict[str, Any], thread_id: UUID | None) -> tuple[RunRequest, str]:
    checkpoint = _checkpoint(body, thread_id)
    refuse_two_configurations(body)
    sent = {name: value for name, value in body.items() if value is not None}
    during = sent.pop("checkpoint_during", None)
    if during is not None:
        sent.setdefault("durability", "async" if during else "exit")
    sent["command"] = _command(sent.pop("command", None))
    if sent.get("feedback_keys"):
        sent["on_completion"] = _completion_with_feedback(sent, thread_id)
    tracer = sent.pop("langsmith_tracer", {})
    sent["langsmith_tracer"] = {name: str(value) for name, value in tracer.items() if value is not None}
    sent["stream_mode"] = sent.get("stream_mode") or ["values"]
    on_disconnect = sent.pop("on_disconnect", "continue")
    request = RunRequest(**sent, thread_id=thread_id, checkpoint=checkpoint, extras=run_headers())
    return request, on_disconnect


def _completion_with_feedback(sent: dict[str, Any], thread_id: UUID | None) -> str:
    """Return `on_completion` of a run with feedback keys. Raises Invalid for a run that is deleted at its end."""
    completion: str = sent.get("on_completion", "keep")
    if thread_id is None and completion == "delete":
        raise Invalid(
            "feedback_keys: a run that is deleted at its end cannot have feedback: send on_completion=keep",
            loc=("body", "feedback_keys"),
        )
    return completion


def _checkpoint(body: dict[str, Any], thread_id: UUID | None) -> dict[str, Any]:
    """Remove the start checkpoint of the run from the body and return it, `{}` if there is none. Raises Invalid.

    If the body names several, `checkpoint` takes precedence, then `config.configurable`, then `checkpoint_id`.
    """
    config = body.get("config") or {}
    configurable = config.get("configurable") or {}
    id_alone = body.pop("checkpoint_id", None)
    configured = {name: configurable[name] for name in CHECKPOINT_KEYS if configurable.get(name) is not None}
    if configured:
        configured = _checked_checkpoint(configured, ("body", "config", "configurable"))
        kept = {name: value for name, value in configurable.items() if name not in CHECKPOINT_KEYS}
        body["config"] = {**config, "configurable": kept}
    named = checkpoint_named(body.pop("checkpoint", None), thread_id)
    return named or configured or ({"checkpoint_id": id_alone} if id_alone else {})


def checkpoint_named(sent: dict[str, Any] | None, thread_id: UUID | None) -> dict[str, Any]:
    """Return the keys of a body's `checkpoint` that are set. Raises Invalid if it belongs to another thread."""
    checkpoint = {name: value for name, value in (sent or {}).items() if name in CHECKPOINT_KEYS and value}
    if checkpoint and thread_id is not None and sent and sent.get("thread_id") not in (None, thread_id):
        raise Invalid(
            "checkpoint.thread_id: must be the id of this thread", loc=("body", "checkpoint", "thread_id")
        )
    return checkpoint


def _checked_checkpoint(checkpoint: dict[str, Any], loc: tuple[str, ...]) -> dict[str, Any]:
    try:
        checked: Any = CheckpointConfig().load(checkpoint)
    except ValidationError as error:
        name = next(iter(error.normalized_messages()))
        message = (
            BAD_CHECKPOINT_ID if name == "checkpoint_id" else f"{'.'.join(loc[1:])}.{name}: is malformed"
        )
        raise Invalid(message, loc=(*loc, name)) from error
    return {name: value for name, value in checked.items() if value}


def _command(command: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the fields of a command that are set, or None if none is: an empty command acts like no command."""
    return {name: value for name, value in (command or {}).items() if value is not None} or None
