"""A thread's stream: the events of its runs, one after the other, until the client disconnects."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from uuid import UUID

from flask import Response, request

from shared import thread_stream
from shared.eventlog.events import EXPIRED
from shared.eventlog.hub import hub
from shared.infra.postgres import connection
from shared.thread_stream import MODES, RUN_MODES, StreamPosition, ThreadEvent, ThreadStream
from shared.user_code import filters
from web.deployment_api.runs import stream_filter
from web.gate.authorization import allow
from web.gate.context import deployment, settings
from web.http import sse
from web.schemas.fields import OneOf, QueryList, Schema
from web.schemas.operations import RouteGroup
from web.schemas.validation import load_query

bp = RouteGroup("thread_stream", section="Threads", switches=("disable_threads",))


class ThreadStreamQuery(Schema):
    stream_mode = QueryList(OneOf(*MODES))


@bp.operation(
    "GET /threads/<thread_id>/stream",
    "Stream all runs of a thread, one after the other",
    role="read",
    long=True,
    query=ThreadStreamQuery,
    sse=True,
    errors=(404,),
)
def follow_thread(thread_id: UUID) -> Response:
    """Stream until the client disconnects. The mode `run_modes` sends the events and the end of each run, `lifecycle`
    only the beginning and the end, and `state_update` the thread's state after each change."""
    asked = allow("threads", "read", thread_id=thread_id)
    if asked.filter:
        with connection() as conn:
            filters.require_thread(conn, deployment().id, thread_id, asked.filter)
    stream = ThreadStream(
        deployment().id,
        thread_id,
        modes=load_query(ThreadStreamQuery).get("stream_mode") or (RUN_MODES,),
        position=StreamPosition.parse(request.headers.get("Last-Event-ID")),
        filter_of=lambda kwargs: stream_filter.of_creator(kwargs, None),
        retention_seconds=settings().event_retention_seconds,
    )
    heartbeat = sse.HeartbeatTimer(settings().heartbeat_seconds)
    with ExitStack() as stack:
        wake_ups = stack.enter_context(hub().reader(thread_id, at=thread_stream.channel(thread_id)))
        stream.open()
        body = _body(stream.batches(wake_ups, heartbeat.quiet_seconds), heartbeat)
        stack.callback(body.close)
        return sse.event_stream(sse.Stream(body, holds=stack.pop_all(), on_disconnect=None), {})


def _body(batches: Iterator[list[ThreadEvent]], heartbeat: sse.HeartbeatTimer) -> Generator[bytes]:
    heartbeat.send_headers_first()
    for batch in batches:
        out = [_encoded(event) for event in batch]
        if heartbeat.take_due():
            out.append(sse.HEARTBEAT)
        if heartbeat.take_headers() or out:
            yield b"".join(out)


def _encoded(event: ThreadEvent) -> bytes:
    if event.name == EXPIRED.name:
        return sse.HISTORY_EXPIRED
    return sse.encode_parts(event.name, event.data, event.id.encode())
