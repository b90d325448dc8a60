"""Events of revisions: publishing their transitions, replaying ended ones, and waiting for changes.

Events are `status` {"status", "message"}, `log` {"timestamp", "level", "message"} and at last `end` {"status"}, in the
revision's event log. Hundreds of callers may wait for a build: each look is one statement, and no connection is held
between looks. The events wake up waiting callers through the one subscriber connection of the process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from uuid import UUID

import orjson
from redis.exceptions import RedisError

from shared.deployments import deployments, revisions
from shared.deployments.logs import BUILD, Line, lines
from shared.deployments.records import REVISION
from shared.deployments.revisions import CLAIMABLE, Transition
from shared.eventlog import events
from shared.eventlog.events import Batch, Event
from shared.eventlog.hub import Stopping, hub
from shared.infra import broker
from shared.infra.postgres import Row, connection, driver
from shared.sql import statement

log = logging.getLogger(__name__)

RETENTION_SECONDS = 900
REPLAYED_AT_ONCE = 1_000
CONTROL = "control-plane"  # owner of events for revisions without a builder
LOOK_SECONDS = 5.0  # without an event: a message may be lost, and Redis may be unreachable
CONFIRM_SECONDS = 1.0

_OF_ORGANIZATION = statement("revisions.of_organization", columns=REVISION.select)


def status_payload(status: str, message: str | None) -> bytes:
    return events.payload("status", orjson.dumps({"status": status, "message": message}))


def log_payload(line: Line) -> bytes:
    return _log_payload(line.at, line.level, line.message)


def _log_payload(at: datetime, level: str, message: str) -> bytes:
    return events.payload("log", orjson.dumps({"timestamp": at, "level": level, "message": message}))


def end_payload(status: str) -> bytes:
    return events.payload(events.END, orjson.dumps({"status": status}))


def announce(moved: Sequence[Transition]) -> None:
    """Publish the transitions of a committed transaction to followers, and notify builders.

    If Redis is unreachable, this only logs a warning: the rows hold the same status, and upkeep notifies again.
    """
    batches = []
    for move in moved:
        payloads = [status_payload(move.status, move.message)]
        if move.is_end:
            payloads.append(end_payload(move.status))
        batches.append(
            Batch(
                move.revision_id,
                move.attempt,
                CONTROL,
                move.seq,
                payloads,
                floor=move.seq - 1,
                final=move.is_end,
            )
        )
    try:
        events.append_all(batches, retention_seconds=RETENTION_SECONDS)
    except RedisError as error:
        log.warning("could not announce the status of %d revisions: %s", len(moved), error)
    for move in moved:
        if move.status in CLAIMABLE:
            broker.enqueue_build(move.revision_id)


def replay(deployment_id: UUID, revision_id: UUID) -> Iterator[list[Event]]:
    """Yield the events of an ended revision from its rows: its build log, then its final status."""
    cursor: str | None = None
    while True:
        with connection() as conn:
            rows, following = lines(
                conn,
                deployment_id,
                BUILD,
                revision_id=revision_id,
                order="asc",
                limit=REPLAYED_AT_ONCE,
                offset=cursor,
            )
        if not rows:
            break
        yield [_event(_log_payload(row["at"], row["level"], row["message"])) for row in rows]
        cursor = following
    yield last_events(revision_id) or []


def last_events(revision_id: UUID) -> list[Event] | None:
    """Return the last events of a revision from its row, for a lost event log. None while it has not ended."""
    with connection() as conn:
        ended = deployments.ended(conn, revision_id)
    if ended is None:
        return None
    status, message = ended
    return [_event(status_payload(status, message)), _event(end_payload(status))]


def _event(payload: bytes) -> Event:
    """Build an event without a position in a log, so that no reader can continue after it."""
    name, _, data = payload.partition(b"\n")
    return Event(0, 0, name.decode(), data)


def look(organization_id: UUID, deployment_id: UUID, revision_id: UUID) -> Row:
    """Return a revision of one of the organization's deployments. Raises NotFound."""
    with driver() as conn:
        row = _OF_ORGANIZATION.row(
            conn, organization_id=organization_id, deployment_id=deployment_id, revision_id=revision_id
        )
    if row is None:
        raise deployments.missing(deployment_id)
    if row["id"] is None:
        raise revisions.missing(revision_id)
    return row


def changes(id: UUID, *, seconds: float, at: bytes | None = None) -> Iterator[None]:
    """Yield whenever the caller should read the row again. The first time is when the subscription is confirmed.

    `at` is the channel of the events, by default the channel of `id`. Ends after `seconds`, or at once when the process
    shuts down.
    """
    ends_at = time.monotonic() + seconds
    with hub().reader(id, at=at) as reader:
        reader.wait_confirmed(min(seconds, CONFIRM_SECONDS))
        now = time.monotonic()
        look_at = now + LOOK_SECONDS
        while now < ends_at:
            try:
                events, is_stale = reader.take(min(ends_at, look_at) - now)
            except Stopping:
                return
            now = time.monotonic()
            if is_stale or now >= min(ends_at, look_at) or any(event.name != "log" for event in events):
                look_at = now + LOOK_SECONDS
                yield
