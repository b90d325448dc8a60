"""The end of a run's event log: its last event, and what is left to say where one of the two is gone.

Where the log was lost, the row tells how the run ended. A temporary run's row goes when it ends; then its log
tells, for as long as it is kept, what a reader who comes late must know of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
from redis.exceptions import RedisError

from shared import fleet
from shared.errors import NotFound, Unavailable
from shared.eventlog import events
from shared.eventlog.events import END, EXPIRED, Event
from shared.eventlog.follow import HELD_SECONDS, SETTLE_SECONDS, RowEnd
from shared.infra import clock, redis
from shared.infra.postgres import Row, connection, dumps
from shared.models import LIVE_RUN_STATUSES, RunStatus
from shared.runs import read, unsent_events
from shared.runs.claims import Claimed

FAILED = (RunStatus.ERROR, RunStatus.TIMEOUT)
END_OF_LOG = Event(0, 0, END, b"{}")
ROLLBACK = "rollback"  # how a run ended that was taken away
# The error of a cancelled run, by action: its name, and its message where no reason was given.
CANCEL_ERRORS = {
    ROLLBACK: ("UserRollback", "rollback requested"),
    "interrupt": ("UserInterrupt", "interrupt requested"),
}
# The error that readers of a deleted run get.
NOT_FOUND = {"error": "HTTPException", "message": "404: Run not found"}
OUTPUT_OF_DELETED = dumps({"__error__": NOT_FOUND}).encode()
OUTPUT = b',"output":'  # the rest of a last event's JSON is the output, as the graph host made it
FOLLOWED_BY = (
    "stream_mode",
    "subgraphs",
    "resumable",
    *read.HIDDEN,
)  # of a run's kwargs, what its readers go by


def last_event(run: Claimed, status: str, output: bytes, *, interrupted: bool = False) -> bytes:
    """What a run's log ends with: how the run ended and, for whoever waits for it, its output in JSON.

    `interrupted`: it leaves its thread so, whatever its own status.
    """
    head: dict[str, Any] = {"run_id": str(run.run_id), "status": str(status)}
    if interrupted:
        head["interrupted"] = True
    if run.temporary:
        kwargs = {name: run.kwargs[name] for name in FOLLOWED_BY if name in run.kwargs}
        head["row"] = {
            "deployment_id": str(run.deployment_id),
            "thread_id": str(run.thread_id),
            "kwargs": kwargs,
        }
    return events.payload(END, dumps(head).encode()[:-1] + OUTPUT + output + b"}")


def last_event_of_stopped(run_id: UUID, action: str, *, is_deleted: bool) -> bytes:
    """What the log of a run ends with that no owner ends: it was pending, or is deleted."""
    status = ROLLBACK if action == ROLLBACK else RunStatus.INTERRUPTED
    output = OUTPUT_OF_DELETED if is_deleted else b"null"
    head = dumps({"run_id": str(run_id), "status": str(status)}).encode()
    return events.payload(END, head[:-1] + OUTPUT + output + b"}")


def with_error_of_deleted(batches: Iterable[list[Event]]) -> Iterator[list[Event]]:
    """A log's events; before the end of a run that is deleted comes the error for its readers."""
    for batch in batches:
        if batch and batch[-1].is_last and output_of(batch[-1]) == OUTPUT_OF_DELETED:
            batch = [*batch[:-1], Event(0, 0, "error", dumps(NOT_FOUND).encode()), batch[-1]]
        yield batch


def cancel_error(action: str, reason: str | None = None) -> dict[str, str]:
    """The error of a run that was cancelled by this action, `interrupt` or `rollback`."""
    name, message = CANCEL_ERRORS[action]
    return {"error": name, "message": reason or message}


def output_of(last: Event) -> bytes:
    """The output in a log's last event; empty where it has none."""
    return last.data.partition(OUTPUT)[2][:-1]


def head_of(last: Event) -> bytes:
    """What a log's last event says beside the output, as JSON."""
    head, is_with_output, _ = last.data.partition(OUTPUT)
    return head + b"}" if is_with_output else head


def status_of(last: Event) -> str | None:
    """How a run ended, by its log's last event; None where that was lost."""
    found: str | None = orjson.loads(head_of(last)).get("status")
    return found


def gone(deployment_id: UUID, run_id: UUID) -> dict[str, Any] | None:
    """The row of a temporary run that has ended, as far as readers need it; None when nothing is known of it.

    Raises Unavailable.
    """
    try:
        last = events.newest(redis.events(run_id), run_id)
    except RedisError as error:
        raise Unavailable("the event log cannot be read") from error
    if last is None or not last.is_last:
        return None
    end = orjson.loads(last.data)
    row = end.get("row")
    if row is None or row["deployment_id"] != str(deployment_id):
        return None
    return {
        "run_id": run_id,
        "thread_id": UUID(row["thread_id"]),
        "status": end["status"],
        "kwargs": row["kwargs"],
        "attempt": 1,
        "seq_reserved": last.seq,
    }


def extent(run_id: UUID) -> tuple[int, bool]:
    """The number of the log's newest event (0: it holds nothing), and whether nothing will be added."""
    try:
        newest, end = redis.events(run_id).hmget(events.meta_key(run_id), "seq", "end")  # type: ignore[misc]
    except RedisError:
        return 0, False
    return int(newest or 0), end is not None


def end_of_lost(deployment_id: UUID, run_id: UUID, last: int, *, end_alone: bool = False) -> RowEnd | None:
    """The end of a log that was lost, made from the row, for who has its events up to number `last`.

    None while the run lives. An owner notes in the row which number the end has: who has all before it lacks
    nothing, though the owner was killed before it had written the end. `end_alone`: nothing before it is wanted.
    """
    try:
        with connection() as conn:
            row = read.get(conn, deployment_id, run_id)
    except NotFound:
        return RowEnd([END_OF_LOG], is_held=_is_held_of_gone(run_id))
    except Unavailable:
        return None
    if row["status"] in LIVE_RUN_STATUSES:
        return None
    if 0 < row["seq_reserved"] - 1 <= last:
        return RowEnd([END_OF_LOG])
    is_held = not end_alone and _is_held(row)
    lost = [EXPIRED] if row["attempt"] and not extent(run_id)[1] else []  # who writes no end may lack more
    if row["status"] in FAILED and row["error"]:
        lost.append(Event(0, 0, "error", dumps(row["error"]).encode()))
    return RowEnd([*lost, END_OF_LOG], is_held=is_held, is_settled=not is_held and _is_settled(row))


def _is_settled(row: Row) -> bool:
    """Whether a run ended so long ago that what nobody holds has reached its log."""
    if row["ended_at"] is None:
        return False
    try:
        return clock.now() - row["ended_at"] > timedelta(seconds=SETTLE_SECONDS)
    except Unavailable:
        return False


def _is_held(row: Row) -> bool:
    """Whether the owner of a run that has ended may still write its last events.

    It lives, has ended the run recently, and does not say that all events are sent.
    """
    if row["owner"] is None or row["ended_at"] is None:
        return False
    try:
        if clock.now() - row["ended_at"] > timedelta(seconds=HELD_SECONDS):
            return False
        return _is_heard(row["owner"]) and unsent_events.may_have(row["owner"], row["run_id"])
    except Unavailable:
        return True


def _is_held_of_gone(run_id: UUID) -> bool:
    """The same of a run whose row is gone: its log knows whose it is, unless nothing of it could be written yet."""
    try:
        owner: Any = redis.events(run_id).hget(events.meta_key(run_id), "owner")
        if owner is None:
            return True
        return _is_heard(owner.decode()) and unsent_events.may_have(owner.decode(), run_id)
    except (RedisError, Unavailable):
        return True


def _is_heard(owner: str) -> bool:
    with connection() as conn:
        return fleet.is_heard(conn, owner)


def end_by_row(deployment_id: UUID, run_id: UUID) -> Sequence[Event] | None:
    """The end of a run that has ended and has its row still; of the others, the log alone knows."""
    try:
        with connection() as conn:
            row = read.get(conn, deployment_id, run_id)
    except (NotFound, Unavailable):
        return None
    return None if row["status"] in LIVE_RUN_STATUSES else [END_OF_LOG]
