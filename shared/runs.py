"""The life of a run: created, claimed, renewed, finished, cancelled, taken over.

    pending ──claim──► running ──finish──► success | error | interrupted | timeout
       │                  │ lease expired or host died, attempts left ──► pending
       └─cancel─► interrupted (rollback: deleted)

Every arrow is one conditional UPDATE that names the old state; no row changed means somebody else was
first. All times are the database's. SQL is written out here because this is the path whose cost counts:
locks are always taken thread first, then run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text
from uuid_utils.compat import uuid7

from shared import assistants, threads
from shared.database import dumps
from shared.deployments import DeploymentRef
from shared.errors import Conflict, NotFound, TooMany
from shared.events import RESERVED
from shared.models import RunStatus, ThreadStatus

LIVE = (RunStatus.PENDING, RunStatus.RUNNING)
BUSY = "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."
COLUMNS = (
    "run_id, thread_id, assistant_id, created_at, updated_at, status, metadata, input, kwargs,"
    " multitask_strategy, cancel_reason, error, started_at, ended_at, attempt, owner, temporary, seq_reserved"
)


# --- creating ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a caller asked for, already validated; defaults are the contract's."""

    assistant_id: str
    input: Any = None
    command: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    stream_mode: Sequence[str] = ("values",)
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    interrupt_before: Any = None
    interrupt_after: Any = None
    multitask_strategy: str = "enqueue"
    if_not_exists: str = "reject"
    on_completion: str = "delete"
    durability: str = "async"


@dataclass(frozen=True, slots=True)
class Created:
    """A run that was just created, and the runs it displaced."""

    run_id: UUID
    thread_id: UUID
    pool: str
    starts_at_once: bool
    row: Mapping[str, Any]
    displaced: Sequence[Displaced] = ()


@dataclass(frozen=True, slots=True)
class Displaced:
    """A run that a cancel ended in place (`owner` None) or whose owner must be told."""

    run_id: UUID
    owner: str | None
    action: str
    attempt: int
    seq_reserved: int


def create(
    conn: Connection,
    deployment: DeploymentRef,
    request: RunRequest,
    *,
    thread_id: UUID | None,
    run_id: UUID | None = None,
    request_id: str = "",
    max_pending: int = 1_000,
) -> Created:
    """Insert a pending run with its configuration frozen in; a run without thread gets one of its own.

    Raises NotFound (thread or assistant), Conflict (strategy `reject` on a busy thread; nothing serves
    yet), Invalid (unknown graph), TooMany.
    """
    assistant = assistants.resolve(conn, deployment, request.assistant_id)
    stateless = thread_id is None
    run_id = run_id or uuid7()
    thread_id = thread_id or uuid7()
    metadata = {
        **request.config.get("metadata", {}),
        "graph_id": assistant.graph_id,
        "assistant_id": str(assistant.assistant_id),
        **request.metadata,
    }
    temporary = stateless and request.on_completion == "delete"
    displaced: Sequence[Displaced] = ()
    if not stateless and request.multitask_strategy != "enqueue":
        displaced = _make_room(conn, deployment.id, thread_id, request.multitask_strategy, run_id)
    values = {
        "run_id": run_id,
        "deployment_id": deployment.id,
        "thread_id": thread_id,
        "assistant_id": assistant.assistant_id,
        "revision_id": assistant.revision_id,
        "graph_id": assistant.graph_id,
        "assistant_metadata": dumps(assistant.metadata),
        "metadata": dumps(metadata),
        "thread_metadata": dumps(
            {"graph_id": assistant.graph_id, "assistant_id": str(assistant.assistant_id)}
        ),
        "input": dumps(request.input),
        "kwargs": dumps(_kwargs(request, assistant, run_id, thread_id, temporary, request_id)),
        "multitask_strategy": request.multitask_strategy,
        "temporary": temporary,
        "pool": assistant.pool,
    }
    row = None
    if not stateless:
        row = conn.execute(INSERT_ON_THREAD, values).mappings().one_or_none()
    if row is None:
        if not stateless and request.if_not_exists != "create":
            raise NotFound("Thread or assistant not found.")
        values["new_thread_metadata"] = dumps({**metadata} if not stateless else metadata)
        row = conn.execute(INSERT_WITH_THREAD, values).mappings().one_or_none()
        if row is None:  # somebody made the thread between the two statements
            row = conn.execute(INSERT_ON_THREAD, values).mappings().one()
    if row["ahead"] >= max_pending:
        raise TooMany(f"This thread has {max_pending} pending runs already.", retry_after_seconds=5)
    return Created(run_id, thread_id, assistant.pool, row["ahead"] == 0, row, displaced)


_INSERT_RUN = """
INSERT INTO run (run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, status, metadata,
                 input, kwargs, multitask_strategy, temporary, pool, created_seq, rung_at)
SELECT :run_id, t.deployment_id, t.thread_id, :assistant_id, :revision_id, :graph_id, 'pending',
       CAST(:assistant_metadata AS jsonb) || t.before || CAST(:metadata AS jsonb),
       CAST(:input AS json), CAST(:kwargs AS json), :multitask_strategy, :temporary, :pool, t.last_seq, now()
FROM t
RETURNING run_id, thread_id, assistant_id, created_at, updated_at, status, metadata, input, kwargs,
          multitask_strategy, cancel_reason,
          (SELECT count(*) FROM run o WHERE o.deployment_id = run.deployment_id
             AND o.thread_id = run.thread_id AND o.status IN ('pending', 'running')) AS ahead
"""
# The subselect in RETURNING sees the table as it was before this statement: the runs ahead of this one.

INSERT_ON_THREAD = text(
    """
WITH old AS (
    SELECT metadata FROM thread
    WHERE deployment_id = :deployment_id AND thread_id = :thread_id FOR UPDATE
), t AS (
    UPDATE thread SET status = 'busy', error = NULL, updated_at = now(), last_seq = last_seq + 1,
        metadata = thread.metadata || CAST(:thread_metadata AS jsonb)
    FROM old
    WHERE deployment_id = :deployment_id AND thread_id = :thread_id
    RETURNING deployment_id, thread_id, last_seq, old.metadata AS before
)
"""
    + _INSERT_RUN
)

INSERT_WITH_THREAD = text(
    """
WITH t AS (
    INSERT INTO thread (deployment_id, thread_id, status, metadata, last_seq)
    VALUES (:deployment_id, :thread_id, 'busy', CAST(:new_thread_metadata AS jsonb), 1)
    ON CONFLICT DO NOTHING
    RETURNING deployment_id, thread_id, last_seq, CAST('{}' AS jsonb) AS before
)
"""
    + _INSERT_RUN
)


def _kwargs(
    request: RunRequest,
    assistant: assistants.Resolved,
    run_id: UUID,
    thread_id: UUID,
    temporary: bool,
    request_id: str,
) -> dict[str, Any]:
    """Everything the graph host needs to know but the input: assistant's configuration, run's over it."""
    own = request.context or request.config.get("configurable", {})
    context = {**assistant.context, **own}
    config = {**assistant.config, **request.config}
    config["configurable"] = {
        **assistant.config.get("configurable", {}),
        **own,
        "run_id": str(run_id),
        "thread_id": str(thread_id),
        "graph_id": assistant.graph_id,
        "assistant_id": str(assistant.assistant_id),
        "user_id": "",
        "langgraph_auth_user": None,
        "langgraph_auth_user_id": "",
        "langgraph_auth_permissions": [],
        "langgraph_request_id": request_id,
    }
    return {
        "command": request.command,
        "config": config,
        "context": context,
        "stream_mode": list(request.stream_mode),
        "interrupt_before": request.interrupt_before,
        "interrupt_after": request.interrupt_after,
        "webhook": None,
        "feedback_keys": None,
        "temporary": temporary,
        "subgraphs": request.stream_subgraphs,
        "resumable": request.stream_resumable,
        "checkpoint_during": request.durability != "exit",
        "durability": request.durability,
    }


def _make_room(
    conn: Connection, deployment_id: UUID, thread_id: UUID, strategy: str, run_id: UUID
) -> list[Displaced]:
    """Apply a strategy other than `enqueue` to the live runs of the thread, which stays locked."""
    if not threads.lock(conn, deployment_id, thread_id):
        return []
    live = _live_runs(conn, deployment_id, thread_id)
    if not live:
        return []
    if strategy == "reject":
        raise Conflict(BUSY)
    reason = f"superseded by run {run_id} (multitask_strategy={strategy})"
    return [_stop(conn, row, strategy, reason) for row in live]


# --- reading -------------------------------------------------------------------------------------


def record(row: Mapping[str, Any]) -> dict[str, Any]:
    """A run as the API shows it."""
    return {
        "run_id": row["run_id"],
        "thread_id": row["thread_id"],
        "assistant_id": row["assistant_id"],
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
        "status": row["status"],
        "metadata": row["metadata"],
        "kwargs": {"input": row["input"], **row["kwargs"]},
        "multitask_strategy": row["multitask_strategy"],
        "langsmith_session_name": None,
        "cancel_reason": row["cancel_reason"],
    }


def get(
    conn: Connection, deployment_id: UUID, run_id: UUID, *, thread_id: UUID | None = None
) -> Mapping[str, Any]:
    """One run; raises NotFound, also when it belongs to another thread."""
    row = (
        conn.execute(
            text(
                f"SELECT {COLUMNS} FROM run WHERE run_id = :run_id AND deployment_id = :deployment_id"
                " AND (CAST(:thread_id AS uuid) IS NULL OR thread_id = :thread_id)"
            ),
            {"run_id": run_id, "deployment_id": deployment_id, "thread_id": thread_id},
        )
        .mappings()
        .one_or_none()
    )
    if row is None:
        raise NotFound("Not Found")
    return row


def list_of_thread(
    conn: Connection,
    deployment_id: UUID,
    thread_id: UUID,
    *,
    limit: int,
    offset: int,
    status: str | None = None,
) -> list[Mapping[str, Any]]:
    """A thread's runs, newest first; raises NotFound when there is no such thread."""
    rows = (
        conn.execute(
            text(
                f"SELECT {COLUMNS} FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
                " AND (CAST(:status AS text) IS NULL OR status = :status)"
                " ORDER BY created_seq DESC LIMIT :limit OFFSET :offset"
            ),
            {
                "deployment_id": deployment_id,
                "thread_id": thread_id,
                "status": status,
                "limit": limit,
                "offset": offset,
            },
        )
        .mappings()
        .all()
    )
    if not rows:
        threads.require(conn, deployment_id, thread_id)
    return list(rows)


def _live_runs(conn: Connection, deployment_id: UUID, thread_id: UUID) -> list[Mapping[str, Any]]:
    return list(
        conn.execute(
            text(
                "SELECT run_id, deployment_id, thread_id, status, owner, attempt, seq_reserved FROM run"
                " WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
                " AND status IN ('pending', 'running') ORDER BY created_seq FOR UPDATE"
            ),
            {"deployment_id": deployment_id, "thread_id": thread_id},
        ).mappings()
    )


# --- executing -----------------------------------------------------------------------------------


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
    last_death, extract(epoch FROM deadline_at - now()) AS seconds_left
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
    conn: Connection, statement: Any, owner: str, lease_seconds: float, run_timeout_seconds: float, **which: Any
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


# --- cancelling and deleting ---------------------------------------------------------------------


def cancel(
    conn: Connection,
    deployment_id: UUID,
    thread_id: UUID,
    run_id: UUID,
    *,
    action: str = "interrupt",
    reason: str | None = None,
) -> Displaced:
    """Ask for a run's end: a pending one ends in place, a running one when its owner has seen it.

    Raises NotFound when there is no such run or it has ended.
    """
    threads.lock(conn, deployment_id, thread_id)
    live = [row for row in _live_runs(conn, deployment_id, thread_id) if row["run_id"] == run_id]
    if not live:
        try:
            get(conn, deployment_id, run_id, thread_id=thread_id)
        except NotFound:
            raise NotFound("No runs found to cancel.") from None
        raise NotFound("No matching runs to cancel. They may have finished already.")
    stopped = _stop(conn, live[0], action, reason)
    if stopped.owner is None:
        threads.settle(conn, deployment_id, thread_id)
    return stopped


def _stop(conn: Connection, row: Mapping[str, Any], action: str, reason: str | None) -> Displaced:
    key = {"run_id": row["run_id"], "action": action, "reason": reason}
    if row["status"] == RunStatus.RUNNING:
        conn.execute(
            text("UPDATE run SET cancel_requested = :action, cancel_reason = :reason WHERE run_id = :run_id"),
            key,
        )
    elif action == "rollback":
        conn.execute(text("DELETE FROM run WHERE run_id = :run_id"), key)
    else:
        conn.execute(
            text(
                "UPDATE run SET status = 'interrupted', ended_at = now(), updated_at = now(),"
                " cancel_reason = :reason, seq_reserved = seq_reserved + :reserved WHERE run_id = :run_id"
            ),
            {**key, "reserved": RESERVED},
        )
    owner = row["owner"] if row["status"] == RunStatus.RUNNING else None
    return Displaced(row["run_id"], owner, action, row["attempt"], row["seq_reserved"])


def roll_back(conn: Connection, run: Claimed, *, error: dict[str, Any]) -> Next | None | bool:
    """Remove a running run as if it had never been, but for the thread's `error`; False when not ours."""
    gone = conn.execute(
        text(
            "DELETE FROM run WHERE run_id = :run_id AND attempt = :attempt AND owner = :owner"
            " AND status = 'running'"
        ),
        {"run_id": run.run_id, "attempt": run.attempt, "owner": run.owner},
    )
    if gone.rowcount != 1:
        return False
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


def delete(conn: Connection, deployment_id: UUID, thread_id: UUID, run_id: UUID) -> Displaced | None:
    """Delete a run's row; the answer is its owner, to be told, when it was running."""
    threads.lock(conn, deployment_id, thread_id)
    row = (
        conn.execute(
            text(
                "DELETE FROM run WHERE run_id = :run_id AND deployment_id = :deployment_id"
                " AND thread_id = :thread_id RETURNING status, owner, attempt, seq_reserved"
            ),
            {"run_id": run_id, "deployment_id": deployment_id, "thread_id": thread_id},
        )
        .mappings()
        .one_or_none()
    )
    if row is None:
        raise NotFound("Run not found")
    threads.settle(conn, deployment_id, thread_id)
    if row["status"] not in LIVE:
        return None
    return Displaced(run_id, row["owner"], "rollback", row["attempt"], row["seq_reserved"])


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
    seq_reserved - :reserved AS floor, temporary, metadata, CAST(input AS text) AS input, kwargs, last_death,
    extract(epoch FROM deadline_at - now()) AS seconds_left, cancel_requested"""
            ),
            {"run_id": run_id, "owner": owner, "reserved": RESERVED},
        )
        .mappings()
        .one_or_none()
    )
    return None if row is None else _claimed(row, owner)
