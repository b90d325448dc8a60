"""Clients that follow a run as AG-UI events: the creator of the run, and clients that join later."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import chain, takewhile

from shared.errors import NotFound, Unavailable
from shared.eventlog.events import EXPIRED, Event
from shared.eventlog.hub import Stopping
from shared.infra.postgres import connection, dumps
from shared.models import RunStatus
from shared.runs import end_event, read
from shared.runs.end_event import FAILED, ROLLBACK
from shared.threads import records
from web.deployment_api.protocols.ag_ui import events
from web.deployment_api.protocols.ag_ui.events import End, RunEvents
from web.deployment_api.runs.follower import RunFollower
from web.http import sse
from web.http.connections import LastChunk

COMMENT = b": heartbeat\n\n"  # clients of AG-UI split a stream at line feeds alone


def encode(shown: Iterable[events.Event]) -> bytes:
    """Encode events as SSE bytes."""
    return b"".join(b"data: " + dumps(event).encode() + b"\n\n" for event in shown)


def follow(follower: RunFollower, run: RunEvents, batches: sse.Batches) -> Generator[bytes]:
    """Yield the bytes of the stream of a new run. The last event is terminal, also if this process shuts down."""
    yield encode(run.started())
    yield from _rest(follower, run, batches)


def join(follower: RunFollower, run: RunEvents, batches: sse.Batches, *, shown: int) -> Generator[bytes]:
    """Yield the bytes of the stream for a client that joins a live run. Events up to number `shown` are summed up first."""
    follower.heartbeat.send_headers_first()
    remaining = iter(batches)
    for batch in remaining:
        is_over = bool(batch) and batch[-1].is_last
        if is_over or not batch or batch[-1].seq >= shown:
            past = list(takewhile(lambda event: event.seq <= shown and not event.is_last, batch))
            _add(run, past)
            yield encode(run.joined())
            yield from _rest(follower, run, chain([batch[len(past) :]], remaining))
            return
        _add(run, batch)


def _rest(follower: RunFollower, run: RunEvents, batches: sse.Batches) -> Generator[bytes]:
    last: Event | None = None
    try:
        for batch in batches:
            chunk = encode(_add(run, batch))
            if batch and batch[-1].is_last:
                last = batch[-1]
            if follower.heartbeat.take_due():
                chunk += COMMENT
            if follower.heartbeat.take_headers() or chunk:
                yield chunk
    except Stopping:
        yield LastChunk(encode(run.stopped("stopping", "The service is shutting down. The run continues.")))
        return
    except sse.NoLongerAllowed:  # the chunk before was not sent
        yield LastChunk(encode(run.cut_off("unauthorized", "The key of this request is no longer valid")))
        return
    yield LastChunk(encode(_end(follower, run, last)))


def _add(run: RunEvents, batch: Iterable[Event]) -> list[events.Event]:
    shown: list[events.Event] = []
    for event in batch:
        if event is EXPIRED:
            shown += run.lost()
        elif not event.is_last:
            shown += run.add(event.name, event.data)
    return shown


def _end(follower: RunFollower, run: RunEvents, last: Event | None) -> list[events.Event]:
    """Return the last events of a run that has ended."""
    try:
        return run.finished(_from_log(last) or end_of_row(follower, last))
    except NotFound:
        return run.stopped("NotFound", "The run was deleted")
    except Unavailable as error:
        return run.stopped("Unavailable", error.message)


def _from_log(last: Event | None) -> End | None:
    """Return the end that the log's last event tells in full, else None."""
    values = None if last is None else end_event.state_of(last)
    return None if values is None else End(RunStatus.SUCCESS, values)


def end_of_row(follower: RunFollower, last: Event | None = None) -> End:
    """Return the end of a run from its row and its thread's. Raises NotFound, and Unavailable."""
    status = None if last is None else end_event.status_of(last)
    with connection() as conn:
        thread = records.get(conn, follower.deployment_id, follower.thread_id)
        if status == ROLLBACK:
            return End(ROLLBACK, thread["values"])
        row = read.get(conn, follower.deployment_id, follower.run_id)
    status, error = row["status"], row["error"] if row["status"] in FAILED else None
    waiting = records.interrupt_list(thread["interrupts"]) if status == RunStatus.SUCCESS else []
    return End(status, thread["values"], waiting, error)
