"""Claims on runs: leases, returning a run to the queue, and taking it over when its owner has died.

A claim increments `attempt` and takes a lease. Every later write of the owner names the owner and the attempt, so an
owner that lost its lease changes nothing. Locks are always taken thread first, then run. `shared/sql/claim.sql` holds the
claims, `shared/sql/rules.sql` decides which runs are eligible, and `shared/runs/finish.py` ends runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text

from shared.eventlog.events import RESERVED
from shared.infra.arrays import Packed, bigints, doubles, texts, uuids
from shared.infra.postgres import Driver, Row
from shared.runs.backlog import NextRun
from shared.sql import Statement, statement
from shared.threads import checkpoint_reads


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run that this process owns until the lease expires, with everything needed to execute it."""

    run_id: UUID
    deployment_id: UUID
    thread_id: UUID
    assistant_id: UUID
    revision_id: UUID
    graph_id: str
    attempt: int
    owner: str
    floor: int  # events of this attempt are numbered from floor + 1
    temporary: bool
    metadata: dict[str, Any]
    input: bytes
    kwargs: dict[str, Any]
    joined: dict[str, Any] | None  # events that readers add to those of `kwargs`
    last_death: str | None
    deaths: int
    quarantine: int
    seconds_left: float
    timeout_seconds: float | None = None  # set if the deployment has its own run timeout
    cancel_requested: str | None = None
    key_id: str = ""
    limited: bool = False  # the deployment limits its concurrent runs (shared/runs/limits.py)
    key_limited: bool = False  # the key limits its concurrent runs (shared/runs/limits.py)
    is_replay: bool = False  # a case of a replay (shared/replays)
    depth: int = 0  # number of ancestor runs (shared/runs/nesting.py)
    has_checkpoint: bool = False  # an earlier attempt stored a checkpoint


Stored = list[bytes] | None  # a thread's newest checkpoint, in the format of the graph host


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a claim: the owner, its lease and timeout, and the pool."""

    owner: str
    lease_seconds: float
    run_timeout_seconds: float
    pool: str | None = None  # only runs of this pool
    some_key_is_limited: bool = True  # False: the claim skips the check for limited keys


# Fields of `Claimed` that are columns of a claimed run.
_COLUMNS = (
    "run_id", "deployment_id", "thread_id", "assistant_id", "revision_id", "graph_id", "attempt", "floor", "temporary",
    "metadata", "kwargs", "joined", "last_death", "deaths", "quarantine", "timeout_seconds",
)  # fmt: skip
SPARE = 8  # runs that a claim considers beyond its limit
# Reasons of lost attempts.
LEASE_RAN_OUT = "its worker stopped renewing the lease"
ANSWER_LOST = "its worker never learned of it"
HANDED_OVER = "its worker stopped and handed it over"

_NOTIFIED = statement("claim.notified")
_OVERLOOKED = statement("claim.overlooked")
_ROUND_ROBIN = statement("claim.round_robin")
_RENEW = statement("leases.renew")
_REQUEUE = statement("leases.requeue")
_REQUEUE_UNKNOWN = statement("leases.requeue_unknown")
_REQUEUE_ABANDONED = statement("leases.requeue_abandoned")
_CANCEL_REQUESTS = statement("leases.cancel_requests")
_TAKE_OVER = statement("leases.take_over")


def claim(conn: Driver, run_ids: Sequence[UUID], terms: Terms) -> list[tuple[Claimed, Stored]]:
    """Claim eligible pending runs in one call. Returns `(run, newest checkpoint of its thread)` pairs.

    Omits runs that another owner has claimed, and limited runs. Raises UniqueViolation if another run of the same
    thread is running in spite of the check for earlier runs: only the unique index guarantees one running run per
    thread. The caller then claims the runs one by one.
    """
    return _claim(
        conn, _NOTIFIED, terms, run_ids=uuids(run_ids), some_key_is_limited=terms.some_key_is_limited
    )


def claim_waiting(
    conn: Driver, pool: str, terms: Terms, *, limit: int, waited_seconds: float
) -> list[tuple[Claimed, Stored]]:
    """Claim runs that have waited for `waited_seconds` because their notification, or all of Redis, was lost."""
    in_pool = dataclasses.replace(terms, pool=pool)
    return _claim(conn, _OVERLOOKED, in_pool, limit=limit, waited_seconds=waited_seconds)


def claim_round_robin(
    conn: Driver,
    pool: str,
    terms: Terms,
    *,
    limit: int,
    served: Sequence[str],
    spare: int = SPARE,
    depth: int = 0,
    deployment_id: UUID | None = None,
    key_id: str | None = None,
    capacities: Mapping[str, int] = MappingProxyType({}),
) -> list[tuple[Claimed, Stored]]:
    """Claim pending runs of one depth round robin between keys, for a runner without capacity for all of them.

    Includes runs without a notification. `served` lists the keys whose runs the runner has claimed, least recent
    first. Claims from the queue of a limited deployment or key if one is named, else from all unlimited queues. The
    caller has locked the row of a limited one. `capacities` holds the number of runs that each limited key may start.

    Other runners may be claiming the first runs at the same time. They are skipped, and later runs are claimed instead,
    but only of the first `limit + spare`. If the result is shorter than `limit`, no other of these runs is eligible.
    """
    return _claim(
        conn,
        _ROUND_ROBIN,
        dataclasses.replace(terms, pool=pool),
        limit=limit,
        spare=spare,
        depth=depth,
        deployment_id=deployment_id,
        key_id=key_id,
        served_keys=texts(served),
        limited_keys=texts(list(capacities)),
        capacities=bigints(list(capacities.values())),
    )


def _claim(
    conn: Driver, statement: Statement, terms: Terms, **parameters: Any
) -> list[tuple[Claimed, Stored]]:
    rows = statement.rows(
        conn,
        owner=terms.owner,
        lease_seconds=terms.lease_seconds,
        run_timeout_seconds=terms.run_timeout_seconds,
        event_numbers=RESERVED,
        pool=terms.pool,
        **parameters,
    )
    rows.sort(key=lambda row: row["run_id"])  # the oldest run starts first; UPDATE returns rows unordered
    return [
        (
            _claimed(
                row,
                terms.owner,
                key_id=row["key_id"],
                depth=row["depth"],
                has_checkpoint=row["has_checkpoint"],
            ),
            checkpoint_reads.newest_of(row),
        )
        for row in rows
    ]


def _claimed(row: Row, owner: str, **more: Any) -> Claimed:
    return Claimed(
        **{name: row[name] for name in _COLUMNS},
        owner=owner,
        input=(row["input"] or "null").encode(),
        seconds_left=float(row["seconds_left"]),
        **more,
    )


def is_deleted(conn: Connection, run_id: UUID) -> bool:
    """Return whether the run's row is gone."""
    row = conn.execute(text("SELECT FROM run WHERE run_id = :id"), {"id": run_id})
    return row.one_or_none() is None


@dataclass(frozen=True, slots=True)
class Hold:
    """A run that is still its owner's after a renewal, with any request to cancel it."""

    attempt: int
    cancel_requested: str | None
    cancel_reason: str | None
    renewed: bool = True  # False: another transaction had the row locked


def renew(conn: Connection, run_ids: Sequence[UUID], *, owner: str, lease_seconds: float) -> dict[UUID, Hold]:
    """Extend the leases of an owner's runs. The owner has lost the runs missing from the result.

    An expired lease is not extended, even if no other process has taken the run over yet. Otherwise an owner that was
    frozen could continue while another process takes over the run.

    Locked rows are skipped (`renewed` is False) and renewed by a later call. A commit of checkpoints and ends locks
    many runs in a different order. A renewal that waited for one of them while it holds locks on others would deadlock
    with the commit, until PostgreSQL breaks the deadlock after a second. Waiting would also delay the other leases.
    """
    rows = _RENEW.rows(conn, run_ids=uuids(run_ids), owner=owner, lease_seconds=lease_seconds)
    return {
        row["run_id"]: Hold(row["attempt"], row["cancel_requested"], row["cancel_reason"], row["renewed"])
        for row in rows
    }


def reserve(conn: Connection, run_id: UUID, *, owner: str, attempt: int, upto: int) -> bool:
    """Reserve event numbers up to `upto`. Returns False if the owner has lost the run."""
    done = conn.execute(
        text(
            "UPDATE run SET seq_reserved = greatest(seq_reserved, :upto) WHERE run_id = :run_id"
            " AND owner = :owner AND attempt = :attempt AND status = 'running'"
        ),
        {"run_id": run_id, "owner": owner, "attempt": attempt, "upto": upto},
    )
    return done.rowcount == 1


def hold(conn: Connection, run: Claimed) -> bool:
    """Lock the run's row until the transaction ends. Returns False if the owner has lost the run."""
    query = text(
        "SELECT 1 FROM run WHERE run_id = :run_id AND owner = :owner AND attempt = :attempt"
        " AND status = 'running' FOR SHARE"
    )
    key = {"run_id": run.run_id, "owner": run.owner, "attempt": run.attempt}
    return conn.execute(query, key).first() is not None


@dataclass(frozen=True, slots=True)
class Requeue:
    """A run to return to the queue for another attempt.

    `refund`: the attempt does not count against the limit of attempts. Set when a runner shuts down in good order, and
    when a host died that also executed other runs. In the second case `quarantine` is the level of isolation of the
    run's next attempt.
    """

    run: Claimed
    delay_seconds: float = 0.0
    death: str | None = None
    refund: bool = False
    quarantine: int | None = None


def give_back(conn: Connection | Driver, returns: Sequence[Requeue]) -> set[UUID]:
    """Return runs to the queue. Returns the ids of the runs that were put back.

    Skips runs that the owner has lost, and runs with a request to cancel them. The caller must end the latter.
    """
    rows = _REQUEUE.rows(
        conn,
        **_held([item.run for item in returns]),
        delays=doubles([item.delay_seconds for item in returns]),
        deaths=texts([item.death for item in returns]),
        died=bigints([0 if item.refund else 1 for item in returns]),
        levels=bigints([item.quarantine for item in returns]),
        reason=HANDED_OVER,
    )
    return {row["run_id"] for row in rows}


def _held(runs: Sequence[Claimed]) -> dict[str, Packed]:
    """Return the parameters that identify runs together with their owner and attempt, a list for each column."""
    return {
        "run_ids": uuids([run.run_id for run in runs]),
        "attempts": bigints([run.attempt for run in runs]),
        "owners": texts([run.owner for run in runs]),
    }


Wish = tuple[str, str | None]  # a request to cancel a run: the action and the reason


def wishes_to_stop(conn: Driver, runs: Sequence[Claimed]) -> dict[UUID, Wish]:
    """Return the requests to cancel these runs, by run id. Omits runs that the owner has lost."""
    rows = _CANCEL_REQUESTS.rows(conn, **_held(runs))
    return {row["run_id"]: (row["cancel_requested"], row["cancel_reason"]) for row in rows}


SETTLED_SECONDS = 2.0  # the response of a more recent claim may not have reached the owner yet


def give_back_unknown(conn: Connection, *, owner: str, known: Sequence[UUID]) -> list[NextRun]:
    """Return to the queue the owner's runs that are not in `known`. Returns the runs to notify of.

    The claim of such a run was committed, but the owner never received the response.
    """
    rows = _REQUEUE_UNKNOWN.rows(
        conn, owner=owner, known=uuids(known), settled_seconds=SETTLED_SECONDS, reason=ANSWER_LOST
    )
    return [NextRun(row["run_id"], row["pool"]) for row in rows]


SHORTEN = text("""
UPDATE run SET lease_until = now() + make_interval(secs => :lease)
WHERE status = 'running' AND lease_until > now() + make_interval(secs => 2 * :lease)
""")
SOONER = text("""
UPDATE run SET not_before = now()
WHERE status = 'pending' AND attempt > 0 AND not_before > now() + interval '1 minute'
""")


def shorten_leases(conn: Connection, *, lease_seconds: float) -> int:
    """Shorten leases and retry delays that reach too far into the future. Returns the number of shortened leases.

    After the database's clock is set back by an hour, a dead owner's lease would otherwise last an hour longer.
    """
    conn.execute(SOONER)
    return conn.execute(SHORTEN, {"lease": lease_seconds}).rowcount


def abandoned(conn: Connection, *, limit: int = 100) -> list[RowMapping]:
    """Return running runs whose lease has expired, earliest first. Takes no locks: the caller locks one at a time."""
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
    """Return a run with an expired lease to the queue. Returns False if the caller must end the run instead."""
    return _REQUEUE_ABANDONED.count(conn, run_id=run_id, max_attempts=max_attempts, reason=LEASE_RAN_OUT) == 1


def take_over(conn: Connection, run_id: UUID, *, owner: str) -> Claimed | None:
    """Become the owner of a run with an expired lease, in order to end it. The caller holds the thread's lock.

    Returns None if the run is no longer running or its lease is not expired.
    """
    row = _TAKE_OVER.row(conn, run_id=run_id, owner=owner, event_numbers=RESERVED, reason=LEASE_RAN_OUT)
    return None if row is None else _claimed(row, owner, cancel_requested=row["cancel_requested"])
