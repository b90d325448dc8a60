"""Creation of runs: a pending row that contains everything needed to execute the run.

This path is critical for performance: creating a run on a thread takes one statement (`shared/sql/create.sql`). Only a
request that depends on other runs of its thread needs a transaction, which reads those runs first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from shared import assistants
from shared.errors import Conflict, NotFound, TooMany
from shared.figures import budgets, usage
from shared.infra.arrays import texts
from shared.infra.postgres import Driver, Row, dumps, in_transaction
from shared.models import ThreadStatus
from shared.runs import a2a_tasks, cancel, configurable, drafts
from shared.runs.cancel import Displaced
from shared.runs.drafts import Creator, Draft, RunRequest
from shared.runs.read import RUN, THREAD_METADATA
from shared.sql import Conn, part, statement
from shared.threads import records
from shared.user_code import filters

# Columns that store their parameter unchanged.
PLAIN = (
    "run_id", "assistant_id", "revision_id", "graph_id", "multitask_strategy", "temporary", "pool", "key_id", "user_name",
    "depth", "webhook",
)  # fmt: skip
_ON_EXISTING_THREAD, _RESUMING_THREAD, _WITH_NEW_THREAD = (
    statement(
        "create.run",
        t=thread,
        answers=answers,
        task=task,
        open_task=part("runs.open_task"),
        is_current=part("create.is_current"),
        columns=", ".join(PLAIN),
        values=", ".join(f":{name}" for name in PLAIN),
        record=RUN.stored,
    )
    for thread, answers, task in (
        (part("create.existing_thread"), "", ""),
        (part("create.existing_thread"), part("create.answers"), part("create.task")),
        (part("create.new_thread"), "", ""),
    )
)
# Keys in the metadata of runs that calls of protocols created, and of threads that were created with these runs. In an
# assistant's metadata, they are settings of the protocols. No run gets a mark from its assistant or its thread.
PROTOCOL_MARKS = (a2a_tasks.KEY, "mcp", "ag_ui")
_FIND_RUN = statement("create.find_run", record=RUN.stored)
CREATION_LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended(CAST(:thread AS text), 0))")
BUSY = "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."


@dataclass(frozen=True, slots=True)
class Created:
    """A created run, and the runs it displaced."""

    run_id: UUID
    thread_id: UUID
    pool: str
    starts_at_once: bool
    row: Row
    is_due: bool = True  # False: it starts later, and no runner is notified before that
    displaced: Sequence[Displaced] = ()


def insert_request(conn: Conn, creator: Creator, request: RunRequest, *, depth: int = 0) -> Created:
    """Draft a run and insert it. Raises as `insert` and `drafts.draft_run` do."""
    return insert(conn, creator, drafts.draft_run(conn, creator, request), depth=depth)


def insert_alone(conn: Conn, creator: Creator, request: RunRequest, *, depth: int) -> Created:
    """Insert a run that needs no transaction: no rule, no dependency on its thread's runs, no filter.

    An assistant that this process has read before is not looked up. The insert checks that its versions are the same.
    Raises as `insert` and `drafts.draft_run` do.
    """
    remembered = assistants.remembered(creator.deployment, request.assistant_id)
    if remembered is not None:
        draft = drafts.freeze(creator, drafts.complete(conn, creator, request), remembered)
        try:
            return insert(conn, creator, draft, depth=depth, versions=remembered.versions)
        except (TooMany, NotFound):
            pass  # the remembered assistant may be outdated; nothing was inserted, so resolve it and insert again
    return insert_request(conn, creator, request, depth=depth)


def insert(conn: Conn, creator: Creator, draft: Draft, *, depth: int = 0, versions: str = "") -> Created:
    """Insert a drafted run, pending. A run without a thread gets a new thread. `depth`: see `shared/runs/nesting.py`.

    Treats a thread that the draft's filter hides as missing. Raises NotFound (thread), Conflict (strategy `reject` on
    a busy thread, or a thread status that the request excludes) or TooMany. A draft with a filter, and a request that
    depends on other runs of its thread (`depends_on_thread`), need a transaction. If `versions` is set and the
    assistant's versions have changed since, inserts nothing and raises TooMany or NotFound: in this case the error does
    not tell the reason.
    """
    request, assistant, thread_id = draft.request, draft.assistant, draft.thread_id
    deployment_id, max_pending = creator.deployment.id, creator.max_pending_per_thread
    _require_visible(conn, deployment_id, draft)
    user_name = usage.user_name(draft.identity.langgraph_auth_user)
    budgets.require(conn, budgets.Subject(deployment_id, creator.key_id, thread_id, user_name))
    displaced: Sequence[Displaced] = ()
    if not draft.is_stateless and depends_on_thread(request):
        displaced = _displace(in_transaction(conn), deployment_id, thread_id, request)
    graph = {"graph_id": assistant.graph_id, "assistant_id": str(assistant.assistant_id)}
    values = {
        "run_id": draft.run_id,
        "webhook": request.webhook,
        "deployment_id": deployment_id,
        "thread_id": thread_id,
        "assistant_id": assistant.assistant_id,
        "revision_id": assistant.revision_for(thread_id),
        "graph_id": assistant.graph_id,
        "assistant_metadata": dumps(
            {name: value for name, value in assistant.metadata.items() if name not in PROTOCOL_MARKS}
        ),
        "marks": texts(PROTOCOL_MARKS),
        "metadata": dumps(draft.metadata),
        "thread_metadata": dumps(graph),
        "thread_config": dumps(configurable.of_thread(assistant.config, request.config)),
        "input": dumps(request.input),
        "kwargs": dumps(draft.kwargs if not draft.is_temporary else _of_temporary(draft)),
        "multitask_strategy": request.multitask_strategy,
        "temporary": draft.is_temporary,
        "is_listed": request.lists_thread,
        "pool": assistant.pool,
        "key_id": creator.key_id,
        "user_name": user_name,
        "depth": depth,
        "timeout_seconds": assistant.run_timeout_seconds,
        "max_pending": max_pending,
        "after": max(request.after_seconds, 0),
        "versions": versions,
        "resume": None if draft.resume is None else dumps(draft.resume),
        "answered_by": creator.name or draft.identity.langgraph_auth_user_id,
        "answered_from": creator.address,
    }
    row = _insert_row(conn, deployment_id, draft, values)
    if row is None:
        raise TooMany(f"This thread has {max_pending} pending runs already.", retry_after_seconds=5)
    is_due = request.after_seconds <= 0
    return Created(draft.run_id, thread_id, assistant.pool, row["starts_at_once"], row, is_due, displaced)


def _insert_row(conn: Conn, deployment_id: UUID, draft: Draft, values: dict[str, Any]) -> Row | None:
    """Insert the run's row, and its thread if that is missing. Returns None if the thread has too many pending runs."""
    # A run without input continues the thread, which answers a breakpoint.
    is_resuming = draft.resume is not None or draft.request.input is None
    on_existing = _RESUMING_THREAD if is_resuming else _ON_EXISTING_THREAD
    row = None if draft.is_stateless else on_existing.row(conn, **values)
    has_created_thread = False
    if row is None and (draft.is_stateless or _may_create_thread(conn, deployment_id, draft)):
        row = _WITH_NEW_THREAD.row(conn, **values)
        has_created_thread = row is not None
    if row is None:  # another request created the thread between the two statements, or the thread is full
        row = on_existing.row(conn, **values)
    if not has_created_thread:  # another caller may have created the thread after the first visibility check
        _require_visible(conn, deployment_id, draft)
    return row


def _of_temporary(draft: Draft) -> dict[str, Any]:
    """Return the kwargs of a temporary run, with its thread's metadata if an authenticated user created it.

    The thread is deleted with the run. Later requests for the run are authorized by this copy of the metadata.
    """
    if draft.identity.langgraph_auth_user is None:
        return draft.kwargs
    return {**draft.kwargs, THREAD_METADATA: draft.metadata}


def missing() -> NotFound:
    return NotFound("Thread or assistant not found.")


def _require_visible(conn: Conn, deployment_id: UUID, draft: Draft) -> None:
    """Raise NotFound if the draft's filter hides the thread. Locks the thread."""
    if draft.thread_filter and filters.is_thread_hidden(
        in_transaction(conn), deployment_id, draft.thread_id, draft.thread_filter, lock=True
    ):
        raise missing()


def find_created(conn: Driver, run_id: UUID) -> Created | None:
    """Return the run of an insert whose response was lost, or None if it was not inserted.

    Leaves `displaced` empty: owners of displaced runs learn of the cancellation with the next renewal.
    """
    row = _FIND_RUN.row(conn, run_id=run_id)
    if row is None:
        return None
    return Created(run_id, row["thread_id"], row["pool"], False, row, row["is_due"])


def depends_on_thread(request: RunRequest) -> bool:
    """Return whether the request depends on other runs of the thread or on the thread's status."""
    return request.multitask_strategy != "enqueue" or request.if_thread_status is not None


def _displace(
    conn: Connection, deployment_id: UUID, thread_id: UUID, request: RunRequest
) -> Sequence[Displaced]:
    """Check the thread's status and apply the multitask strategy. Returns the runs that are displaced."""
    _require_status(conn, deployment_id, thread_id, request)
    if request.multitask_strategy == "enqueue":
        return ()
    return _apply_strategy(conn, deployment_id, thread_id, request.multitask_strategy, request.run_id)


def _require_status(conn: Connection, deployment_id: UUID, thread_id: UUID, request: RunRequest) -> None:
    """Lock the thread. Raises Conflict if its status is not one of `if_thread_status`.

    A thread that does not exist yet counts as idle.
    """
    if request.if_thread_status is None:
        return
    thread = records.locked(conn, deployment_id, thread_id)
    status = ThreadStatus.IDLE if thread is None else thread["status"]
    if status not in request.if_thread_status:
        allowed = " or ".join(request.if_thread_status)
        raise Conflict(f"Thread {thread_id} is {status}, not {allowed} (if_thread_status).")


def _may_create_thread(conn: Conn, deployment_id: UUID, draft: Draft) -> bool:
    """Return whether the thread is missing and may be created. Raises NotFound if it is missing and may not."""
    try:
        records.require(conn, deployment_id, draft.thread_id)
    except NotFound:
        if draft.request.if_not_exists == "create":
            return True
        raise missing() from None
    return False


def _apply_strategy(
    conn: Connection, deployment_id: UUID, thread_id: UUID, strategy: str, run_id: UUID
) -> list[Displaced]:
    """Apply a strategy other than `enqueue` to the live runs of the thread. The thread stays locked."""
    if not records.lock(conn, deployment_id, thread_id):
        # Requests that create the same thread at once wait for each other. Otherwise none would see a run to reject.
        conn.execute(CREATION_LOCK, {"thread": f"{deployment_id}{thread_id}"})
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
    """Add stream modes to a run that has not started. Returns its column `joined`, or None if it has started."""
    row = conn.execute(
        text(
            "SELECT joined FROM run WHERE deployment_id = :deployment_id AND run_id = :run_id"
            " AND status = 'pending' AND attempt = 0 FOR UPDATE"
        ),
        {"deployment_id": deployment_id, "run_id": run_id},
    ).one_or_none()
    if row is None:
        return None
    before = row.joined or {"stream_mode": [], "subgraphs": False}
    added = [mode for mode in modes if mode not in before["stream_mode"]]
    joined = {
        "stream_mode": [*before["stream_mode"], *added],
        "subgraphs": before["subgraphs"] or subgraphs,
    }
    if joined != before:
        conn.execute(
            text("UPDATE run SET joined = CAST(:joined AS jsonb) WHERE run_id = :run_id"),
            {"run_id": run_id, "joined": dumps(joined)},
        )
    return joined


def attempt_metadata(run_id: UUID, attempt: int) -> bytes:
    """Return the data of the `metadata` event with which an attempt begins."""
    return dumps({"run_id": str(run_id), "attempt": attempt}).encode()
