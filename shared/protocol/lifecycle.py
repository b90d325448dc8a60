"""Lifecycle events of runs in the protocol: start and end, built from the run's row, however the run was created.

The row changes before the log does. Only one fact is taken from the log, because the row does not contain it: whether a
successful run left its thread interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from redis.exceptions import RedisError
from sqlalchemy import Connection, text

from shared.errors import NotFound, Unavailable
from shared.eventlog import events as logs
from shared.eventlog.events import MARK, Event
from shared.infra import redis
from shared.infra.postgres import Row
from shared.models import RunStatus
from shared.protocol import events
from shared.protocol.events import ProtocolEvent, synthesized
from shared.runs import end_event
from shared.runs.end_event import END_OF_LOG, FAILED, ROLLBACK
from shared.sql import statement
from shared.threads import records

REFUSED = "UnknownInterruptError"  # the error of a strict resume that matches no open interrupt
NODE_MISSING = "MissingNodeError"  # the error of an answer to a node that the revision's graph lacks

_RUN = statement("protocol.run")


class NoSuchRun(NotFound):
    """The thread has no run."""


def no_run(thread_id: UUID) -> NoSuchRun:
    return NoSuchRun(f"Thread {thread_id} has no run")


def row(conn: Connection, deployment_id: UUID, run_id: UUID) -> Row | None:
    """Return the columns of a run that this module needs, or None if the run was deleted."""
    return _RUN.row(conn, deployment_id=deployment_id, run_id=run_id)


def _word_for_status(status: str, *, is_interrupted: bool) -> str:
    """Return the protocol's word for a run's status."""
    if status == RunStatus.PENDING:
        return "started"
    if status == RunStatus.RUNNING:
        return "running"
    if status in FAILED:
        return "failed"
    return "interrupted" if is_interrupted or status != RunStatus.SUCCESS else "completed"


def running(run: Any, at: datetime | None) -> ProtocolEvent:
    data = {"event": "running", "graph_name": run["graph_id"]}
    return synthesized(run, events.FIRST_EVENT, "lifecycle", "lc||running", data, at)


def ended(row: Any, end: Event) -> ProtocolEvent:
    """Return the end event of a run, from its row and the last event of its log."""
    is_open = row["left_open"] if end is END_OF_LOG else _head(end).get("interrupted")
    return _terminal(row, row["status"], row["ended_at"], is_open=bool(is_open), failure=_failure(row))


def ended_without_row(run: Any, end: Event) -> ProtocolEvent:
    """Return the end event of a run without a row, which was temporary or rolled back."""
    head = _head(end)
    return _terminal(
        run, head.get("status", ROLLBACK), None, is_open=bool(head.get("interrupted")), failure={}
    )


def _terminal(
    run: Any, status: str, at: datetime | None, *, is_open: bool, failure: Mapping[str, Any]
) -> ProtocolEvent:
    event = _word_for_status(status, is_interrupted=is_open)
    data = {"event": event, "graph_name": run["graph_id"], **(failure if event == "failed" else {})}
    return synthesized(run, events.LAST_EVENT, "lifecycle", f"lc||{event}", data, at)


def requested(row: Any) -> list[ProtocolEvent]:
    """Return events for the open interrupts of the run's thread, for a run whose log was lost."""
    interrupts = open_interrupts(row["interrupts"]) if row["left_open"] else {}
    return [
        synthesized(
            row,
            events.LAST_EVENT - len(interrupts) + nth,
            "input.requested",
            f"input||{id}",
            {"interrupt_id": id, "payload": value, "value": value},
            row["ended_at"],
        )
        for nth, (id, value) in enumerate(interrupts.items())
    ]


def open_interrupts(stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the value of each open interrupt by its id. `stored` is the thread's column, which is grouped by task."""
    return {one["id"]: one["value"] for one in records.interrupt_list(stored)}


def _head(end: Event) -> Mapping[str, Any]:
    """Return the content of a log's last event without the run's output, which may be large."""
    return orjson.loads(end_event.head_of(end))


def _failure(row: Any) -> dict[str, Any]:
    error = row["error"] or {}
    failure = {"error": error.get("message") or error.get("error") or f"the run ended as {row['status']}"}
    if not row["is_strict"] or error.get("error") != REFUSED:
        return failure
    pending = list(open_interrupts(row["interrupts"]))
    named = list(row["resume"]) if isinstance(row["resume"], dict) else []
    unknown = [id for id in named if id not in pending]
    return {**failure, "reason": REFUSED, "interrupt_ids": unknown, "pending_ids": pending}


# The tree of graphs of a run

NEWEST_OR_NAMED = text("""
SELECT run_id FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id
    AND (CAST(:run_id AS uuid) IS NULL OR run_id = :run_id) ORDER BY created_seq DESC LIMIT 1
""")

LIFECYCLE = f'{MARK}["lifecycle",'  # prefix of the names of lifecycle events

Node = dict[str, Any]


def tree_of_run(conn: Connection, deployment_id: UUID, thread_id: UUID, run_id: UUID | None) -> Node:
    """Return the tree of a run, by default the thread's newest. Raises NoSuchRun, or Unavailable without the log."""
    keys = {"deployment_id": deployment_id, "thread_id": thread_id, "run_id": run_id}
    id = conn.execute(NEWEST_OR_NAMED, keys).scalar_one_or_none()
    run = None if id is None else row(conn, deployment_id, id)
    if run is None:
        raise NoSuchRun("Run not found") if run_id else no_run(thread_id)
    status = _word_for_status(run["status"], is_interrupted=bool(run["left_open"]))
    root: Node = {"namespace": [], "status": status, "graph_name": run["graph_id"]}
    _add_children(root, _statuses(run["run_id"]))
    return root


def _statuses(run_id: UUID) -> dict[tuple[str, ...], str]:
    """Return the newest status of each nested graph in the log, by namespace."""
    statuses: dict[tuple[str, ...], str] = {}
    try:
        for name in logs.names(redis.events(run_id), run_id, LIFECYCLE):
            _, namespace, tail, _ = events.stored_head(name)
            if namespace:
                statuses[tuple(namespace)] = tail.rpartition("|")[2]
    except RedisError as error:
        raise Unavailable("the event log cannot be read") from error
    return statuses


def _add_children(root: Node, statuses: dict[tuple[str, ...], str]) -> None:
    """Add each graph to the children of the nearest enclosing graph."""
    nodes: dict[tuple[str, ...], Node] = {(): root}
    for namespace in sorted(statuses, key=len):
        graph_name = namespace[-1].partition(":")[0]
        node = {"namespace": list(namespace), "status": statuses[namespace], "graph_name": graph_name}
        nodes[namespace] = node
        around = next(
            nodes[namespace[:n]] for n in range(len(namespace) - 1, -1, -1) if namespace[:n] in nodes
        )
        around.setdefault("children", []).append(node)
