"""Ends of runs by their owner: status, the thread's new state and the thread's next run, in one transaction.

`shared/runs/cancel.py` has the ends that other processes request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared.errors import Fenced
from shared.figures import recording
from shared.infra.postgres import Driver, dumps, query
from shared.models import RunStatus, ThreadStatus, is_live
from shared.runs import eligibility, end_event, webhooks
from shared.runs.claims import Claimed
from shared.runs.eligibility import Next
from shared.threads import checkpoints, records


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a run. JSON texts are stored unchanged. If `values` is None, the thread keeps its values."""

    run: Claimed
    status: RunStatus
    thread_status: ThreadStatus | None  # None: the thread is left as it was before the run
    error: dict[str, Any] | None = None
    values: str | None = None
    state: str | None = None
    interrupts: str | None = None
    usage: str | None = None
    first_token_ago: float | None = None  # seconds since a model's first token was streamed
    end_seq: int | None = None  # number of the last event of its log, if the owner writes that event


def finish_runs(conn: Connection | Driver, ends: Sequence[Finish], *, owner: str) -> dict[UUID, Next | None]:
    """End runs of one owner and store their threads' state. Deletes temporary runs with their threads.

    Returns the next run of the thread (or None) for each ended run. The owner has lost the runs missing from the
    result. The caller holds the threads' locks (`records.lock_all`): the statement would otherwise miss runs created
    meanwhile. The commit waits for the disk, whatever the setting of the connection.
    """
    kept = [end for end in ends if not end.run.temporary]
    temporary = [end for end in ends if end.run.temporary]
    return {**_finish_kept(conn, kept, owner), **_finish_temporary(conn, temporary, owner)}


def _finish_kept(conn: Connection | Driver, ends: Sequence[Finish], owner: str) -> dict[UUID, Next | None]:
    if not ends:
        return {}
    parameters = {"owner": owner, **kept_columns(ends)}
    done: dict[UUID, Next | None] = {}
    for row in query(conn, FINISH_TO_DISK, parameters):
        waiting = row["next_run_id"]
        done[row["run_id"]] = None if waiting is None else Next(waiting, row["pool"])
    with_webhook = [end.run.run_id for end in ends if has_webhook(end) and end.run.run_id in done]
    if with_webhook:
        webhooks.record(conn, with_webhook)
    return done


def kept_columns(ends: Sequence[Finish]) -> dict[str, Any]:
    """Return the parameters of `FINISH` for runs that keep their threads, a list for each column."""
    return {
        **_columns(ends),
        "thread_statuses": [end.thread_status and str(end.thread_status) for end in ends],
        "states": [end.state for end in ends],
        "interrupts": [end.interrupts for end in ends],
        "end_seqs": [end.end_seq for end in ends],
    }


def _finish_temporary(
    conn: Connection | Driver, ends: Sequence[Finish], owner: str
) -> dict[UUID, Next | None]:
    done: dict[UUID, Next | None] = {}
    with_webhook = [end for end in ends if has_webhook(end)]
    without = [end for end in ends if not has_webhook(end)]
    for statement, chosen in ((DELETE_TEMPORARY, without), (DELETE_WITH_WEBHOOK, with_webhook)):
        if chosen:
            done.update(
                (row["run_id"], None) for row in query(conn, statement, {"owner": owner, **_columns(chosen)})
            )
    return done


def has_webhook(end: Finish) -> bool:
    """Return whether the run has a webhook."""
    return bool(end.run.kwargs.get("webhook"))


def _columns(ends: Sequence[Finish]) -> dict[str, Any]:
    """Return the parameters that all statements in this module use, a list for each column."""
    return {
        "run_ids": [end.run.run_id for end in ends],
        "attempts": [end.run.attempt for end in ends],
        "statuses": [str(end.status) for end in ends],
        "errors": [None if end.error is None else dumps(end.error) for end in ends],
        "values": [end.values for end in ends],
        "usages": [end.usage for end in ends],
        "firsts": [end.first_token_ago for end in ends],
    }


_ENDS = {
    "run_id": "CAST(%(run_ids)s AS uuid[])",
    "attempt": "CAST(%(attempts)s AS bigint[])",
    "status": "CAST(%(statuses)s AS text[])",
    "usage": "CAST(%(usages)s AS text[])",
    "first_token_ago": "CAST(%(firsts)s AS float8[])",
    "error": "CAST(%(errors)s AS text[])",
    "new_values": "CAST(%(values)s AS text[])",
    "thread_status": "CAST(%(thread_statuses)s AS text[])",
    "new_state": "CAST(%(states)s AS text[])",
    "new_interrupts": "CAST(%(interrupts)s AS text[])",
    "end_seq": "CAST(%(end_seqs)s AS bigint[])",
}

# The parameters of `FINISH` except the owner, and their types.
KEPT_COLUMNS = dict(re.findall(r"%\((\w+)\)s AS (\S+)\)", " ".join(_ENDS.values())))


def _ends(*names: str) -> str:
    """Return a SELECT of one row for each end, with the named columns only."""
    arrays = ", ".join(_ENDS[name] for name in names)
    return f"SELECT * FROM unnest({arrays}) AS f({', '.join(names)})"


# coalesce() keeps the planner from the partial index of running runs. A cached generic plan would otherwise scan all
# running runs for each run that ends.
_IS_RUNNING = "coalesce(r.status, '') = 'running'"

_FINISH = f"""
WITH f AS ({_ends(*_ENDS)}
), ended AS (
    UPDATE run r SET status = f.status, error = CAST(f.error AS json), usage = CAST(f.usage AS jsonb),
        ended_at = now(), updated_at = now(), lease_until = NULL,
        seq_reserved = coalesce(f.end_seq, r.seq_reserved)
    FROM f
    WHERE r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = %(owner)s AND {_IS_RUNNING}
    RETURNING r.run_id, r.deployment_id, r.thread_id, r.status, r.usage, f.first_token_ago,
        {recording.columns("r")}
), counted AS ({recording.append("ended")}), waiting AS (
    SELECT e.run_id, n.run_id AS next_run_id, n.pool
    FROM ended e LEFT JOIN LATERAL (
        SELECT run_id, pool FROM run o
        WHERE o.deployment_id = e.deployment_id AND o.thread_id = e.thread_id
          AND {is_live("o")} AND o.run_id <> e.run_id
        ORDER BY o.created_seq LIMIT 1) n ON true
), kept AS (
    UPDATE thread t SET
        status = CASE WHEN w.next_run_id IS NULL THEN coalesce(f.thread_status, t.rest_status, 'idle')
                      ELSE 'busy' END,
        rest_status = coalesce(f.thread_status, t.rest_status),
        values = CASE WHEN f.new_values IS NULL THEN t.values ELSE CAST(f.new_values AS json) END,
        state = CASE WHEN f.new_state IS NULL THEN t.state ELSE CAST(f.new_state AS json) END,
        interrupts = CASE WHEN f.new_interrupts IS NULL THEN coalesce(t.interrupts, CAST('{{}}' AS json))
                          ELSE CAST(f.new_interrupts AS json) END,
        error = CASE WHEN f.thread_status IS NULL THEN t.rest_error ELSE CAST(f.error AS json) END,
        rest_error = CASE WHEN f.thread_status IS NULL THEN t.rest_error ELSE CAST(f.error AS json) END,
        updated_at = now(),
        state_updated_at = CASE WHEN f.thread_status IS NULL THEN t.state_updated_at ELSE now() END
    FROM ended e JOIN f ON f.run_id = e.run_id JOIN waiting w ON w.run_id = e.run_id
    WHERE t.deployment_id = e.deployment_id AND t.thread_id = e.thread_id
)
"""
_WAITING = "SELECT run_id, next_run_id, pool"
FINISH = f"{_FINISH}{_WAITING} FROM waiting"
FINISH_TO_DISK = f"{_FINISH}{_WAITING}, set_config('synchronous_commit', 'on', true) FROM waiting"

_COUNTED = ("run_id", "attempt", "status", "usage", "first_token_ago")


def _of_temporary(*more: str) -> str:
    """Return the CTEs that end temporary runs and delete them with their threads. `more` names additional columns."""
    return f"""
WITH f AS ({_ends(*_COUNTED, *more)}
), gone AS (
    DELETE FROM thread t USING run r, f
    WHERE r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = %(owner)s AND r.status = 'running'
      AND t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
    RETURNING r.run_id, r.deployment_id, f.status, CAST(f.usage AS jsonb) AS usage, f.first_token_ago,
        {recording.columns("r")}
), counted AS ({recording.append("gone")})"""


_GONE = "SELECT run_id, set_config('synchronous_commit', 'on', true) FROM gone"
DELETE_TEMPORARY = f"{_of_temporary()}\n{_GONE}"
# Deletes temporary runs and inserts their webhook deliveries in one statement, because the connection may be in
# autocommit mode.
DELETE_WITH_WEBHOOK = f"""
{_of_temporary("error", "new_values")}, recorded AS ({webhooks.RECORD_TEMPORARY})
{_GONE}"""


def ended_before(conn: Driver, runs: Sequence[Claimed], *, owner: str) -> set[UUID]:
    """Return the runs that this owner has ended, or that are deleted. Used after a commit whose response was lost."""
    rows = query(
        conn,
        f"""
SELECT f.run_id FROM unnest(CAST(%(run_ids)s AS uuid[]), CAST(%(attempts)s AS bigint[])) AS f(run_id, attempt)
LEFT JOIN run r ON r.run_id = f.run_id
WHERE r.run_id IS NULL OR (r.owner = %(owner)s AND r.attempt = f.attempt
    AND NOT {is_live("r")})""",
        {
            "owner": owner,
            "run_ids": [run.run_id for run in runs],
            "attempts": [run.attempt for run in runs],
        },
    )
    return {row["run_id"] for row in rows}


def roll_back(
    conn: Connection,
    run: Claimed,
    *,
    error: dict[str, Any],
    usage: str | None = None,
    first_token_ago: float | None = None,
) -> Next | None:
    """Delete a running run and undo its effects, except for the thread's `error` and the figures.

    Returns the next run of the thread, or None. Raises Fenced if the owner has lost the run.
    """
    records.lock(conn, run.deployment_id, run.thread_id)
    if run.kwargs.get("webhook"):
        webhooks.record_going(conn, [run.run_id], status=end_event.ROLLBACK, error=error)
    records.restore_metadata(conn, run.run_id)
    recording.record(conn, [run.run_id], usage=usage, first_token_ago=first_token_ago)
    gone = conn.execute(
        text(
            "DELETE FROM run WHERE run_id = :run_id AND attempt = :attempt AND owner = :owner"
            " AND status = 'running'"
        ),
        {"run_id": run.run_id, "attempt": run.attempt, "owner": run.owner},
    )
    if gone.rowcount != 1:
        raise Fenced
    checkpoints.delete_run(conn, run.deployment_id, run.thread_id, run.run_id)
    records.settle(conn, run.deployment_id, run.thread_id, error=error)
    return eligibility.next_of(conn, run.deployment_id, run.thread_id)
