"""Events of a thread by protocol v2: a client's subscription, and its stream of server-sent events.

`shared/protocol/` determines which events a thread has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, ClassVar
from uuid import UUID

from flask import Response
from marshmallow import ValidationError

from shared import thread_stream
from shared.eventlog.hub import hub
from shared.infra.postgres import dumps
from shared.protocol.events import Failure, Item, Note, ProtocolEvent
from shared.protocol.stream import ProtocolStream
from web.deployment_api.protocols.v2_commands import COMMAND_ROLE
from web.gate.context import allow, caller, deployment, settings
from web.http import sse
from web.schemas import fields
from web.schemas.operations import RouteGroup
from web.schemas.validation import SchemaViolation, load

CHANNELS = (
    "values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom",
)  # fmt: skip
CUSTOM = "custom"
NAMED = f"{CUSTOM}:"
INPUT = "input"  # the channel of the methods `input.…`
WAITING = frozenset({"lifecycle", INPUT})  # channels with the starts, ends and interrupts of runs
SHOWN = 100  # characters of an unknown channel's name that the error repeats
# A stream keeps its subscription in memory while it is open, and searches it for each event in a new namespace.
MAX_BYTES = 64 * 1024
REMEMBERED = 256  # namespaces whose match is cached


class ChannelName(fields.StrictString):
    """A channel; `custom:<name>` is the channel of the custom events with that name."""

    json_schema: ClassVar[dict[str, Any]] = {
        "pattern": f"^(?:{'|'.join(CHANNELS)}|{NAMED}.+)$",
        "examples": list(CHANNELS),
    }

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        name = super()._deserialize(value, attr, data, **kwargs)
        if name not in CHANNELS and not (name.startswith(NAMED) and name != NAMED):
            raise ValidationError([fields.Rule(f"unknown channel '{name[:SHOWN]}'", "literal_error")])
        return name


class Subscribed(fields.Schema):
    """A client's selection of events."""

    example: ClassVar[dict[str, Any]] = {"channels": ["values", "messages", "lifecycle", "input"]}

    channels = fields.ListOf(ChannelName(), required=True, not_empty=True, max_bytes=MAX_BYTES)
    namespaces = fields.ListOf(fields.ListOf(fields.StrictString()), allow_none=True, max_bytes=MAX_BYTES)
    depth = fields.StrictInteger(minimum=0, allow_none=True)
    since = fields.StrictInteger(allow_none=True)


@lru_cache(256)
def _interned(channels: frozenset[str]) -> frozenset[str]:
    """Return one shared set for all subscriptions with these channels: most clients choose the same ones."""
    return channels


@dataclass(frozen=True, slots=True)
class Subscription:
    """One client's selection of a thread's events; `namespaces` empty or None means all."""

    channels: frozenset[str]
    namespaces: Sequence[Sequence[str]] | None = None
    depth: int | None = None
    since: int | None = None
    _known: dict[tuple[str, ...], bool] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, checked: Mapping[str, Any]) -> Subscription:
        """Create a subscription from the validated fields of `Subscribed`."""
        return cls(**{**checked, "channels": _interned(frozenset(checked["channels"]))})

    @property
    def waits(self) -> bool:
        """Whether the subscription covers only starts, ends and interrupts of runs."""
        return self.channels <= WAITING

    def matches(self, event: ProtocolEvent) -> bool:
        return self._has_channel(event) and self._has_namespace(event.namespace)

    def _has_channel(self, event: ProtocolEvent) -> bool:
        channel = event.method.partition(".")[0]
        if channel == CUSTOM and event.name and f"{NAMED}{event.name}" in self.channels:
            return True
        return channel in self.channels

    def _has_namespace(self, namespace: Sequence[str]) -> bool:
        if not self.namespaces:
            return True
        key = tuple(namespace)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = self._known[key] = self._is_in(key, self.namespaces)
        return known

    def _is_in(self, namespace: Sequence[str], chosen: Sequence[Sequence[str]]) -> bool:
        return any(
            _begins_with(namespace, prefix)
            and (self.depth is None or len(namespace) - len(prefix) <= self.depth)
            for prefix in chosen
        )


def _begins_with(namespace: Sequence[str], prefix: Sequence[str]) -> bool:
    """Return whether a namespace begins with a prefix, label by label.

    A label of the prefix without a task id matches every task of that node.
    """
    return len(prefix) <= len(namespace) and all(
        expected == label or (":" not in expected and expected == label.partition(":")[0])
        for expected, label in zip(prefix, namespace, strict=False)
    )


def encode_event(event: ProtocolEvent) -> bytes:
    """Return an event as one line of JSON, with its parameters as the graph host encoded them."""
    head = {"type": "event", "event_id": event.id, "seq": event.seq, "method": event.method}
    return dumps(head).encode()[:-1] + b',"params":' + event.params + b"}"


def encode_failure(failure: Failure) -> bytes:
    """Return the message that a client gets just before its stream is closed."""
    message = {"type": "error", "id": None, "error": failure.code, "message": failure.message}
    return dumps(message).encode()


bp = RouteGroup(
    "protocol_events",
    section="Protocol v2",
    switches=("disable_threads", "disable_runs"),
)


@bp.operation(
    "POST /threads/<thread_id>/stream/events",
    "Stream a thread's events in protocol v2",
    role="read",
    long=True,
    body=Subscribed,
    sse=True,
    errors=(400, 404),
)
def stream_events(thread_id: UUID) -> Response:
    """Stream the events of all runs of the thread, one after the other, until the client disconnects.

    A thread that does not exist yet is waited for, if the key has the role `run`.
    """
    subscription = Subscription.of(_load_subscription())
    granted = allow("threads", "read", thread_id=thread_id)
    stream = ProtocolStream(
        deployment().id,
        thread_id,
        since=subscription.since,
        ends_only=subscription.waits,
        awaits_creation=caller().may(COMMAND_ROLE),
        filter=granted.filter,
    )
    heartbeat = sse.HeartbeatTimer(settings().heartbeat_seconds)
    with ExitStack() as stack:
        wake_ups = stack.enter_context(hub().reader(thread_id, at=thread_stream.channel(thread_id)))
        stream.open()
        encode = partial(_encode_item, subscription=subscription)
        body = sse.chunks(stream.batches(wake_ups, heartbeat.quiet_seconds), heartbeat, encode)
        stack.callback(body.close)
        return sse.event_stream(sse.Stream(body, holds=stack.pop_all(), on_disconnect=None), {})


def _load_subscription() -> dict[str, object]:
    """Return the validated body. Raises SchemaViolation, with status 400 instead of 422 for invalid channels."""
    try:
        return load(Subscribed)
    except SchemaViolation as error:
        if any(violation.loc[1:2] == ("channels",) for violation in error.violations):
            error.status = 400
        raise


def _encode_item(item: Item, subscription: Subscription) -> bytes:
    """Encode an item of the stream as SSE bytes; empty for an event that the subscription does not select."""
    if isinstance(item, Note):
        return sse.comment(item.text)
    if isinstance(item, Failure):
        return sse.encode_parts("error", encode_failure(item), b"")
    if not subscription.matches(item):
        return b""
    return item.form("sse", _sse)


def _sse(event: ProtocolEvent) -> bytes:
    return sse.encode_parts(event.method, encode_event(event), b"%d" % event.seq)
