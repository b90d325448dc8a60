"""The tree of graphs of a run, with the status of each, from the run's row and log."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from redis.exceptions import RedisError
from sqlalchemy import Connection, text

from shared.errors import Unavailable
from shared.eventlog import events as logs
from shared.infra import redis
from shared.protocol import events, lifecycle
from shared.protocol.resume import NoSuchRun

WANTED = text("""
SELECT run_id FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id
    AND (CAST(:run_id AS uuid) IS NULL OR run_id = :run_id) ORDER BY created_seq DESC LIMIT 1
""")

LIFECYCLE = f'{events.MARK}["lifecycle",'  # prefix of the names of lifecycle events

Node = dict[str, Any]


def of_run(conn: Connection, deployment_id: UUID, thread_id: UUID, run_id: UUID | None) -> Node:
    """Return the tree of a run, by default the thread's newest. Raises NoSuchRun, or Unavailable without the log."""
    keys = {"deployment_id": deployment_id, "thread_id": thread_id, "run_id": run_id}
    found = conn.execute(WANTED, keys).scalar_one_or_none()
    row = None if found is None else lifecycle.row(conn, deployment_id, found)
    if row is None:
        raise NoSuchRun("Run not found" if run_id else f"Thread {thread_id} has no run")
    status = lifecycle.event_of(row.status, is_interrupted=bool(row.left_open))
    root: Node = {"namespace": [], "status": status, "graph_name": row.graph_id}
    _hang_up(root, _statuses(row.run_id))
    return root


def _statuses(run_id: UUID) -> dict[tuple[str, ...], str]:
    """Return the newest status of each nested graph in the log, by namespace."""
    found: dict[tuple[str, ...], str] = {}
    try:
        for name in logs.names(redis.events(run_id), run_id, LIFECYCLE):
            _, namespace, tail, _ = events.stored_head(name)
            if namespace:
                found[tuple(namespace)] = tail.rpartition("|")[2]
    except RedisError as error:
        raise Unavailable("the event log cannot be read") from error
    return found


def _hang_up(root: Node, statuses: dict[tuple[str, ...], str]) -> None:
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
