"""What is left to say of a run's event log that was lost: how the run ended, from its row."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from redis.exceptions import RedisError

from shared import bus, events, runs, stops
from shared.database import connection, dumps
from shared.errors import NotFound, Unavailable
from shared.events import END, EXPIRED, Event
from shared.models import RunStatus

FAILED = (RunStatus.ERROR, RunStatus.TIMEOUT)
END_OF_LOG = Event(0, 0, END, b"{}")


def extent(run_id: UUID) -> tuple[int, bool]:
    """The number of the log's newest event (0: it holds nothing), and whether nothing will be added."""
    try:
        newest, end = bus.client().hmget(events.meta_key(run_id), "seq", "end")  # type: ignore[misc]
    except RedisError:
        return 0, False
    return int(newest or 0), end is not None


def end_of_lost(deployment_id: UUID, run_id: UUID) -> Sequence[Event] | None:
    """The end of a log that was lost, made from the row; None while the run lives."""
    try:
        with connection() as conn:
            row = runs.get(conn, deployment_id, run_id)
    except NotFound:
        return [END_OF_LOG]
    except Unavailable:
        return None
    if row["status"] in stops.LIVE:
        return None
    lost = [EXPIRED] if row["attempt"] and not extent(run_id)[1] else []  # who writes no end may lack more
    if row["status"] in FAILED and row["error"]:
        return [*lost, Event(0, 0, "error", dumps(row["error"]).encode()), END_OF_LOG]
    return [*lost, END_OF_LOG]
