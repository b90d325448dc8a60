"""Creates runs: a pending row with all that executing the run needs frozen in.

SQL is written out here because this is the path whose cost counts. A run on a thread is one statement; only what
depends on other runs of its thread looks at them first, in a transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared import assistants
from shared.deployments.deployments import DeploymentRef
from shared.errors import Conflict, NotFound, TooMany
from shared.figures import budgets
from shared.infra.postgres import Driver, Row, dumps, query
from shared.models import ThreadStatus
from shared.runs import cancel, configurable, drafts, visibility
from shared.runs.cancel import Displaced
from shared.runs.drafts import Draft, RunRequest
from shared.runs.read import PROTOCOL, THREAD_METADATA
from shared.threads import records, ttl
from shared.user_code.filters import Filter

BUSY = "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."


@dataclass(frozen=True, slots=True)
class Created:
    """A run that was just created, and the runs it displaced."""

    run_id: UUID
    thread_id: UUID
    pool: str
    starts_at_once: bool
    row: Row
    is_due: bool = True  # else it waits for its time, and nobody need hear of it before
    displaced: Sequence[Displaced] = ()


def create_run(
    conn: Connection | Driver,
    deployment: DeploymentRef,
    request: RunRequest,
    *,
    thread_id: UUID | None,
    run_id: UUID | None = None,
    request_id: str = "",
    max_pending: int = 1_000,
    key_id: str = "",
    depth: int = 0,
    user: Mapping[str, Any] | None = None,
) -> Created:
    """Insert a pending run with its configuration frozen in; a run without thread gets one of its own.

    `user` is the document of whom the deployment's authorization found to ask for it, `depth` as in
    `shared/runs/nesting.py`.

    Raises NotFound (thread or assistant), Conflict (strategy `reject` on a busy thread; a status that was not
    wanted; nothing serves yet), Invalid (unknown graph), TooMany. A request that depends on other runs of its
    thread (`depends_on_thread`) needs a transaction: TypeError on the driver's connection, which has none.
    """
    asked: dict[str, Any] = {
        "thread_id": thread_id,
        "run_id": run_id,
        "request_id": request_id,
        "user": user,
    }
    bounds: dict[str, Any] = {"max_pending": max_pending, "key_id": key_id, "depth": depth}
    remembered = assistants.remembered(deployment, request.assistant_id)
    if remembered is not None and not isinstance(conn, Connection):
        made = drafts.draft(request, remembered, **asked)
        try:
            return insert(conn, deployment, made, versions=remembered.versions, **bounds)
        except (TooMany, NotFound):
            pass  # or its assistant is another by now: nothing was done
    made = drafts.draft(request, assistants.resolve(conn, deployment, request.assistant_id), **asked)
    return insert(conn, deployment, made, **bounds)


def insert(
    conn: Connection | Driver,
    deployment: DeploymentRef,
    draft: Draft,
    *,
    max_pending: int = 1_000,
    key_id: str = "",
    depth: int = 0,
    filter: Filter | None = None,
    versions: str = "",
) -> Created:
    """The rest of it, of what is to be made; a thread that is hidden by the filter is as if there were none.

    A filter needs a transaction. `versions`: nothing is inserted when the assistant has others by now, and TooMany
    or NotFound says no more than that. Raises the same.
    """
    request, assistant, thread_id = draft.request, draft.assistant, draft.thread_id
    _require_visible(conn, deployment.id, thread_id, filter)
    budgets.require(conn, deployment.id, key_id)
    displaced: Sequence[Displaced] = ()
    if not draft.is_stateless and depends_on_thread(request):
        displaced = _displace(conn, deployment.id, thread_id, request, draft.run_id)
    graph = {"graph_id": assistant.graph_id, "assistant_id": str(assistant.assistant_id)}
    values = {
        "run_id": draft.run_id,
        "webhook": request.webhook,
        "deployment_id": deployment.id,
        "thread_id": thread_id,
        "assistant_id": assistant.assistant_id,
        "revision_id": assistant.revision_for(thread_id),
        "graph_id": assistant.graph_id,
        "assistant_metadata": dumps(assistant.metadata),
        "metadata": dumps(draft.metadata),
        "thread_metadata": dumps(graph),
        "thread_config": dumps(configurable.of_thread(assistant.config, request.config)),
        "input": dumps(request.input),
        "kwargs": dumps(draft.kwargs if not draft.is_temporary else _of_temporary(draft)),
        "multitask_strategy": request.multitask_strategy,
        "temporary": draft.is_temporary,
        "pool": assistant.pool,
        "key_id": key_id,
        "depth": depth,
        "timeout_seconds": assistant.run_timeout_seconds,
        "max_pending": max_pending,
        "after": max(request.after_seconds, 0),
        "versions": versions,
    }
    row = _inserted(conn, deployment.id, draft, values, filter)
    if row is None:
        raise TooMany(f"This thread has {max_pending} pending runs already.", retry_after_seconds=5)
    is_due = request.after_seconds <= 0
    return Created(draft.run_id, thread_id, assistant.pool, row["starts_at_once"], row, is_due, displaced)


def _inserted(
    conn: Connection | Driver,
    deployment_id: UUID,
    draft: Draft,
    values: dict[str, Any],
    filter: Filter | None,
) -> Row | None:
    """The run's row, on its thread or with it; None when the thread is full."""
    row = None if draft.is_stateless else query(conn, INSERT_ON_THREAD, values).fetchone()
    is_made = False
    if row is None and (draft.is_stateless or _may_make_thread(conn, deployment_id, draft)):
        row = query(conn, INSERT_WITH_THREAD, values).fetchone()
        is_made = row is not None
    if row is None:  # somebody made the thread between two statements, or it is full
        row = query(conn, INSERT_ON_THREAD, values).fetchone()
    if not is_made:  # a stranger may have made it after it was looked for
        _require_visible(conn, deployment_id, draft.thread_id, filter)
    return row


def _of_temporary(draft: Draft) -> dict[str, Any]:
    """The kwargs of a run whose thread goes with it: a user who comes later is let see it by what its thread said."""
    if draft.identity.langgraph_auth_user is None:
        return draft.kwargs
    return {**draft.kwargs, THREAD_METADATA: draft.metadata}


def missing() -> NotFound:
    return NotFound("Thread or assistant not found.")


def _require_visible(
    conn: Connection | Driver, deployment_id: UUID, thread_id: UUID, filter: Filter | None
) -> None:
    """Raise NotFound for a thread that the filter hides; holds it."""
    if not filter:
        return
    if not isinstance(conn, Connection):
        raise TypeError("a thread is looked at with a filter in a transaction")
    if visibility.is_hidden(conn, deployment_id, thread_id, filter, lock=True):
        raise missing()


MADE = """
SELECT run_id, thread_id, assistant_id, created_at, updated_at, status, metadata, input, kwargs,
    multitask_strategy, cancel_reason, revision_id, created_seq, pool, coalesce(not_before <= now(), true) AS is_due
FROM run WHERE run_id = %(run_id)s
"""


def made(conn: Driver, run_id: UUID) -> Created | None:
    """A run whose creation got no answer, if it was carried out; whom it displaced learns of it later."""
    row = query(conn, MADE, {"run_id": run_id}).fetchone()
    if row is None:
        return None
    return Created(run_id, row["thread_id"], row["pool"], False, row, row["is_due"])


def depends_on_thread(request: RunRequest) -> bool:
    """Whether other runs, or the thread's status, decide what becomes of this one."""
    return request.multitask_strategy != "enqueue" or request.if_thread_status is not None


def _displace(
    conn: Connection | Driver, deployment_id: UUID, thread_id: UUID, request: RunRequest, run_id: UUID
) -> Sequence[Displaced]:
    """Apply what the request says of other runs of its thread; those that make way for it."""
    if not isinstance(conn, Connection):
        raise TypeError("a run that depends on other runs of its thread is created in a transaction")
    _require_status(conn, deployment_id, thread_id, request)
    if request.multitask_strategy == "enqueue":
        return ()
    return _apply_strategy(conn, deployment_id, thread_id, request.multitask_strategy, run_id)


def _require_status(conn: Connection, deployment_id: UUID, thread_id: UUID, request: RunRequest) -> None:
    """Hold the thread; raises Conflict when its status is none of those that the caller counts on.

    A thread that is yet to be made is idle.
    """
    if request.if_thread_status is None:
        return
    status = ThreadStatus.IDLE
    if records.lock(conn, deployment_id, thread_id):
        status = records.get(conn, deployment_id, thread_id)["status"]
    if status not in request.if_thread_status:
        wanted = " or ".join(request.if_thread_status)
        raise Conflict(f"Thread {thread_id} is {status}, not {wanted} (if_thread_status).")


def _may_make_thread(conn: Connection | Driver, deployment_id: UUID, draft: Draft) -> bool:
    """Whether the thread is absent and may be made; raises NotFound when it may not."""
    try:
        records.require(conn, deployment_id, draft.thread_id)
    except NotFound:
        if draft.request.if_not_exists == "create":
            return True
        raise missing() from None
    return False


# Of a run on a thread that somebody watches, the kwargs begin with this.
_JOINED = f'{{"joined":{dumps({"stream_mode": [PROTOCOL], "subgraphs": False})},'
_INSERT_RUN = f"""
INSERT INTO run (webhook, key_id, depth,
                 run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, status, metadata,
                 input, kwargs, multitask_strategy, temporary, pool, timeout_seconds, created_seq,
                 created_at, not_before, notified_at, metadata_before)
SELECT CAST(%(webhook)s AS text), %(key_id)s, %(depth)s,
       %(run_id)s, t.deployment_id, t.thread_id, %(assistant_id)s, %(revision_id)s, %(graph_id)s, 'pending',
       CAST(%(assistant_metadata)s AS jsonb) || t.before || CAST(%(metadata)s AS jsonb),
       CAST(%(input)s AS json), CAST(CASE WHEN t.is_watched
           THEN '{_JOINED}' || substr(CAST(%(kwargs)s AS text), 2) ELSE CAST(%(kwargs)s AS text) END AS json),
       %(multitask_strategy)s, %(temporary)s, %(pool)s,
       CAST(%(timeout_seconds)s AS double precision), t.last_seq,
       now() + later.by, CASE WHEN later.by > '0' THEN now() + later.by END,
       CASE WHEN later.by > '0' THEN NULL ELSE now() END, t.taken
FROM t, make_interval(secs => CAST(%(after)s AS double precision)) AS later(by)
RETURNING run_id, thread_id, assistant_id, created_at, updated_at, status, metadata, input, kwargs,
          multitask_strategy, cancel_reason, revision_id, created_seq,
          (SELECT was_idle FROM t) AND not_before IS NULL AS starts_at_once
"""
# Whether runs are ahead is read from the locked thread: other runs may be invisible to this statement.
# A run that is to start later is not notified of: upkeep does so when its time has come.

INSERT_ON_THREAD = (
    f"""
WITH old AS (
    SELECT metadata, CAST(config AS text) AS config, CAST(%(thread_config)s AS text) AS new_config,
        status <> 'busy' AS was_idle, coalesce(protocol_until > now(), false) AS is_watched FROM thread
    WHERE deployment_id = %(deployment_id)s AND thread_id = %(thread_id)s
      AND (SELECT count(*) FROM run WHERE deployment_id = %(deployment_id)s
           AND thread_id = %(thread_id)s AND status = 'pending') < %(max_pending)s
      AND {assistants.UNCHANGED}
    FOR NO KEY UPDATE
), t AS (
    UPDATE thread SET status = 'busy', error = NULL, updated_at = now(), last_seq = last_seq + 1,
        metadata = thread.metadata || CAST(%(thread_metadata)s AS jsonb),
        config = CASE WHEN old.config = old.new_config THEN thread.config ELSE CAST(old.new_config AS json) END
    FROM old
    WHERE deployment_id = %(deployment_id)s AND thread_id = %(thread_id)s
    RETURNING deployment_id, thread_id, last_seq, old.metadata AS before, old.was_idle, old.is_watched,
        CASE WHEN old.metadata @> CAST(%(thread_metadata)s AS jsonb) AND old.config = old.new_config
            THEN NULL ELSE jsonb_strip_nulls(jsonb_build_object('graph_id', old.metadata -> 'graph_id',
                'assistant_id', old.metadata -> 'assistant_id', 'config', old.config)) END AS taken
)
"""
    + _INSERT_RUN
)

INSERT_WITH_THREAD = (
    f"""
WITH t AS (
    INSERT INTO thread (deployment_id, thread_id, status, metadata, config, last_seq, ttl_minutes, ttl_strategy)
    SELECT %(deployment_id)s, %(thread_id)s, 'busy', CAST(%(metadata)s AS jsonb),
        CAST(%(thread_config)s AS json), 1,
        CASE WHEN NOT %(temporary)s THEN {ttl.default_minutes("%(deployment_id)s")} END,
        CASE WHEN NOT %(temporary)s THEN {ttl.default_strategy("%(deployment_id)s")} END
    WHERE {assistants.UNCHANGED}
    ON CONFLICT DO NOTHING
    RETURNING deployment_id, thread_id, last_seq, CAST('{{}}' AS jsonb) AS before, true AS was_idle,
        false AS is_watched, CAST(NULL AS jsonb) AS taken
)
"""
    + _INSERT_RUN
)


def _apply_strategy(
    conn: Connection, deployment_id: UUID, thread_id: UUID, strategy: str, run_id: UUID
) -> list[Displaced]:
    """Apply a strategy other than `enqueue` to the live runs of the thread, which stays locked."""
    if not records.lock(conn, deployment_id, thread_id):
        return []
    live = cancel.live_runs(conn, deployment_id, thread_id)
    if not live:
        return []
    if strategy == "reject":
        raise Conflict(BUSY)
    reason = f"superseded by run {run_id} (multitask_strategy={strategy})"
    return [cancel.stop(conn, row, strategy, reason) for row in live]


def widen(
    conn: Connection, deployment_id: UUID, run_id: UUID, *, modes: Collection[str], subgraphs: bool
) -> dict[str, Any] | None:
    """Let a run that has not started stream these modes too; its kwargs, None when it has started.

    What is added stands under `joined`, which its creator does not see.
    """
    key = {"deployment_id": deployment_id, "run_id": run_id}
    kwargs = conn.execute(
        text(
            "SELECT kwargs FROM run WHERE deployment_id = :deployment_id AND run_id = :run_id"
            " AND status = 'pending' AND attempt = 0 FOR UPDATE"
        ),
        key,
    ).scalar_one_or_none()
    if kwargs is None:
        return None
    before = kwargs.get("joined") or {"stream_mode": [], "subgraphs": False}
    added = [mode for mode in modes if mode not in before["stream_mode"]]
    joined = {
        "stream_mode": [*before["stream_mode"], *added],
        "subgraphs": before["subgraphs"] or subgraphs,
    }
    if joined != before:
        kwargs = {**kwargs, "joined": joined}
        conn.execute(
            text("UPDATE run SET kwargs = CAST(:kwargs AS json) WHERE run_id = :run_id"),
            {"run_id": run_id, "kwargs": dumps(kwargs)},
        )
    return kwargs


def attempt_metadata(run_id: UUID, attempt: int) -> bytes:
    """The data of the `metadata` event with which an attempt begins."""
    return dumps({"run_id": str(run_id), "attempt": attempt}).encode()
