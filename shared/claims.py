"""Who executes a run: claims, leases, the end, and what upkeep does for runs whose owner is gone.

A claim raises `attempt` and takes a lease; everything the owner writes later names both, so that an owner
who lost the lease changes nothing. Locks are always taken thread first, then run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared.database import dumps
from shared.events import RESERVED
from shared.models import RunStatus, ThreadStatus


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run this process owns until its lease runs out, with all that executing it needs."""

    run_id: UUID
    deployment_id: UUID
    thread_id: UUID
    assistant_id: UUID
    revision_id: UUID
    graph_id: str
    attempt: int
    owner: str
    floor: int  # its events are numbered from floor + 1
    temporary: bool
    metadata: dict[str, Any]
    input: bytes
    kwargs: dict[str, Any]
    last_death: str | None
    deaths: int
    seconds_left: float
    cancel_requested: str | None = None


_CLAIM = """
UPDATE run r SET status = 'running', attempt = attempt + 1, owner = :owner,
    lease_until = now() + make_interval(secs => :lease), updated_at = now(),
    started_at = coalesce(started_at, now()),
    deadline_at = coalesce(deadline_at, now() + make_interval(secs => :run_timeout)),
    seq_reserved = seq_reserved + :reserved
WHERE {which} AND r.status = 'pending' AND r.cancel_requested IS NULL
  AND (r.not_before IS NULL OR r.not_before <= now())
  AND NOT EXISTS (
    SELECT 1 FROM run e WHERE e.deployment_id = r.deployment_id AND e.thread_id = r.thread_id
      AND e.created_seq < r.created_seq AND e.status IN ('pending', 'running'))
RETURNING run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, attempt,
    seq_reserved - :reserved AS floor, temporary, metadata, CAST(input AS text) AS input, kwargs,
    last_death, deaths, extract(epoch FROM deadline_at - now()) AS seconds_left
"""
CLAIM = text(_CLAIM.format(which="r.run_id = ANY(:ids)"))
CLAIM_WAITING = text(
    _CLAIM.format(
        which="""r.run_id IN (
            SELECT w.run_id FROM run w WHERE w.status = 'pending' AND w.pool = :pool
              AND (w.not_before IS NULL OR w.not_before <= now())
              AND coalesce(w.not_before, w.created_at) < now() - make_interval(secs => :waited)
            ORDER BY w.run_id LIMIT :limit FOR UPDATE SKIP LOCKED)"""
    )
)


def claim(
    conn: Connection, run_ids: Sequence[UUID], *, owner: str, lease_seconds: float, run_timeout_seconds: float
) -> list[Claimed]:
    """Take pending runs whose turn it is; those that others have are simply not in the answer.

    Raises IntegrityError when a run of the same thread is running after all (the unique index is the
    guarantee, the order of creation only the rule): then claim one by one.
    """
    return _claim(conn, CLAIM, owner, lease_seconds, run_timeout_seconds, ids=list(run_ids))


def claim_waiting(
    conn: Connection,
    pool: str,
    *,
    limit: int,
    waited_seconds: float,
    owner: str,
    lease_seconds: float,
    run_timeout_seconds: float,
) -> list[Claimed]:
    """Take runs nobody rang for (a lost message, Redis away) that have waited this long."""
    return _claim(
        conn, CLAIM_WAITING, owner, lease_seconds, run_timeout_seconds,
        pool=pool, limit=limit, waited=waited_seconds,
    )  # fmt: skip


def _claim(
    conn: Connection,
    statement: Any,
    owner: str,
    lease_seconds: float,
    run_timeout_seconds: float,
    **which: Any,
) -> list[Claimed]:
    conn.execute(DO_NOT_WAIT_FOR_DISK)
    rows = conn.execute(
        statement,
        {
            "owner": owner,
            "lease": lease_seconds,
            "run_timeout": run_timeout_seconds,
            "reserved": RESERVED,
            **which,
        },
    ).mappings()
    return [_claimed(row, owner) for row in rows]


def _claimed(row: Mapping[str, Any], owner: str) -> Claimed:
    return Claimed(
        **{
            **row,
            "owner": owner,
            "input": (row["input"] or "null").encode(),
            "seconds_left": float(row["seconds_left"]),
        }
    )


# A claim that a crash of PostgreSQL forgets leaves the run pending, and its owner finds itself fenced.
DO_NOT_WAIT_FOR_DISK = text("SET LOCAL synchronous_commit = off")


@dataclass(frozen=True, slots=True)
class Hold:
    """What a renewal says of one run: still ours, and whether somebody wants it stopped."""

    attempt: int
    cancel_requested: str | None
    cancel_reason: str | None


def renew(conn: Connection, run_ids: Sequence[UUID], *, owner: str, lease_seconds: float) -> dict[UUID, Hold]:
    """Prolong the leases of an owner's runs; runs not in the answer are no longer its own."""
    rows = conn.execute(
        text(
            "UPDATE run SET lease_until = now() + make_interval(secs => :lease)"
            " WHERE run_id = ANY(:ids) AND owner = :owner AND status = 'running'"
            " RETURNING run_id, attempt, cancel_requested, cancel_reason"
        ),
        {"ids": list(run_ids), "owner": owner, "lease": lease_seconds},
    )
    return {row.run_id: Hold(row.attempt, row.cancel_requested, row.cancel_reason) for row in rows}


def reserve(conn: Connection, run_id: UUID, *, owner: str, attempt: int, upto: int) -> bool:
    """Reserve event numbers up to `upto`; False when the run is no longer the owner's."""
    done = conn.execute(
        text(
            "UPDATE run SET seq_reserved = greatest(seq_reserved, :upto) WHERE run_id = :run_id"
            " AND owner = :owner AND attempt = :attempt AND status = 'running'"
        ),
        {"run_id": run_id, "owner": owner, "attempt": attempt, "upto": upto},
    )
    return done.rowcount == 1


@dataclass(frozen=True, slots=True)
class Finish:
    """How a run ended. JSON texts are stored as they are; `values` None keeps the thread's state."""

    run: Claimed
    status: RunStatus
    thread_status: ThreadStatus
    error: dict[str, Any] | None = None
    values: str | None = None
    state: str | None = None
    interrupts: str | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """The pending run that a finished run was in the way of."""

    run_id: UUID
    pool: str


def finish(conn: Connection, ends: Sequence[Finish], *, owner: str) -> dict[UUID, Next | None]:
    """End runs of one owner and store their threads' state; runs not in the answer were not ours.

    The caller holds the threads' locks (`threads.lock_all`). Temporary runs go with their thread.
    """
    done: dict[UUID, Next | None] = {}
    kept = [end for end in ends if not end.run.temporary]
    gone = [end.run for end in ends if end.run.temporary]
    if kept:
        rows = conn.execute(
            FINISH,
            {
                "owner": owner,
                "run_ids": [end.run.run_id for end in kept],
                "attempts": [end.run.attempt for end in kept],
                "statuses": [str(end.status) for end in kept],
                "errors": [None if end.error is None else dumps(end.error) for end in kept],
                "thread_statuses": [str(end.thread_status) for end in kept],
                "values": [end.values for end in kept],
                "states": [end.state for end in kept],
                "interrupts": [end.interrupts for end in kept],
                "configs": [_thread_config(end.run.kwargs) for end in kept],
            },
        )
        for row in rows:
            done[row.run_id] = None if row.next_run_id is None else Next(row.next_run_id, row.pool)
    if gone:
        rows = conn.execute(
            DELETE_TEMPORARY,
            {"owner": owner, "run_ids": [r.run_id for r in gone], "attempts": [r.attempt for r in gone]},
        )
        thread_ids = {row.thread_id for row in rows}
        done.update((run.run_id, None) for run in gone if run.thread_id in thread_ids)
    return done


def _thread_config(kwargs: Mapping[str, Any]) -> str:
    config = {key: value for key, value in kwargs["config"].items() if key != "metadata"}
    return dumps({**config, "configurable": {}})


FINISH = text(
    """
WITH f AS (
    SELECT * FROM unnest(
        CAST(:run_ids AS uuid[]), CAST(:attempts AS bigint[]), CAST(:statuses AS text[]),
        CAST(:errors AS text[]), CAST(:thread_statuses AS text[]), CAST(:values AS text[]),
        CAST(:states AS text[]), CAST(:interrupts AS text[]), CAST(:configs AS text[])
    ) AS f(run_id, attempt, status, error, thread_status, new_values, new_state, new_interrupts, config)
), ended AS (
    UPDATE run r SET status = f.status, error = CAST(f.error AS json), ended_at = now(),
        updated_at = now(), lease_until = NULL
    FROM f
    WHERE r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = :owner AND r.status = 'running'
    RETURNING r.run_id, r.deployment_id, r.thread_id
), waiting AS (
    SELECT e.run_id, n.run_id AS next_run_id, n.pool
    FROM ended e LEFT JOIN LATERAL (
        SELECT run_id, pool FROM run o
        WHERE o.deployment_id = e.deployment_id AND o.thread_id = e.thread_id
          AND o.status IN ('pending', 'running') AND o.run_id <> e.run_id
        ORDER BY o.created_seq LIMIT 1) n ON true
), kept AS (
    UPDATE thread t SET
        status = CASE WHEN w.next_run_id IS NULL THEN f.thread_status ELSE 'busy' END,
        values = CASE WHEN f.new_values IS NULL THEN t.values ELSE CAST(f.new_values AS json) END,
        state = CASE WHEN f.new_state IS NULL THEN t.state ELSE CAST(f.new_state AS json) END,
        interrupts = CASE WHEN f.new_interrupts IS NULL THEN coalesce(t.interrupts, CAST('{}' AS json))
                          ELSE CAST(f.new_interrupts AS json) END,
        error = CAST(f.error AS json), config = CAST(f.config AS json),
        updated_at = now(), state_updated_at = now()
    FROM ended e JOIN f ON f.run_id = e.run_id JOIN waiting w ON w.run_id = e.run_id
    WHERE t.deployment_id = e.deployment_id AND t.thread_id = e.thread_id
)
SELECT run_id, next_run_id, pool FROM waiting
"""
)

DELETE_TEMPORARY = text(
    """
DELETE FROM thread t USING run r, unnest(CAST(:run_ids AS uuid[]), CAST(:attempts AS bigint[])) AS f(run_id, attempt)
WHERE r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = :owner AND r.status = 'running'
  AND t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
RETURNING t.thread_id
"""
)


def give_back(
    conn: Connection, run: Claimed, *, delay_seconds: float, death: str | None, refund: bool = False
) -> bool:
    """Return a run to the queue for another attempt; False when it is no longer the owner's.

    `refund` is for a runner that stops in good order: the attempt does not count against the limit.
    """
    done = conn.execute(
        text(
            "UPDATE run SET status = 'pending', owner = NULL, lease_until = NULL, updated_at = now(),"
            " not_before = now() + make_interval(secs => :delay), rung_at = now(), rings = 0,"
            " last_death = :death, deaths = deaths + :died"
            " WHERE run_id = :run_id AND attempt = :attempt AND owner = :owner AND status = 'running'"
        ),
        {
            "run_id": run.run_id,
            "attempt": run.attempt,
            "owner": run.owner,
            "delay": delay_seconds,
            "death": death,
            "died": 0 if refund else 1,
        },
    )
    return done.rowcount == 1


# --- rolling back and going on ---------------------------------------------------------------------


def remove(conn: Connection, run: Claimed) -> bool:
    """Delete a running run's row: the first step of a rollback; False when it is not the owner's."""
    gone = conn.execute(
        text(
            "DELETE FROM run WHERE run_id = :run_id AND attempt = :attempt AND owner = :owner"
            " AND status = 'running'"
        ),
        {"run_id": run.run_id, "attempt": run.attempt, "owner": run.owner},
    )
    return gone.rowcount == 1


def next_of(conn: Connection, deployment_id: UUID, thread_id: UUID) -> Next | None:
    """The run of a thread whose turn it is."""
    row = conn.execute(
        text(
            "SELECT run_id, pool FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
            " AND status = 'pending' ORDER BY created_seq LIMIT 1"
        ),
        {"deployment_id": deployment_id, "thread_id": thread_id},
    ).one_or_none()
    return None if row is None else Next(row.run_id, row.pool)


# --- upkeep --------------------------------------------------------------------------------------


def unheard(conn: Connection, *, limit: int = 200) -> list[Next]:
    """Pending runs whose turn it is and whose last ring went unheard; each is marked as rung again."""
    rows = conn.execute(
        text(
            """
UPDATE run SET rung_at = now(), rings = rings + 1 WHERE run_id IN (
    SELECT r.run_id FROM run r WHERE r.status = 'pending' AND r.cancel_requested IS NULL
      AND (r.not_before IS NULL OR r.not_before <= now())
      AND (r.rung_at IS NULL OR r.rung_at < now() - make_interval(secs => least(2 * (r.rings + 1), 30)))
      AND NOT EXISTS (SELECT 1 FROM run e WHERE e.deployment_id = r.deployment_id
          AND e.thread_id = r.thread_id AND e.created_seq < r.created_seq
          AND e.status IN ('pending', 'running'))
    ORDER BY r.run_id LIMIT :limit FOR UPDATE SKIP LOCKED)
RETURNING run_id, pool"""
        ),
        {"limit": limit},
    )
    return [Next(row.run_id, row.pool) for row in rows]


def abandoned(conn: Connection, *, limit: int = 100) -> list[Mapping[str, Any]]:
    """Running runs whose lease has run out, by thread; look only, the caller locks one at a time."""
    return list(
        conn.execute(
            text(
                "SELECT run_id, deployment_id, thread_id FROM run WHERE status = 'running'"
                " AND lease_until < now() ORDER BY lease_until LIMIT :limit"
            ),
            {"limit": limit},
        ).mappings()
    )


def release_abandoned(conn: Connection, run_id: UUID, *, max_attempts: int) -> bool:
    """Put a run whose lease has run out back in the queue; False when it must end instead."""
    done = conn.execute(
        text(
            "UPDATE run SET status = 'pending', owner = NULL, lease_until = NULL, updated_at = now(),"
            " deaths = deaths + 1, rung_at = now(), rings = 0"
            " WHERE run_id = :run_id AND status = 'running' AND lease_until < now()"
            " AND deaths + 1 < :max_attempts AND cancel_requested IS NULL AND deadline_at > now()"
        ),
        {"run_id": run_id, "max_attempts": max_attempts},
    )
    return done.rowcount == 1


def take_over(conn: Connection, run_id: UUID, *, owner: str) -> Claimed | None:
    """Own a run whose lease has run out, in order to end it; the caller holds the thread's lock."""
    row = (
        conn.execute(
            text(
                """
UPDATE run SET owner = :owner, attempt = attempt + 1, seq_reserved = seq_reserved + :reserved,
    lease_until = now() + interval '30 seconds', updated_at = now()
WHERE run_id = :run_id AND status = 'running' AND lease_until < now()
RETURNING run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, attempt,
    seq_reserved - :reserved AS floor, temporary, metadata, CAST(input AS text) AS input, kwargs, last_death, deaths,
    extract(epoch FROM deadline_at - now()) AS seconds_left, cancel_requested"""
            ),
            {"run_id": run_id, "owner": owner, "reserved": RESERVED},
        )
        .mappings()
        .one_or_none()
    )
    return None if row is None else _claimed(row, owner)
