"""Creation of runs, for every interface: authorize the runs, insert and commit their rows, notify the runners.

Authorization runs before any lookup error is raised, so a caller without access cannot probe which objects exist.

No database connection is held while the project's authorization functions run, so the thread can change in the
meantime. The request is therefore completed from the thread a second time, with the thread locked. If the result
differs from the authorized request, authorization runs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol
from uuid import UUID

from cachetools import TTLCache
from sqlalchemy import Connection

from shared.deployments.deployments import DeploymentRef
from shared.errors import Conflict, OutcomeUnknown, TooMany
from shared.infra import broker
from shared.infra.postgres import Driver, connection, driver, in_transaction
from shared.runs import backlog, create, drafts, nesting
from shared.runs.create import Created
from shared.runs.drafts import Creator, Draft, RunRequest
from shared.runs.signals import publish_cancels
from shared.user_code import authorization, filters
from shared.user_code.authorization import Ask, Authorize, Granted

COUNT_SECONDS, COUNTED_DEPLOYMENTS = 2.0, 10_000
TRIES = 3  # only a client that writes to the thread in a loop can change it during every try


class TransactionPart(Protocol):
    """A record that is committed together with the runs: a stored response, the firing of a cron.

    `begin` is called before the runs are inserted, `complete` after. Each may raise to create nothing.
    """

    def begin(self, conn: Connection) -> None: ...

    def complete(self, conn: Connection, created: Sequence[Created]) -> None: ...


class _ThreadChanged(Exception):
    """The thread has changed while the authorization handlers ran."""


def create_runs(
    creator: Creator,
    requests: Sequence[RunRequest],
    *,
    part: TransactionPart | None = None,
    assistant_read: Granted | None = None,
) -> list[Created]:
    """Create all runs or none, commit, then notify the owners of displaced runs and the runners.

    `assistant_read` is the answer of the handlers about reading the assistant, if the caller has it already. Raises
    Denied, NotFound (thread or assistant), Conflict, Invalid (unknown graph), TooMany, and what `part` raises. A run
    whose commit got no answer from the database is looked up: a client would answer an error with a repeated request,
    which would create a second run.
    """
    try:
        created = _create(creator, requests, part, assistant_read)
    except OutcomeUnknown as error:
        created = _find_created(requests, error)
    for run in created:
        publish_cancels(run.displaced, creator.event_retention_seconds)
        if run.is_due:
            broker.enqueue_run(run.pool, run.run_id)
    return created


def _find_created(requests: Sequence[RunRequest], error: OutcomeUnknown) -> list[Created]:
    """Return the runs whose commit got no answer. Raises `error` if they were not committed."""
    with driver() as conn:
        rows = [create.find_created(conn, request.run_id) for request in requests]
    created = [row for row in rows if row is not None]
    if len(created) < len(requests):
        raise error
    return created


def _create(
    creator: Creator,
    requests: Sequence[RunRequest],
    part: TransactionPart | None,
    assistant_read: Granted | None,
) -> list[Created]:
    for _ in range(TRIES):
        authorized = _authorized_drafts(creator, requests, assistant_read)
        try:
            return _insert(creator, requests, authorized, part)
        except _ThreadChanged:
            continue
    raise Conflict("The thread changed during every attempt to authorize this run. Try again.")


def _insert(
    creator: Creator,
    requests: Sequence[RunRequest],
    authorized: Sequence[Draft],
    part: TransactionPart | None,
) -> list[Created]:
    refusal = _pending_refusal(creator, len(requests))
    is_alone = part is None and _is_one_insert(requests, authorized)
    with driver() if is_alone else connection() as conn:
        for draft in authorized:
            _require_visible(conn, creator.deployment, draft)
        if part is not None:
            part.begin(in_transaction(conn))  # before the refusal: a repeated request creates nothing
        if refusal:
            raise refusal
        depth = nesting.depth_below(conn, creator.parent_run_id)
        if authorized:
            pairs = zip(requests, authorized, strict=True)
            created = [_insert_authorized(conn, creator, request, draft, depth) for request, draft in pairs]
        elif is_alone:
            created = [create.insert_alone(conn, creator, requests[0], depth=depth)]
        else:
            created = [create.insert_request(conn, creator, request, depth=depth) for request in requests]
        if part is not None:
            part.complete(in_transaction(conn), created)
    return created


def _is_one_insert(requests: Sequence[RunRequest], authorized: Sequence[Draft]) -> bool:
    """Whether the creation needs no transaction: one run, whose insert checks no filter and no other run."""
    if len(requests) > 1 or any(draft.is_filtered for draft in authorized):
        return False
    (request,) = requests
    return request.rule is None and (request.thread_id is None or not create.depends_on_thread(request))


# Authorization


def _authorized_drafts(
    creator: Creator, requests: Sequence[RunRequest], assistant_read: Granted | None
) -> Sequence[Draft]:
    """Draft the runs and ask the handlers about all of them in one call. Raises Denied.

    Returns no drafts if the deployment has no authorization.
    """
    if creator.authorize is None:
        return ()
    with connection() as conn:
        drafted = [drafts.draft_as_far_as_possible(conn, creator, request) for request in requests]
    return _apply_answers(creator, creator.authorize, drafted, assistant_read)


def _apply_answers(
    creator: Creator, authorize: Authorize, drafted: Sequence[Draft], assistant_read: Granted | None
) -> list[Draft]:
    asks = [drafts.authorization_request(draft) for draft in drafted]
    ids = [
        draft.assistant.assistant_id
        for draft in drafted
        if assistant_read is None and drafts.reads_assistant(draft)
    ]
    reads = {id: Ask("assistants", "read", {"assistant_id": id}) for id in ids}
    answers = authorize([*asks, *reads.values()])
    read_answers = dict(zip(reads, answers[len(asks) :], strict=True))
    authorized = []
    for draft, answer in zip(drafted, answers[: len(asks)], strict=True):
        read = assistant_read or read_answers.get(draft.assistant.assistant_id)
        try:
            changed = drafts.apply_handler_changes(draft, answer.value)
        except ValueError as error:
            authorization.fail(creator.deployment, str(error))
        assistant_filter = None if read is None else read.filter
        authorized.append(replace(changed, thread_filter=answer.filter, assistant_filter=assistant_filter))
    return authorized


def _require_visible(conn: Connection | Driver, deployment: DeploymentRef, draft: Draft) -> None:
    """Raise the error for a missing thread or assistant, if a filter hides it; lock the thread if it has a filter.

    Also raises the refusal of an assistant that the caller named.
    """
    if draft.refusal is not None and draft.names_assistant:
        raise draft.refusal
    if draft.thread_filter and filters.is_thread_hidden(
        in_transaction(conn), deployment.id, draft.thread_id, draft.thread_filter, lock=True
    ):
        raise draft.request.rule.missing() if draft.request.rule else create.missing()
    if draft.refusal is None:
        assistant_id = draft.assistant.assistant_id
        filters.require_assistant(
            conn, deployment.id, assistant_id, draft.assistant_filter, error=create.missing()
        )


def _insert_authorized(
    conn: Connection | Driver, creator: Creator, request: RunRequest, draft: Draft, depth: int
) -> Created:
    """Insert a run as the handlers left it.

    Raises _ThreadChanged if the thread now leads to another request than the authorized one. Also raises the error with
    which the thread or the assistant refuses the run.
    """
    if request.rule is not None and drafts.complete(conn, creator, request) != draft.snapshot:
        raise _ThreadChanged
    if draft.refusal is not None:
        raise draft.refusal
    return create.insert(conn, creator, draft, depth=depth)


# Limit of pending runs

pending_runs: TTLCache[UUID, int] = TTLCache(COUNTED_DEPLOYMENTS, COUNT_SECONDS)  # by deployment


def _pending_refusal(creator: Creator, new_runs: int) -> TooMany | None:
    """Return the error if the deployment has reached its limit of pending runs, else None.

    The cached count is renewed every COUNT_SECONDS, so the limit can be exceeded in between.
    """
    most, deployment_id = creator.max_pending, creator.deployment.id
    if most is None:
        return None
    pending = pending_runs.get(deployment_id)
    if pending is None:
        with driver() as conn:
            pending = pending_runs[deployment_id] = backlog.count_pending(conn, deployment_id, most=most)
    if pending + new_runs <= most:
        return None
    return TooMany(f"This deployment has {pending} pending runs already.", retry_after_seconds=5)
