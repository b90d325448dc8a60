"""Claims runs: leases, giving a run back to the queue, and taking it over when its owner has died.

A claim raises `attempt` and takes a lease; everything the owner writes later names both, so that an owner
who lost the lease changes nothing. Locks are always taken thread first, then run. Which runs may be claimed is
said in `shared/runs/eligibility.py`, how they end in `shared/runs/finish.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text

from shared.eventlog.events import RESERVED
from shared.infra.postgres import Driver, Row, query
from shared.infra.routines import Routine
from shared.runs.eligibility import (
    CLAIM,
    CLAIM_ROUND_ROBIN,
    CLAIM_WAITING,
    CLAIMED_COLUMNS,
    NOTIFIED_FIRST,
    Next,
)
from shared.threads import checkpoint_reads, checkpoints


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
    quarantine: int
    seconds_left: float
    timeout_seconds: float | None = None  # its deployment's own limit
    cancel_requested: str | None = None
    key_id: str = ""
    limited: bool = False  # its deployment may run only so many at a time (shared/runs/deployment_limits.py)
    key_limited: bool = False  # and so may its key (shared/runs/key_limits.py)
    depth: int = 0  # how many runs are above it (shared/runs/nesting.py)
    has_checkpoint: bool = False  # an earlier attempt got so far


Stored = list[bytes] | None  # a thread's newest checkpoint, as its graph host wants it


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which conditions an owner claims."""

    owner: str
    lease_seconds: float
    run_timeout_seconds: float
    pool: str | None = None  # only runs of this pool
    some_key_is_limited: bool = True  # False: nobody need look whether a run's key is


def _named(columns: Mapping[str, str], kind: str) -> dict[str, str]:
    """Columns of an answer, named as none of a table is."""
    return {f"{kind}_{name}": type for name, type in columns.items()}


_CLAIMED, _STORED = _named(CLAIMED_COLUMNS, "claimed"), _named(checkpoint_reads.NEWEST_COLUMNS, "stored")
# Claimed runs, and after them the newest checkpoints of their threads. They are read when the runs are claimed: the
# run before has ended by then.
CLAIM_RUNS = Routine(
    name="claim_runs_1",
    parameters={
        "ids": "uuid[]",
        "owner": "text",
        "lease": "float8",
        "run_timeout": "float8",
        "reserved": "bigint",
        "pool": "text",
        "some_key_is_limited": "boolean",
    },
    returns=f"TABLE ({', '.join(f'{name} {type}' for name, type in (_CLAIMED | _STORED).items())})",
    declares="deployments uuid[] := '{}';\n    threads uuid[] := '{}';",
    body=f"""
FOR {", ".join(_CLAIMED)} IN {CLAIM}
LOOP
    RETURN NEXT;
    IF NOT claimed_temporary THEN
        deployments := deployments || claimed_deployment_id;
        threads := threads || claimed_thread_id;
    END IF;
END LOOP;
IF cardinality(threads) > 0 THEN
    claimed_run_id := NULL;
    FOR {", ".join(_STORED)} IN {checkpoint_reads.NEWEST.replace("%(deployments)s", "deployments").replace("%(threads)s", "threads")}
    LOOP
        RETURN NEXT;
    END LOOP;
END IF;""",
)
_CLAIM_RUNS = f"SELECT * FROM {CLAIM_RUNS.call}"


def claim(conn: Driver, run_ids: Sequence[UUID], terms: Terms) -> list[tuple[Claimed, Stored]]:
    """Take eligible pending runs, with their threads' newest checkpoints, in one call.

    Runs that others have are simply not in the answer. Raises UniqueViolation when a run of the same
    thread is running after all (the unique index is the guarantee, the order of creation only the rule):
    then claim one by one.
    """
    which = {"ids": list(run_ids), "some_key_is_limited": terms.some_key_is_limited}
    parameters = CLAIM_RUNS.values({**_conditions(terms), **which})
    claimed: list[Row] = []
    stored = []
    own: Any = conn  # the driver's types know literal statements only
    for row in own.execute(_CLAIM_RUNS, parameters):
        if row[0] is None:
            stored.append(row[len(_CLAIMED) :])
        else:
            claimed.append(dict(zip(CLAIMED_COLUMNS, row, strict=False)))
    return _taken(conn, terms, claimed, checkpoint_reads.by_thread(stored))


def claim_waiting(
    conn: Driver, pool: str, terms: Terms, *, limit: int, waited_seconds: float
) -> list[tuple[Claimed, Stored]]:
    """The same for runs whose notification was lost (a message, or all of Redis) that have waited this long."""
    return take(conn, CLAIM_WAITING, terms, {"pool": pool, "limit": limit, "waited": waited_seconds})


def claim_round_robin(
    conn: Driver, pool: str, terms: Terms, *, limit: int, served: Sequence[str], depth: int = 0
) -> list[tuple[Claimed, Stored]]:
    """Take waiting runs of one depth round robin between keys, notified of or not: for a runner that cannot take all.

    `served` are the keys it took runs of, the longest ago first. Fewer than `limit`: no more wait.
    """
    which = {
        "pool": pool,
        "limit": limit,
        "served": list(served),
        "capacities": [],
        "limited_keys": [],
        "depth": depth,
    }
    return take(conn, CLAIM_ROUND_ROBIN, terms, which)


def is_deleted(conn: Connection, run_id: UUID) -> bool:
    """Whether there is no such run any more."""
    found = conn.execute(text("SELECT FROM run WHERE run_id = :id"), {"id": run_id})
    return found.one_or_none() is None


def take(conn: Driver, statement: str, terms: Terms, which: dict[str, Any]) -> list[tuple[Claimed, Stored]]:
    """Claim by one of the statements of `shared/runs/eligibility.py`."""
    rows = list(query(conn, statement, {**_conditions(terms), **which}))
    keys = [(row["deployment_id"], row["thread_id"]) for row in rows if not row["temporary"]]
    return _taken(conn, terms, rows, checkpoint_reads.newest(conn, keys) if keys else {})


def _conditions(terms: Terms) -> dict[str, Any]:
    return {
        "owner": terms.owner,
        "lease": terms.lease_seconds,
        "run_timeout": terms.run_timeout_seconds,
        "reserved": RESERVED,
        "pool": terms.pool,
    }


def _taken(
    conn: Driver, terms: Terms, rows: Sequence[Row], stored: Mapping[checkpoint_reads.Key, list[bytes]]
) -> list[tuple[Claimed, Stored]]:
    again = [row["run_id"] for row in rows if row["attempt"] > 1]
    resumed = checkpoints.having_checkpoints(conn, again) if again else set()
    claimed = [_claimed(row, terms.owner, has_checkpoint=row["run_id"] in resumed) for row in rows]
    claimed.sort(key=lambda run: run.run_id)  # rows come as the plan finds them: the oldest is to start first
    return [(run, stored.get((run.deployment_id, run.thread_id))) for run in claimed]


def _claimed(row: Row, owner: str, *, has_checkpoint: bool = False) -> Claimed:
    return Claimed(
        **{
            **row,
            "owner": owner,
            "has_checkpoint": has_checkpoint,
            "input": (row["input"] or "null").encode(),
            "seconds_left": float(row["seconds_left"]),
        }
    )


@dataclass(frozen=True, slots=True)
class Hold:
    """What a renewal says of one run that is still its owner's: whether somebody wants it stopped."""

    attempt: int
    cancel_requested: str | None
    cancel_reason: str | None
    renewed: bool = True  # False: something had it locked just now


RENEW = text("""
WITH mine AS (
    SELECT run_id, attempt, cancel_requested, cancel_reason FROM run
    WHERE run_id = ANY(:ids) AND owner = :owner AND status = 'running' AND lease_until > now()
), free AS (
    SELECT run_id FROM run
    WHERE run_id = ANY(:ids) AND owner = :owner AND status = 'running' AND lease_until > now()
    FOR NO KEY UPDATE SKIP LOCKED
), renewed AS (
    UPDATE run SET lease_until = now() + make_interval(secs => :lease)
    WHERE run_id IN (SELECT run_id FROM free)
    RETURNING run_id, attempt, cancel_requested, cancel_reason, true AS renewed
)
SELECT * FROM renewed
UNION ALL
SELECT *, false FROM mine WHERE run_id NOT IN (SELECT run_id FROM renewed)""")


def renew(conn: Connection, run_ids: Sequence[UUID], *, owner: str, lease_seconds: float) -> dict[UUID, Hold]:
    """Prolong the leases of an owner's runs; runs not in the answer are no longer its own.

    A lease that has run out is not prolonged, even if nobody has taken the run over yet: an owner that was frozen
    must not go on where others are about to.

    Runs that are locked are left as they are, to be asked for again. A commit of checkpoints and ends locks many
    runs, in an order of its own: whoever waits for one of them while it has locked others is in a deadlock with it,
    which PostgreSQL ends after a second; and whoever waits for one keeps the leases of the others waiting.
    """
    rows = conn.execute(RENEW, {"ids": list(run_ids), "owner": owner, "lease": lease_seconds})
    return {
        row.run_id: Hold(row.attempt, row.cancel_requested, row.cancel_reason, row.renewed) for row in rows
    }


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
class Requeue:
    """A run that goes back to the queue for another attempt.

    `refund`: the attempt does not count against the limit. So it is when a runner stops in good order, and
    when a host died that other runs were on; `quarantine` is then how strictly the run is kept apart next.
    """

    run: Claimed
    delay_seconds: float = 0.0
    death: str | None = None
    refund: bool = False
    quarantine: int | None = None


def give_back(conn: Connection | Driver, returns: Sequence[Requeue]) -> set[UUID]:
    """Return runs to the queue; those that are back.

    Not back is what is no longer the owner's, or what somebody wants stopped: that must be ended instead.
    """
    parameters = {
        **_held([item.run for item in returns]),
        "delays": [item.delay_seconds for item in returns],
        "deaths": [item.death for item in returns],
        "died": [0 if item.refund else 1 for item in returns],
        "levels": [item.quarantine for item in returns],
    }
    return {row["run_id"] for row in query(conn, GIVE_BACK, parameters)}


def _held(runs: Sequence[Claimed]) -> dict[str, list[Any]]:
    """What tells whether runs are still their owner's, as columns."""
    return {
        "run_ids": [run.run_id for run in runs],
        "attempts": [run.attempt for run in runs],
        "owners": [run.owner for run in runs],
    }


MOST_ATTEMPTS = 50  # that a run remembers
LEASE_RAN_OUT = "its worker stopped renewing the lease"
ANSWER_LOST = "its worker never learned of it"
HANDED_OVER = "its worker stopped and handed it over"


def lost(reason: str) -> str:
    """In an UPDATE of running runs called r: their attempt is lost, for a reason that is SQL.

    While an attempt runs, `updated_at` is when it began: nothing else is written of it.
    """
    return f"""attempts = CASE WHEN jsonb_array_length(r.attempts) >= {MOST_ATTEMPTS} THEN r.attempts - 0
        ELSE coalesce(r.attempts, '[]') END || jsonb_build_object('attempt', r.attempt, 'worker', r.owner,
            'started_at', r.updated_at, 'ended_at', now(), 'reason', {reason})"""


_ABANDONED = lost(f"'{LEASE_RAN_OUT}'")

# Whoever gives a run back, or takes it from an owner, notifies of it after the commit.
_PENDING_AGAIN = f"status = 'pending', owner = NULL, lease_until = NULL, updated_at = now(), {NOTIFIED_FIRST}"

GIVE_BACK = f"""
UPDATE run r SET {_PENDING_AGAIN}, {lost(f"coalesce(f.death, '{HANDED_OVER}')")},
    not_before = now() + make_interval(secs => f.delay),
    last_death = f.death, deaths = r.deaths + f.died, quarantine = coalesce(f.level, r.quarantine)
FROM unnest(
    CAST(%(run_ids)s AS uuid[]), CAST(%(attempts)s AS bigint[]), CAST(%(owners)s AS text[]),
    CAST(%(delays)s AS float8[]), CAST(%(deaths)s AS text[]), CAST(%(died)s AS int[]),
    CAST(%(levels)s AS bigint[])
) AS f(run_id, attempt, owner, delay, death, died, level)
WHERE r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = f.owner AND r.status = 'running'
  AND r.cancel_requested IS NULL
RETURNING r.run_id
"""

Wish = tuple[str, str | None]  # what somebody wants done with a run: the action and the reason


def wishes_to_stop(conn: Driver, runs: Sequence[Claimed]) -> dict[UUID, Wish]:
    """Which of these runs, as far as they are still their owner's, somebody wants stopped, and how."""
    statement = """
SELECT r.run_id, r.cancel_requested, r.cancel_reason
FROM run r JOIN unnest(
    CAST(%(run_ids)s AS uuid[]), CAST(%(attempts)s AS bigint[]), CAST(%(owners)s AS text[])
) AS f(run_id, attempt, owner) ON r.run_id = f.run_id AND r.attempt = f.attempt AND r.owner = f.owner
WHERE r.status = 'running' AND r.cancel_requested IS NOT NULL"""
    rows = query(conn, statement, _held(runs))
    return {row["run_id"]: (row["cancel_requested"], row["cancel_reason"]) for row in rows}


SETTLED_SECONDS = 2.0  # a claim may still be on its way to whoever made it

GIVE_BACK_UNKNOWN = text(f"""
UPDATE run r SET {_PENDING_AGAIN}, {lost(f"'{ANSWER_LOST}'")}
WHERE owner = :owner AND status = 'running' AND run_id <> ALL(CAST(:known AS uuid[]))
  AND updated_at < now() - make_interval(secs => :settled) AND cancel_requested IS NULL
RETURNING run_id, pool
""")


def give_back_unknown(conn: Connection, *, owner: str, known: Sequence[UUID]) -> list[Next]:
    """Return an owner's runs to the queue that it knows nothing of; those to notify of.

    It claimed them by a statement that was carried out, but whose answer it never got.
    """
    rows = conn.execute(GIVE_BACK_UNKNOWN, {"owner": owner, "known": list(known), "settled": SETTLED_SECONDS})
    return [Next(row.run_id, row.pool) for row in rows]


SHORTEN = text("""
UPDATE run SET lease_until = now() + make_interval(secs => :lease)
WHERE status = 'running' AND lease_until > now() + make_interval(secs => 2 * :lease)
""")
SOONER = text("""
UPDATE run SET not_before = now()
WHERE status = 'pending' AND attempt > 0 AND not_before > now() + interval '1 minute'
""")


def shorten_leases(conn: Connection, *, lease_seconds: float) -> int:
    """Let no lease end later than a lease that begins now, and no further attempt wait for long; how many.

    When the database's clock is put back by an hour, a dead owner's lease would have an hour to go.
    """
    conn.execute(SOONER)
    return conn.execute(SHORTEN, {"lease": lease_seconds}).rowcount


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
            f"UPDATE run r SET {_PENDING_AGAIN}, deaths = deaths + 1, {_ABANDONED}"
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
                f"""
UPDATE run r SET {_ABANDONED}, owner = :owner, attempt = attempt + 1, seq_reserved = seq_reserved + :reserved,
    lease_until = now() + interval '30 seconds', updated_at = now()
WHERE run_id = :run_id AND status = 'running' AND lease_until < now()
RETURNING run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, attempt,
    seq_reserved - :reserved AS floor, temporary, metadata, CAST(input AS text) AS input, kwargs, last_death,
    deaths, quarantine, timeout_seconds, extract(epoch FROM deadline_at - now()) AS seconds_left,
    cancel_requested"""
            ),
            {"run_id": run_id, "owner": owner, "reserved": RESERVED},
        )
        .mappings()
        .one_or_none()
    )
    return None if row is None else _claimed(row, owner)
