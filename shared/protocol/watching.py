"""Who watches a thread by the protocol, as its row says it: runs on it then write what is to be seen.

The row is what the creation of a run reads anyway. It says so for a while after a stream was opened, and streams that
stay say it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from shared.infra.json_text import readable
from shared.infra.postgres import connection
from shared.models import RunStatus, is_live
from shared.runs import create, signals
from shared.runs.read import PROTOCOL

WATCHED_SECONDS = 600
SPARED_SECONDS = 60  # the row is not written again when it was a moment ago
RENEW_SECONDS = 120.0

Keys = Mapping[str, UUID]  # of a thread

WATCH = text("""
UPDATE thread SET protocol_until = now() + make_interval(secs => :watched)
WHERE deployment_id = :deployment_id AND thread_id = :thread_id
    AND coalesce(protocol_until < now() + make_interval(secs => :watched - :spared), true)
""")

# In a SELECT from run: it writes the protocol's events, for its own sake or for somebody else's.
HAS_PROTOCOL = f"""(CAST({readable("kwargs")} -> 'stream_mode' AS jsonb) @> '["{PROTOCOL}"]'
    OR coalesce(CAST({readable("kwargs")} -> 'joined' -> 'stream_mode' AS jsonb) @> '["{PROTOCOL}"]', false))"""

LACKING = text(f"""
SELECT run_id, status, owner FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id
    AND {is_live()} AND NOT {HAS_PROTOCOL} ORDER BY created_seq
""")


@dataclass(frozen=True, slots=True)
class Widened:
    """A running run whose owner is to be notified, after the commit, that more of it is wanted."""

    run_id: UUID
    owner: str

    def publish(self) -> None:
        signals.widen(self.run_id, self.owner, [PROTOCOL])


def watch(conn: Connection, keys: Keys) -> None:
    """Runs that are created on the thread in the next minutes write the protocol's events."""
    conn.execute(WATCH, {**keys, "watched": WATCHED_SECONDS, "spared": SPARED_SECONDS})


def widen(conn: Connection, keys: Keys) -> list[Widened]:
    """The same for runs that are there already: those that wait in full, running ones as far as they still can."""
    running = []
    for run in conn.execute(LACKING, keys).all():
        if run.status == RunStatus.PENDING:
            create.widen(conn, keys["deployment_id"], run.run_id, modes=[PROTOCOL], subgraphs=False)
        elif run.owner:
            running.append(Widened(run.run_id, run.owner))
    return running


def note(keys: Keys) -> None:
    """Somebody watches: for runs to come and those that are there, in a transaction of its own. Raises Unavailable."""
    with connection() as conn:
        watch(conn, keys)
        widened = widen(conn, keys)
    for run in widened:
        run.publish()


END_GIVEN = text("""
UPDATE thread SET protocol_end_given = :run
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND protocol_end_given < :run
""")


def end_given(conn: Connection, keys: Keys, run: int) -> None:
    """Somebody who waits for ends of runs is given this one's: who comes later does not wait for it."""
    conn.execute(END_GIVEN, {**keys, "run": run})
