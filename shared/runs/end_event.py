"""The end of a run's event log: the last event, and substitutes if the log or the run's row is missing.

If the log was lost, the row tells how the run ended. The row of a temporary run is deleted at its end. Until the log
expires, its last event contains what a late reader needs to know of the run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import orjson
from redis.exceptions import RedisError

from shared import fleet
from shared.errors import NotFound, Unavailable
from shared.eventlog import events
from shared.eventlog.events import END, EXPIRED, Event
from shared.eventlog.follow import HELD_SECONDS, SETTLE_SECONDS, RowEnd
from shared.infra import redis
from shared.infra.postgres import Row, connection, database_time, dumps, loads
from shared.models import LIVE_RUN_STATUSES, RunStatus
from shared.runs import read
from shared.runs.claims import Claimed
from shared.runs.read import THREAD_METADATA

log = logging.getLogger(__name__)

FAILED = (RunStatus.ERROR, RunStatus.TIMEOUT)
END_OF_LOG = Event(0, 0, END, b"{}")
IS_STATE = "is_state"
INTERRUPTS = "__interrupt__"  # key of an output that holds the open interrupts
ROLLBACK = "rollback"  # the status of a run that was cancelled and deleted
# The error of a cancelled run, by action: its name, and its message if no reason was given.
CANCEL_ERRORS = {
    ROLLBACK: ("UserRollback", "rollback requested"),
    "interrupt": ("UserInterrupt", "interrupt requested"),
}
# The error that readers of a deleted run get.
NOT_FOUND = {"error": "HTTPException", "message": "404: Run not found"}
OUTPUT_OF_DELETED = dumps({"__error__": NOT_FOUND}).encode()
OUTPUT = b',"output":'  # in a last event, this key comes last, followed by the output as the graph host serialized it
# Kwargs of a run that readers of its log need.
READER_KWARGS = ("stream_mode", "subgraphs", "resumable", THREAD_METADATA)


def last_event(
    run: Claimed, status: str, output: bytes, *, interrupted: bool = False, is_state: bool = False
) -> bytes:
    """Return the last event of a run's log: the run's status and its JSON output, for callers that wait for the run.

    `interrupted`: the run leaves its thread interrupted, whatever the run's own status. `is_state`: the output is the whole
    state of the thread.
    """
    head: dict[str, Any] = {"run_id": str(run.run_id), "status": str(status)}
    head |= {name: True for name, value in (("interrupted", interrupted), (IS_STATE, is_state)) if value}
    if run.temporary:
        kwargs = {name: run.kwargs[name] for name in READER_KWARGS if name in run.kwargs}
        head["row"] = {
            "deployment_id": str(run.deployment_id),
            "thread_id": str(run.thread_id),
            "kwargs": kwargs,
            "joined": run.joined,
        }
    return events.payload(END, dumps(head).encode()[:-1] + OUTPUT + output + b"}")


def last_event_of_stopped(run_id: UUID, action: str, *, is_deleted: bool) -> bytes:
    """Return the last event of a run whose log no owner ends: the run was pending, or is deleted."""
    status = ROLLBACK if action == ROLLBACK else RunStatus.INTERRUPTED
    output = OUTPUT_OF_DELETED if is_deleted else b"null"
    head = dumps({"run_id": str(run_id), "status": str(status)}).encode()
    return events.payload(END, head[:-1] + OUTPUT + output + b"}")


def with_error_of_deleted(batches: Iterable[list[Event]]) -> Iterator[list[Event]]:
    """Yield the batches of a log. Inserts the error for readers before the last event of a deleted run."""
    for batch in batches:
        if batch and batch[-1].is_last and output_of(batch[-1]) == OUTPUT_OF_DELETED:
            batch = [*batch[:-1], Event(0, 0, "error", dumps(NOT_FOUND).encode()), batch[-1]]
        yield batch


def cancel_error(action: str, reason: str | None = None) -> dict[str, str]:
    """Return the error of a run that was cancelled by this action, `interrupt` or `rollback`."""
    name, message = CANCEL_ERRORS[action]
    return {"error": name, "message": reason or message}


def output_of(last: Event) -> bytes:
    """Return the output in a log's last event, or empty bytes if it has none."""
    return last.data.partition(OUTPUT)[2][:-1]


def head_of(last: Event) -> bytes:
    """Return the JSON of a log's last event without the output."""
    head, has_output, _ = last.data.partition(OUTPUT)
    return head + b"}" if has_output else head


def status_of(last: Event) -> str | None:
    """Return the run's status from the last event of its log, or None if that event was lost."""
    status: str | None = orjson.loads(head_of(last)).get("status")
    return status


def state_of(last: Event) -> Any:
    """Return the state in which a successful run left its thread, or None if the last event of its log lacks it."""
    head = orjson.loads(head_of(last))
    is_whole = head.get("status") == RunStatus.SUCCESS and head.get(IS_STATE) is True
    return loads(output_of(last)) if is_whole else None


def row_in_log(deployment_id: UUID, run_id: UUID) -> dict[str, Any] | None:
    """Return what readers need of the deleted row of an ended temporary run, or None if the log does not have it.

    Raises Unavailable if the log cannot be read.
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
        "joined": row["joined"],
        "attempt": 1,
        "seq_reserved": last.seq,
    }


def extent(run_id: UUID) -> tuple[int, bool]:
    """Return the number of the log's newest event (0 if the log is empty) and whether the log has ended."""
    try:
        newest, end = redis.events(run_id).hmget(events.meta_key(run_id), "seq", "end")  # type: ignore[misc]
    except RedisError:
        return 0, False
    return int(newest or 0), end is not None


def end_of_lost(deployment_id: UUID, run_id: UUID, last: int, *, end_alone: bool = False) -> RowEnd | None:
    """Return the end of a lost log, built from the run's row, for a reader that has its events up to number `last`.

    Returns None while the run is live. An owner stores the number of the last event in the row. A reader that has all
    events before that number misses nothing, even if the owner was killed before it wrote the last event. `end_alone`:
    the reader needs only the end, so the function does not look for unsent events.
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
    lost = [EXPIRED] if row["attempt"] and not extent(run_id)[1] else []  # a log without an end may lack more
    if row["status"] in FAILED and row["error"]:
        lost.append(Event(0, 0, "error", dumps(row["error"]).encode()))
    return RowEnd([*lost, END_OF_LOG], is_held=is_held, is_settled=not is_held and _is_settled(row))


def _is_settled(row: Row) -> bool:
    """Return whether the run ended so long ago that all events in flight have reached its log."""
    if row["ended_at"] is None:
        return False
    try:
        return database_time() - row["ended_at"] > timedelta(seconds=SETTLE_SECONDS)
    except Unavailable:
        return False


def _is_held(row: Row) -> bool:
    """Return whether the owner of an ended run may still write its last events.

    True if the owner is alive, ended the run recently, and does not answer that all events are sent.
    """
    if row["owner"] is None or row["ended_at"] is None:
        return False
    try:
        if database_time() - row["ended_at"] > timedelta(seconds=HELD_SECONDS):
            return False
        return _is_heard(row["owner"]) and may_have_unsent(row["owner"], row["run_id"])
    except Unavailable:
        return True


def _is_held_of_gone(run_id: UUID) -> bool:
    """Return whether the owner of a deleted run may still write its last events.

    The log contains the owner, unless none of its events could be written yet.
    """
    try:
        owner: Any = redis.events(run_id).hget(events.meta_key(run_id), "owner")
        if owner is None:
            return True
        return _is_heard(owner.decode()) and may_have_unsent(owner.decode(), run_id)
    except (RedisError, Unavailable):
        return True


def _is_heard(owner: str) -> bool:
    with connection() as conn:
        return fleet.is_heard(conn, owner)


def end_by_row(deployment_id: UUID, run_id: UUID) -> Sequence[Event] | None:
    """Return the end event of an ended run that has a row, else None."""
    try:
        with connection() as conn:
            row = read.get(conn, deployment_id, run_id)
    except (NotFound, Unavailable):
        return None
    return None if row["status"] in LIVE_RUN_STATUSES else [END_OF_LOG]


# Query to a runner whether it still has unsent events of an ended run
#
# A runner sends the last events of a run after it has committed the end. If the log lacks the end, these events may be
# unsent, or the log may have been lost after they were written. Only the runner knows.

UNSENT = "unsent"  # action of the control message
ANSWER_SECONDS = 1
KEPT_SECONDS = 10  # expiry of an answer that was not fetched
YES, NO = b"1", b"0"


def may_have_unsent(owner: str, run_id: UUID) -> bool:
    """Return whether a runner may still send events of this run. True if the runner does not answer."""
    answers = f"{redis.PREFIX}unsent:{uuid4().hex}"
    message = dumps({"run_id": str(run_id), "action": UNSENT, "answers": answers})
    try:
        if not redis.broker().publish(redis.control_channel(owner), message):
            return True
        answer: Any = redis.broker().brpop([answers], timeout=ANSWER_SECONDS)
    except RedisError as error:
        log.warning("run %s: could not ask %s for unsent events: %s", run_id, owner, error)
        return True
    return answer is None or answer[1] != NO


def answer_unsent(answers: str, has_unsent: bool) -> None:
    """Answer the query of another process, which times out if the answer is lost."""
    try:
        with redis.broker().pipeline(transaction=False) as pipeline:
            pipeline.lpush(answers, YES if has_unsent else NO)
            pipeline.expire(answers, KEPT_SECONDS)
            pipeline.execute()
    except RedisError as error:
        log.warning("could not answer whether events are unsent: %s", error)
