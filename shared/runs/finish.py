"""Ends of runs by their owner: status, the thread's new state and the thread's next run, in one transaction.

A commit of a runner ends runs and stores checkpoints in one call of a database function (`shared/sql/commit.sql`).
`shared/runs/cancel.py` has the ends that other processes request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared.errors import Fenced
from shared.figures import folding
from shared.infra.arrays import bigints, doubles, texts, uuids
from shared.infra.postgres import Driver, dumps
from shared.models import RunStatus, ThreadStatus
from shared.runs import backlog, end_event, webhooks
from shared.runs.backlog import NextRun
from shared.runs.claims import Claimed
from shared.sql import Conn, statement
from shared.threads import checkpoints, records
from shared.threads.checkpoints import Write


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
    node_usage: str | None = None  # usage by node
    first_token_ago: float | None = None  # seconds since a model's first token was streamed
    spans: str | None = None  # times of its nodes and calls: see shared/runs/timeline.py
    end_seq: int | None = None  # number of the last event of its log, if the owner writes that event


_COMMIT = statement("commit.runs")
_END_TEMPORARY = statement("commit.end_temporary")
_ENDED_BEFORE = statement("commit.ended_before")
_ROLLBACK_ERROR, _ROLLBACK_MESSAGE = end_event.CANCEL_ERRORS[end_event.ROLLBACK]


def commit(
    conn: Conn, ends: Sequence[Finish], writes: Sequence[Write], *, owner: str, to_disk: bool
) -> tuple[dict[UUID, NextRun | None], set[UUID]]:
    """End an owner's runs that keep their threads, and store checkpoints, in one transaction.

    Returns the next run of the thread (or None) for each ended run, and the ids of the runs whose checkpoints were
    dropped because the owner has lost them. The commit waits for the disk if it ends runs or if `to_disk` is set.
    """
    rows = _COMMIT.rows(
        conn,
        owner=owner,
        to_disk=to_disk or bool(ends),
        deployment_ids=uuids([end.run.deployment_id for end in ends]),
        thread_ids=uuids([end.run.thread_id for end in ends]),
        thread_statuses=texts([end.thread_status for end in ends]),
        states=texts([end.state for end in ends]),
        interrupts=texts([end.interrupts for end in ends]),
        spans=texts([end.spans for end in ends]),
        end_seqs=bigints([end.end_seq for end in ends]),
        hooked_runs=uuids([end.run.run_id for end in ends if end.run.kwargs.get("webhook")]),
        **_columns(ends),
        **checkpoints.columns_of_owned(writes),
    )
    done: dict[UUID, NextRun | None] = {}
    fenced = {item.run_id for item in writes}
    for row in rows:
        run_id, next_run_id = row["ended_run_id"], row["next_run_id"]
        if run_id is None:
            fenced.discard(row["stored_run_id"])
        else:
            done[run_id] = None if next_run_id is None else NextRun(next_run_id, row["next_pool"])
    return done, fenced


def finish_runs(conn: Conn, ends: Sequence[Finish], *, owner: str) -> dict[UUID, NextRun | None]:
    """End runs of one owner and store their threads' state. Deletes temporary runs with their threads.

    Returns the next run of the thread (or None) for each ended run. The owner has lost the runs missing from the
    result. The commit waits for the disk, whatever the setting of the connection.
    """
    kept = [end for end in ends if not end.run.temporary]
    temporary = [end for end in ends if end.run.temporary]
    done = commit(conn, kept, [], owner=owner, to_disk=True)[0] if kept else {}
    if temporary:
        rows = _END_TEMPORARY.rows(
            conn,
            owner=owner,
            rollback_error=_ROLLBACK_ERROR,
            rollback_message=_ROLLBACK_MESSAGE,
            **_columns(temporary),
        )
        done |= dict.fromkeys(row["run_id"] for row in rows)
    return done


def _columns(ends: Sequence[Finish]) -> dict[str, Any]:
    """Return the parameters that both statements use, a list for each column."""
    return {
        "run_ids": uuids([end.run.run_id for end in ends]),
        "attempts": bigints([end.run.attempt for end in ends]),
        "statuses": texts([end.status for end in ends]),
        "errors": texts([None if end.error is None else dumps(end.error) for end in ends]),
        "values": texts([end.values for end in ends]),
        "usages": texts([end.usage for end in ends]),
        "node_usages": texts([end.node_usage for end in ends]),
        "first_tokens_ago": doubles([end.first_token_ago for end in ends]),
    }


def ended_before(conn: Driver, runs: Sequence[Claimed], *, owner: str) -> set[UUID]:
    """Return the runs that this owner has ended, or that are deleted. Used after a commit whose response was lost."""
    rows = _ENDED_BEFORE.rows(
        conn,
        owner=owner,
        run_ids=uuids([run.run_id for run in runs]),
        attempts=bigints([run.attempt for run in runs]),
    )
    return {row["run_id"] for row in rows}


def roll_back(
    conn: Connection,
    run: Claimed,
    *,
    error: dict[str, Any],
    usage: str | None = None,
    node_usage: str | None = None,
    first_token_ago: float | None = None,
) -> NextRun | None:
    """Delete a running run and undo its effects, except for the thread's `error` and the figures.

    Returns the next run of the thread, or None. Raises Fenced if the owner has lost the run.
    """
    records.lock(conn, run.deployment_id, run.thread_id)
    if run.kwargs.get("webhook"):
        webhooks.record(conn, [run.run_id], status=end_event.ROLLBACK, error=error)
    records.restore_metadata(conn, run.run_id)
    folding.record(conn, [run.run_id], usage=usage, node_usage=node_usage, first_token_ago=first_token_ago)
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
    return backlog.next_of(conn, run.deployment_id, run.thread_id)
