"""Who executes a run: claims, leases, the end, and what upkeep does for runs whose owner is gone.

A claim raises `attempt` and takes a lease; everything the owner writes later names both, so that an owner
who lost the lease changes nothing. Locks are always taken thread first, then run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text

from shared import checkpoints, threads, webhooks
from shared.database import Driver, Row, dumps, query
from shared.errors import Fenced
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
    timeout_seconds: float | None = None  # its deployment's own limit
    cancel_requested: str | None = None
    key_id: str = ""
    limited: bool = False  # its deployment may run only so many at a time (shared/limits.py)
    key_limited: bool = False  # and so may its key (shared/key_limits.py)


Stored = list[bytes] | None  # a thread's newest checkpoint, as its graph host wants it

_CLAIM = """
UPDATE run r SET status = 'running', attempt = attempt + 1, owner = %(owner)s,
    lease_until = now() + make_interval(secs => %(lease)s), updated_at = now(),
    started_at = coalesce(started_at, now()),
    deadline_at = coalesce(
        deadline_at, now() + make_interval(secs => coalesce(timeout_seconds, %(run_timeout)s))),
    seq_reserved = seq_reserved + %(reserved)s
WHERE {which} AND r.status = 'pending' AND r.cancel_requested IS NULL
  AND (CAST(%(pool)s AS text) IS NULL OR r.pool = %(pool)s)
  AND (r.not_before IS NULL OR r.not_before <= now())
  AND NOT EXISTS (
    SELECT 1 FROM run e WHERE e.deployment_id = r.deployment_id AND e.thread_id = r.thread_id
      AND e.created_seq < r.created_seq AND e.status IN ('pending', 'running'))
RETURNING run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, attempt,
    seq_reserved - %(reserved)s AS floor, temporary, metadata, CAST(input AS text) AS input, kwargs,
    last_death, deaths, timeout_seconds, extract(epoch FROM deadline_at - now()) AS seconds_left, key_id
"""
# Runs of these are claimed by shared/limits.py and shared/key_limits.py: here they would be in others' way.
_FREE_DEPLOYMENT = (
    "{0}.deployment_id NOT IN (SELECT id FROM deployment WHERE max_concurrent_runs IS NOT NULL)"
)
_FREE_KEY = "{0}.key_id NOT IN (SELECT id FROM api_key WHERE max_concurrent_runs IS NOT NULL)"


def free_deployment(alias: str) -> str:
    """A run, called so in the statement, of a deployment without limit."""
    return _FREE_DEPLOYMENT.format(alias)


def unlimited(alias: str) -> str:
    """The same, and created with a key without limit."""
    return f"{free_deployment(alias)} AND {_FREE_KEY.format(alias)}"


# A pending run, called so in the statement, that nothing but room keeps from starting.
_STARTABLE = """{0}.cancel_requested IS NULL AND ({0}.not_before IS NULL OR {0}.not_before <= now())
    AND NOT EXISTS (SELECT 1 FROM run e WHERE e.deployment_id = {0}.deployment_id
      AND e.thread_id = {0}.thread_id AND e.created_seq < {0}.created_seq
      AND e.status IN ('pending', 'running'))"""


def startable(alias: str) -> str:
    return _STARTABLE.format(alias)


# Who waits in a pool: each pair of deployment and key once. Found by leaping over the index, one leap a pair,
# however many runs wait behind each.
LANES = """
    (SELECT l.deployment_id, l.key_id FROM run l WHERE l.status = 'pending' AND l.pool = {pool}
     ORDER BY l.deployment_id, l.key_id LIMIT 1)
    UNION ALL
    SELECT n.deployment_id, n.key_id FROM lane l CROSS JOIN LATERAL (
        SELECT m.deployment_id, m.key_id FROM run m WHERE m.status = 'pending' AND m.pool = {pool}
          AND (m.deployment_id, m.key_id) > (l.deployment_id, l.key_id)
        ORDER BY m.deployment_id, m.key_id LIMIT 1) n
"""
# Round robin: every key's oldest run, then every key's second; of equals first who was served longest ago.
# A few more are looked at than are wanted, because other runners may be taking the same ones. A key with a
# limit has no more turns than room.
_IN_TURNS = """r.run_id = ANY(ARRAY(
    WITH RECURSIVE lane AS ({lanes}), ranked AS (
        SELECT c.run_id, l.key_id, row_number() OVER (PARTITION BY l.key_id ORDER BY c.run_id) AS turn
        FROM lane l CROSS JOIN LATERAL (
            SELECT w.run_id FROM run w WHERE w.status = 'pending' AND w.pool = %(pool)s
              AND w.deployment_id = l.deployment_id AND w.key_id = l.key_id AND {startable}
            ORDER BY w.run_id LIMIT %(limit)s + 8) c
        WHERE {of}
    ), chosen AS (
        SELECT run_id, row_number() OVER (ORDER BY turn,
            coalesce(array_position(CAST(%(served)s AS text[]), key_id), 0), run_id) AS place
        FROM ranked WHERE turn <= coalesce((CAST(%(rooms)s AS bigint[]))[
            array_position(CAST(%(limited_keys)s AS text[]), key_id)], %(limit)s + 8)
        ORDER BY place LIMIT %(limit)s + 8
    )
    SELECT w.run_id FROM run w JOIN chosen c ON c.run_id = w.run_id WHERE w.status = 'pending'
    ORDER BY c.place LIMIT %(limit)s FOR UPDATE OF w SKIP LOCKED))"""


def _in_turns(of: str) -> str:
    lanes = LANES.format(pool="%(pool)s")
    return _CLAIM.format(which=_IN_TURNS.format(lanes=lanes, startable=startable("w"), of=of))


# An array is made once: a subquery with LIMIT and FOR UPDATE may be run again for every row of a join.
_WAITING = """r.run_id = ANY(ARRAY(
            SELECT w.run_id FROM run w WHERE w.status = 'pending' AND w.pool = %(pool)s AND {which}
              AND {startable}
            ORDER BY w.run_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED))"""
_UNHEARD = "coalesce(w.not_before, w.created_at) < now() - make_interval(secs => %(waited)s)"
CLAIM = _CLAIM.format(which=f"r.run_id = ANY(%(ids)s) AND {unlimited('r')}")
CLAIM_WHATEVER_KEY = _CLAIM.format(which=f"r.run_id = ANY(%(ids)s) AND {free_deployment('r')}")
CLAIM_WAITING = _CLAIM.format(
    which=_WAITING.format(which=f"{unlimited('w')} AND {_UNHEARD}", startable=startable("w"))
)
CLAIM_IN_TURNS = _in_turns(unlimited("l"))
CLAIM_LIMITED = _in_turns("l.deployment_id = %(deployment_id)s")
CLAIM_OF_KEY = _in_turns(f"l.key_id = %(key_id)s AND {free_deployment('l')}")


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which conditions an owner claims."""

    owner: str
    lease_seconds: float
    run_timeout_seconds: float
    pool: str | None = None  # only runs of this pool
    some_key_is_limited: bool = True  # False: nobody need look whether a run's key is


def claim(conn: Driver, run_ids: Sequence[UUID], terms: Terms) -> list[tuple[Claimed, Stored]]:
    """Take pending runs whose turn it is, with their threads' newest checkpoints.

    Runs that others have are simply not in the answer. Raises UniqueViolation when a run of the same
    thread is running after all (the unique index is the guarantee, the order of creation only the rule):
    then claim one by one.
    """
    statement = CLAIM if terms.some_key_is_limited else CLAIM_WHATEVER_KEY
    return take(conn, statement, terms, {"ids": list(run_ids)})


def claim_waiting(
    conn: Driver, pool: str, terms: Terms, *, limit: int, waited_seconds: float
) -> list[tuple[Claimed, Stored]]:
    """The same for runs nobody rang for (a lost message, Redis away) that have waited this long."""
    return take(conn, CLAIM_WAITING, terms, {"pool": pool, "limit": limit, "waited": waited_seconds})


def claim_in_turns(
    conn: Driver, pool: str, terms: Terms, *, limit: int, served: Sequence[str]
) -> list[tuple[Claimed, Stored]]:
    """Take waiting runs in turns between keys, whoever rang: for a runner that cannot take all.

    `served` are the keys it took runs of, the longest ago first. Fewer than `limit`: no more wait.
    """
    which = {"pool": pool, "limit": limit, "served": list(served), "rooms": [], "limited_keys": []}
    return take(conn, CLAIM_IN_TURNS, terms, which)


def take(conn: Driver, statement: str, terms: Terms, which: dict[str, Any]) -> list[tuple[Claimed, Stored]]:
    """Claim by one of the statements above."""
    parameters = {
        "owner": terms.owner,
        "lease": terms.lease_seconds,
        "run_timeout": terms.run_timeout_seconds,
        "reserved": RESERVED,
        "pool": terms.pool,
        **which,
    }
    claimed = [_claimed(row, terms.owner) for row in query(conn, statement, parameters)]
    keys = [(run.deployment_id, run.thread_id) for run in claimed if not run.temporary]
    stored = checkpoints.newest(conn, keys) if keys else {}
    return [(run, stored.get((run.deployment_id, run.thread_id))) for run in claimed]


def _claimed(row: Row, owner: str) -> Claimed:
    return Claimed(
        **{
            **row,
            "owner": owner,
            "input": (row["input"] or "null").encode(),
            "seconds_left": float(row["seconds_left"]),
        }
    )


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


def hold(conn: Connection, run: Claimed) -> bool:
    """Keep the run as it is until the transaction ends; False when it is not its owner's any more."""
    query = text(
        "SELECT 1 FROM run WHERE run_id = :run_id AND owner = :owner AND attempt = :attempt"
        " AND status = 'running' FOR SHARE"
    )
    key = {"run_id": run.run_id, "owner": run.owner, "attempt": run.attempt}
    return conn.execute(query, key).first() is not None


@dataclass(frozen=True, slots=True)
class Finish:
    """How a run ended. JSON texts are stored as they are; `values` None keeps the thread's state."""

    run: Claimed
    status: RunStatus
    thread_status: ThreadStatus | None  # None: the thread is left as it was before the run
    error: dict[str, Any] | None = None
    values: str | None = None
    state: str | None = None
    interrupts: str | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """The pending run that a finished run was in the way of."""

    run_id: UUID
    pool: str


def finish(conn: Connection | Driver, ends: Sequence[Finish], *, owner: str) -> dict[UUID, Next | None]:
    """End runs of one owner and store their threads' state. Temporary runs go with their thread.

    The answer says what was ended and what comes next in each thread; runs not in it were not ours. The
    caller holds the threads' locks (`threads.lock_all`): only then does the statement see every run that
    was created meanwhile. An end waits for the disk, whatever the connection does otherwise.
    """
    done: dict[UUID, Next | None] = {}
    kept = [end for end in ends if not end.run.temporary]
    silent = [end for end in ends if end.run.temporary and not end.run.kwargs.get("webhook")]
    told_of = [end for end in ends if end.run.temporary and end.run.kwargs.get("webhook")]
    if kept:
        parameters = {
            "owner": owner,
            "run_ids": [end.run.run_id for end in kept],
            "attempts": [end.run.attempt for end in kept],
            "statuses": [str(end.status) for end in kept],
            "errors": [None if end.error is None else dumps(end.error) for end in kept],
            "thread_statuses": [end.thread_status and str(end.thread_status) for end in kept],
            "values": [end.values for end in kept],
            "states": [end.state for end in kept],
            "interrupts": [end.interrupts for end in kept],
            "configs": [_thread_config(end.run.kwargs) for end in kept],
        }
        for row in query(conn, FINISH, parameters):
            waiting = row["next_run_id"]
            done[row["run_id"]] = None if waiting is None else Next(waiting, row["pool"])
        told = [end.run.run_id for end in kept if end.run.kwargs.get("webhook") and end.run.run_id in done]
        if told:
            webhooks.record(conn, told)
    for statement, ended in ((DELETE_TEMPORARY, silent), (DELETE_TOLD, told_of)):
        if ended:
            done.update((row["run_id"], None) for row in query(conn, statement, _temporary(ended, owner)))
    return done


def _temporary(ends: Sequence[Finish], owner: str) -> dict[str, Any]:
    return {
        "owner": owner,
        "run_ids": [end.run.run_id for end in ends],
        "attempts": [end.run.attempt for end in ends],
        "statuses": [str(end.status) for end in ends],
        "errors": [None if end.error is None else dumps(end.error) for end in ends],
        "values": [end.values for end in ends],
    }


def _thread_config(kwargs: Mapping[str, Any]) -> str:
    config = {key: value for key, value in kwargs["config"].items() if key != "metadata"}
    return dumps({**config, "configurable": {}})


FINISH = """
WITH f AS (
    SELECT * FROM unnest(
        CAST(%(run_ids)s AS uuid[]), CAST(%(attempts)s AS bigint[]), CAST(%(statuses)s AS text[]),
        CAST(%(errors)s AS text[]), CAST(%(thread_statuses)s AS text[]), CAST(%(values)s AS text[]),
        CAST(%(states)s AS text[]), CAST(%(interrupts)s AS text[]), CAST(%(configs)s AS text[])
    ) AS f(run_id, attempt, status, error, thread_status, new_values, new_state, new_interrupts, config)
), ended AS (
    UPDATE run r SET status = f.status, error = CAST(f.error AS json), ended_at = now(),
        updated_at = now(), lease_until = NULL
    FROM f
    WHERE r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = %(owner)s AND r.status = 'running'
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
        status = CASE WHEN w.next_run_id IS NULL THEN coalesce(f.thread_status, t.rest_status, 'idle')
                      ELSE 'busy' END,
        rest_status = coalesce(f.thread_status, t.rest_status),
        values = CASE WHEN f.new_values IS NULL THEN t.values ELSE CAST(f.new_values AS json) END,
        state = CASE WHEN f.new_state IS NULL THEN t.state ELSE CAST(f.new_state AS json) END,
        interrupts = CASE WHEN f.new_interrupts IS NULL THEN coalesce(t.interrupts, CAST('{}' AS json))
                          ELSE CAST(f.new_interrupts AS json) END,
        error = CASE WHEN f.thread_status IS NULL THEN t.rest_error ELSE CAST(f.error AS json) END,
        rest_error = CASE WHEN f.thread_status IS NULL THEN t.rest_error ELSE CAST(f.error AS json) END,
        config = CASE WHEN f.thread_status IS NULL THEN t.config ELSE CAST(f.config AS json) END,
        updated_at = now(),
        state_updated_at = CASE WHEN f.thread_status IS NULL THEN t.state_updated_at ELSE now() END
    FROM ended e JOIN f ON f.run_id = e.run_id JOIN waiting w ON w.run_id = e.run_id
    WHERE t.deployment_id = e.deployment_id AND t.thread_id = e.thread_id
)
SELECT run_id, next_run_id, pool, set_config('synchronous_commit', 'on', true) FROM waiting
"""

DELETE_TEMPORARY = """
DELETE FROM thread t
USING run r, unnest(CAST(%(run_ids)s AS uuid[]), CAST(%(attempts)s AS bigint[])) AS f(run_id, attempt)
WHERE r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = %(owner)s AND r.status = 'running'
  AND t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
RETURNING f.run_id, set_config('synchronous_commit', 'on', true)
"""

# The same, with a word to those who are told of it: one statement, since it may be a transaction of its own.
DELETE_TOLD = f"""
WITH f AS (
    SELECT * FROM unnest(
        CAST(%(run_ids)s AS uuid[]), CAST(%(attempts)s AS bigint[]), CAST(%(statuses)s AS text[]),
        CAST(%(errors)s AS text[]), CAST(%(values)s AS text[])
    ) AS f(run_id, attempt, status, error, new_values)
), gone AS (
    DELETE FROM thread t USING run r, f
    WHERE r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = %(owner)s AND r.status = 'running'
      AND t.deployment_id = r.deployment_id AND t.thread_id = r.thread_id
    RETURNING f.run_id
), told AS ({webhooks.RECORD_TEMPORARY})
SELECT run_id, set_config('synchronous_commit', 'on', true) FROM gone
"""


def ended_before(conn: Driver, runs: Sequence[Claimed], *, owner: str) -> set[UUID]:
    """Which of these runs have ended as this owner's, or are gone: for a commit whose answer was lost."""
    rows = query(
        conn,
        """
SELECT f.run_id FROM unnest(CAST(%(run_ids)s AS uuid[]), CAST(%(attempts)s AS bigint[])) AS f(run_id, attempt)
LEFT JOIN run r ON r.run_id = f.run_id
WHERE r.run_id IS NULL OR (r.owner = %(owner)s AND r.attempt = f.attempt
    AND r.status NOT IN ('pending', 'running'))""",
        {
            "owner": owner,
            "run_ids": [run.run_id for run in runs],
            "attempts": [run.attempt for run in runs],
        },
    )
    return {row["run_id"] for row in rows}


def give_back(
    conn: Connection, run: Claimed, *, delay_seconds: float, death: str | None, refund: bool = False
) -> bool:
    """Return a run to the queue for another attempt.

    False when it is no longer the owner's, or somebody wants it stopped: then it must be ended instead.
    `refund` is for a runner that stops in good order: the attempt does not count against the limit.
    """
    done = conn.execute(
        text(
            "UPDATE run SET status = 'pending', owner = NULL, lease_until = NULL, updated_at = now(),"
            " not_before = now() + make_interval(secs => :delay), rung_at = now(), rings = 0,"
            " last_death = :death, deaths = deaths + :died"
            " WHERE run_id = :run_id AND attempt = :attempt AND owner = :owner AND status = 'running'"
            " AND cancel_requested IS NULL"
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


def roll_back(conn: Connection, run: Claimed, *, error: dict[str, Any]) -> Next | None:
    """Undo a running run as if it had never been, but for the thread's `error`; raises Fenced.

    The answer is the run that comes next in the thread.
    """
    threads.lock(conn, run.deployment_id, run.thread_id)
    if run.kwargs.get("webhook"):
        webhooks.record_going(conn, [run.run_id], status=webhooks.ROLLBACK, error=error)
    threads.restore_metadata(conn, run.run_id)
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
    threads.settle(conn, run.deployment_id, run.thread_id, error=error)
    return next_of(conn, run.deployment_id, run.thread_id)


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


def unheard(conn: Connection, *, limit: int = 200) -> list[Next]:
    """Pending runs whose turn it is and whose last ring went unheard; each is marked as rung again."""
    rows = conn.execute(
        text(
            f"""
UPDATE run SET rung_at = now(), rings = rings + 1 WHERE run_id = ANY(ARRAY(
    SELECT r.run_id FROM run r WHERE r.status = 'pending' AND r.cancel_requested IS NULL
      AND {unlimited("r")} AND (r.not_before IS NULL OR r.not_before <= now())
      AND (r.rung_at IS NULL OR r.rung_at < now() - make_interval(secs => least(2 * (r.rings + 1), 30)))
      AND NOT EXISTS (SELECT 1 FROM run e WHERE e.deployment_id = r.deployment_id
          AND e.thread_id = r.thread_id AND e.created_seq < r.created_seq
          AND e.status IN ('pending', 'running'))
    ORDER BY r.run_id LIMIT :limit FOR UPDATE SKIP LOCKED))
RETURNING run_id, pool"""
        ),
        {"limit": limit},
    )
    return [Next(row.run_id, row.pool) for row in rows]


def abandoned(conn: Connection, *, limit: int = 100) -> list[RowMapping]:
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
    seq_reserved - :reserved AS floor, temporary, metadata, CAST(input AS text) AS input, kwargs, last_death,
    deaths, timeout_seconds, extract(epoch FROM deadline_at - now()) AS seconds_left, cancel_requested"""
            ),
            {"run_id": run_id, "owner": owner, "reserved": RESERVED},
        )
        .mappings()
        .one_or_none()
    )
    return None if row is None else _claimed(row, owner)
