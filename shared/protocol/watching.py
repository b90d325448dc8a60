"""Marks for watched threads: runs on a thread that a protocol stream watches write the protocol's events.

The mark is in the thread's row, which the creation of a run reads anyway. Opening a stream sets it for WATCHED_SECONDS,
and open streams renew it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from shared.infra.postgres import connection
from shared.models import RunStatus
from shared.runs import create, signals
from shared.runs.read import PROTOCOL
from shared.sql import statement

WATCHED_SECONDS = 600
SPARED_SECONDS = 60  # a mark that was set less than this long ago is not set again
RENEW_SECONDS = 120.0

Keys = Mapping[str, UUID]  # `deployment_id` and `thread_id`

_WATCH = statement("protocol.watch")
_LACKING = statement("protocol.lacking")


@dataclass(frozen=True, slots=True)
class Widened:
    """A running run whose owner must be notified, after the commit, to write the protocol's events."""

    run_id: UUID
    owner: str

    def publish(self) -> None:
        signals.widen(self.run_id, self.owner, [PROTOCOL])


def watch(conn: Connection, keys: Keys) -> None:
    """Mark the thread as watched: runs created in the next minutes write the protocol's events."""
    _WATCH.count(conn, **keys, watched=WATCHED_SECONDS, spared=SPARED_SECONDS)


def widen(conn: Connection, keys: Keys) -> list[Widened]:
    """Add the protocol's events to the thread's live runs. Returns the running runs whose owners must be notified.

    Pending runs will write all events, running runs those that are still to come.
    """
    running = []
    for run in _LACKING.rows(conn, **keys):
        if run["status"] == RunStatus.PENDING:
            create.widen(conn, keys["deployment_id"], run["run_id"], modes=[PROTOCOL], subgraphs=False)
        elif run["owner"]:
            running.append(Widened(run["run_id"], run["owner"]))
    return running


def mark(keys: Keys) -> None:
    """Mark the thread as watched and widen its live runs, in a separate transaction. Raises Unavailable."""
    with connection() as conn:
        watch(conn, keys)
        widened = widen(conn, keys)
    for run in widened:
        run.publish()


END_GIVEN = text("""
UPDATE thread SET protocol_end_given = :run
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND protocol_end_given < :run
""")


def record_end(conn: Connection, keys: Keys, run: int) -> None:
    """Record that a reader that waits for ends was given the end of this run. Later readers then do not get it."""
    conn.execute(END_GIVEN, {**keys, "run": run})
