"""A thread's events by the protocol, as server-sent events, from the client's position until it disconnects."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from uuid import UUID

from flask import Response

from shared import thread_stream
from shared.eventlog.hub import hub
from shared.protocol.events import Failure, Item, Note, ProtocolEvent
from shared.protocol.stream import ProtocolStream
from web.deployment_api.protocols.protocol.subscription import Subscribed, Subscription, encoded, failed
from web.gate.authorization import allow
from web.gate.context import caller, deployment, settings
from web.http import sse
from web.schemas.operations import RouteGroup
from web.schemas.validation import SchemaViolation, load

bp = RouteGroup(
    "protocol_events",
    section="Protocol v2",
    switches=("disable_threads", "disable_runs"),
)

MAKES_THREADS = "run"  # the role that a key needs to wait for a thread that does not exist yet


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
    subscription = Subscription.of(_asked())
    asked = allow("threads", "read", thread_id=thread_id)
    stream = ProtocolStream(
        deployment().id,
        thread_id,
        since=subscription.since,
        waits=subscription.waits,
        awaits=caller().may(MAKES_THREADS),
        filter=asked.filter,
    )
    heartbeat = sse.HeartbeatTimer(settings().heartbeat_seconds)
    with ExitStack() as stack:
        wake_ups = stack.enter_context(hub().reader(thread_id, at=thread_stream.channel(thread_id)))
        stream.open()
        body = _body(stream.batches(wake_ups, heartbeat.quiet_seconds), subscription, heartbeat)
        stack.callback(body.close)
        return sse.event_stream(sse.Stream(body, holds=stack.pop_all(), on_disconnect=None), {})


def _asked() -> dict[str, object]:
    """Return the validated body. Raises SchemaViolation, with status 400 instead of 422 for invalid channels."""
    try:
        return load(Subscribed)
    except SchemaViolation as error:
        if any(violation.loc[1:2] == ("channels",) for violation in error.violations):
            error.status = 400
        raise


def _body(
    batches: Iterator[list[Item]], subscription: Subscription, heartbeat: sse.HeartbeatTimer
) -> Generator[bytes]:
    heartbeat.send_headers_first()
    for batch in batches:
        out = [_frame(item, subscription) for item in batch]
        if heartbeat.take_due():
            out.append(sse.HEARTBEAT)
        frames = b"".join(out)
        if heartbeat.take_headers() or frames:
            yield frames


def _frame(item: Item, subscription: Subscription) -> bytes:
    if isinstance(item, Note):
        return sse.comment(item.text)
    if isinstance(item, Failure):
        return sse.encode_parts("error", failed(item), b"")
    if not subscription.wants(item):
        return b""
    return item.form("sse", _sse)


def _sse(event: ProtocolEvent) -> bytes:
    return sse.encode_parts(event.method, encoded(event), b"%d" % event.seq)
