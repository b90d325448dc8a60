"""Creation of runs, for every interface: authorize the run, insert and commit its row, notify the runners.

Authorization runs before any lookup error is raised, so a caller without access cannot probe which objects exist.

No database connection is held while the project's authorization functions run, so the thread can change in the
meantime. The request is therefore derived from the thread a second time, with the thread locked. If the result differs
from the authorized request, authorization runs again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from flask import Response, has_request_context, jsonify, request
from sqlalchemy import Connection
from uuid_utils.compat import uuid7

from shared.access.idempotency import HEADER
from shared.errors import Conflict, OutcomeUnknown, Refused, TooMany
from shared.infra import broker
from shared.infra.postgres import Driver, connection, driver
from shared.runs import create, drafts, nesting, read, visibility
from shared.runs.create import Created
from shared.runs.drafts import Draft, RunRequest
from shared.runs.signals import publish_cancels
from shared.user_code import authorization, filters
from shared.user_code.authorization import Ask, Granted
from shared.user_code.filters import Filter
from web.deployment_api.protocols.json_rpc import RpcError
from web.deployment_api.runs.locations import run_path
from web.gate.authorization import allow_all
from web.gate.context import caller, deployment, request_id, settings, trace, unasked, user
from web.gate.idempotency import once
from web.schemas.validation import uuid_header

COUNT_SECONDS = 2.0
TRIES = 3  # a thread that changes during each try has a client that writes to it in a loop


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRun:
    """A run that a caller requests.

    `of_thread` derives the final request from the current state of the thread, in a transaction, and raises the error
    that refuses it. `hidden` returns the error for a thread that a filter hides from the caller. It must be the error
    for a missing thread, or the caller could tell that the thread exists.
    """

    request: RunRequest
    thread_id: UUID | None
    run_id: UUID = field(default_factory=uuid7)
    of_thread: Callable[[Connection, UUID], RunRequest] | None = None
    hidden: Callable[[], Exception] = create.missing
    assistant: Granted | None = None  # grant for reading the assistant, if obtained already


class _Moved(Exception):
    """The thread has changed while the authorization handlers ran."""


@dataclass(frozen=True, slots=True)
class _Drafted:
    """A draft of a run, for the authorization handlers to decide on."""

    wanted: WantedRun
    draft: Draft
    asked: RunRequest | None  # the request derived from the thread; None: the thread refuses the run
    refusal: Refused | None  # the reason why the assistant cannot be used

    @property
    def names_assistant(self) -> bool:
        """Whether the caller, and not the thread, determines the assistant."""
        named = self.wanted.request.assistant_id
        return bool(named) and (self.asked is None or self.asked.assistant_id == named)


@dataclass(frozen=True, slots=True)
class Permit:
    """An authorized run: the draft as the handlers left it, and the filters for its thread and its assistant."""

    drafted: _Drafted
    draft: Draft
    threads: Filter | None
    assistants: Filter | None

    @property
    def is_filtered(self) -> bool:
        return bool(self.threads or self.assistants)

    def require_visible(self, conn: Connection | Driver, deployment_id: UUID) -> None:
        """Raise the error for a missing thread or assistant, if a filter hides it; lock the thread if it has a filter.

        Also raises the refusal of an assistant that the caller named.
        """
        drafted = self.drafted
        if drafted.refusal is not None and drafted.names_assistant:
            raise drafted.refusal
        if isinstance(conn, Connection) and visibility.is_hidden(
            conn, deployment_id, self.draft.thread_id, self.threads, lock=True
        ):
            raise drafted.wanted.hidden()
        if drafted.refusal is None:
            assistant_id = self.draft.assistant.assistant_id
            filters.require_assistant(
                conn, deployment_id, assistant_id, self.assistants, error=create.missing()
            )

    def require_same(self, conn: Connection | Driver, deployment_id: UUID) -> None:
        """Raise _Moved if the thread now leads to another request than the authorized one.

        Also raises the error with which the thread or the assistant refuses the run.
        """
        if (
            self.drafted.wanted.of_thread is not None
            and _request(conn, deployment_id, self.drafted.wanted) != self.drafted.asked
        ):
            raise _Moved
        if self.drafted.refusal is not None:
            raise self.drafted.refusal


def permits(wanted: Sequence[WantedRun]) -> Sequence[Permit | None]:
    """Authorize runs, all in one call. Raises Denied.

    Returns None for each run if the deployment has no authorization.
    """
    if user() is None:
        return [None for _ in wanted]
    with connection() as conn:
        drafted = [_drafted(conn, each) for each in wanted]
    asks = [drafts.ask(each.draft) for each in drafted]
    reads = {
        each.draft.assistant.assistant_id: Ask(
            "assistants", "read", {"assistant_id": each.draft.assistant.assistant_id}
        )
        for each in drafted
        if each.wanted.assistant is None and drafts.has_own_assistant(each.draft)
    }
    granted = allow_all([*asks, *reads.values()])
    of_assistants = dict(zip(reads, granted[len(asks) :], strict=True))
    return [
        _permit(each, of_run, each.wanted.assistant or of_assistants.get(each.draft.assistant.assistant_id))
        for each, of_run in zip(drafted, granted, strict=False)
    ]


def _permit(drafted: _Drafted, granted: Granted, assistant: Granted | None) -> Permit:
    try:
        draft = drafts.changed(drafted.draft, granted.value)
    except ValueError as error:
        authorization.fail(unasked(), str(error))
    return Permit(drafted, draft, granted.filter, None if assistant is None else assistant.filter)


def _drafted(conn: Connection, wanted: WantedRun) -> _Drafted:
    """Draft a run as far as its thread and assistant allow, without raising an error about them."""
    found, asked, refusal = drafts.unknown(wanted.request), None, None
    try:
        asked = _request(conn, unasked().id, wanted)
    except (Refused, RpcError):
        pass  # raised again after authorization
    found_out = asked or wanted.request
    if found_out.assistant_id:
        found, refusal = drafts.resolved(conn, unasked(), found_out)
    caller = user()
    draft = drafts.draft(
        found_out,
        found,
        thread_id=wanted.thread_id,
        run_id=wanted.run_id,
        request_id=request_id(),
        user=None if caller is None else caller.document,
    )
    return _Drafted(wanted, draft, asked, refusal)


def _request(conn: Connection | Driver, deployment_id: UUID, wanted: WantedRun) -> RunRequest:
    """Return the request, derived from the current state of the thread if the run depends on it."""
    if wanted.of_thread is None:
        return _traced(wanted.request)
    assert isinstance(conn, Connection)
    return _traced(wanted.of_thread(conn, deployment_id))


def _traced(request: RunRequest) -> RunRequest:
    """Return the run request with the trace context of the current HTTP request."""
    place = trace()
    return request if place is None else replace(request, extras={**request.extras, **place.entries})


def make(wanted: WantedRun, *, has_key: bool | None = None) -> tuple[Created, Response]:
    """Insert a run, commit, then notify the runners. Returns the run and a response with its record.

    `has_key`: whether the request has an idempotency key; by default, whether it has the header. Raises Repeated for a
    request that was answered before under its key.
    """
    if has_key is None:
        has_key = HEADER in request.headers
    try:
        created, response = _insert(wanted, has_key=has_key)
    except OutcomeUnknown as error:
        created = _found(wanted.run_id, error)
        response = _record(created, wanted.thread_id)
    publish_cancels(created.displaced, settings().event_retention_seconds)
    _notify(created)
    return created, response


def make_unkeyed(wanted: WantedRun) -> Created:
    """Create a run for an interface without idempotency keys, otherwise as `make`."""
    return make(wanted, has_key=False)[0]


def make_all(wanted: Sequence[WantedRun]) -> Response:
    """Create runs without a thread, all or none of them. Returns a response with their records."""
    permitted = permits(wanted)
    is_full = _is_full(len(wanted))
    with connection() as conn:
        for permit in permitted:
            if permit is not None:
                permit.require_visible(conn, deployment().id)
        keep = once(conn)
        if is_full:
            raise is_full
        depth = _depth(conn)
        made = [_made(conn, *each, depth=depth) for each in zip(wanted, permitted, strict=True)]
        response = keep(jsonify([read.record(one.row) for one in made]))
    for one in made:
        _notify(one)
    return response


def _found(run_id: UUID, error: OutcomeUnknown) -> Created:
    """Return the run whose commit got no answer from the database. Raises `error` if it was not committed.

    The client would answer an error with a repeated request, which would create a second run.
    """
    with driver() as conn:
        found = create.made(conn, run_id)
    if found is None:
        raise error
    return found


def _insert(wanted: WantedRun, *, has_key: bool) -> tuple[Created, Response]:
    for _ in range(TRIES):
        try:
            return _try_to_insert(wanted, permits([wanted])[0], has_key=has_key)
        except _Moved:
            continue
    raise Conflict("The thread changed during every attempt to authorize this run. Try again.")


def _try_to_insert(wanted: WantedRun, permit: Permit | None, *, has_key: bool) -> tuple[Created, Response]:
    is_full = _is_full(1)
    # A creation that reads other runs, a filter or an earlier response takes several statements in one transaction. Any
    # other creation is a single insert.
    looks = has_key or wanted.of_thread is not None or (permit is not None and permit.is_filtered)
    alone = not looks and (wanted.thread_id is None or not create.depends_on_thread(wanted.request))
    with driver() if alone else connection() as conn:
        if permit is not None:
            permit.require_visible(conn, deployment().id)
        keep = once(conn) if has_key else None  # before `is_full`: a repeated request creates nothing
        if is_full:
            raise is_full
        created = _made(conn, wanted, permit, depth=_depth(conn))
        response = _record(created, wanted.thread_id)
        if keep is not None:
            keep(response)
    return created, response


def _depth(conn: Connection | Driver) -> int:
    """Return the nesting depth of a run that this request creates. Raises Invalid, and Conflict if it is too deep.

    Clients in graph hosts send commands over HTTP. A command on a WebSocket names no calling run, so its depth is 0.
    """
    if not has_request_context():
        return 0
    calling = uuid_header(nesting.HEADER)
    return 0 if calling is None else nesting.depth_below(conn, calling)


def _made(conn: Connection | Driver, wanted: WantedRun, permit: Permit | None, *, depth: int) -> Created:
    serving = deployment()
    bounds: dict[str, Any] = {
        "max_pending": settings().max_pending_per_thread,
        "key_id": caller().key_id,
        "depth": depth,
    }
    if permit is not None:
        permit.require_same(conn, serving.id)
        return create.insert(conn, serving, permit.draft, filter=permit.threads, **bounds)
    return create.create_run(
        conn,
        serving,
        _request(conn, serving.id, wanted),
        thread_id=wanted.thread_id,
        run_id=wanted.run_id,
        request_id=request_id(),
        **bounds,
    )


def _record(created: Created, thread_id: UUID | None) -> Response:
    response = jsonify(read.record(created.row))
    response.headers["Content-Location"] = run_path(thread_id, created.run_id)
    return response


def _notify(created: Created) -> None:
    if created.is_due:
        broker.enqueue_run(created.pool, created.run_id)


_counted: dict[UUID, tuple[float, int]] = {}  # deployment id → time of the last count, number of pending runs


def _is_full(wanted_runs: int) -> TooMany | None:
    """Return the error if the deployment has reached its limit of pending runs, else None.

    The count is renewed every COUNT_SECONDS, so the limit can be exceeded in between.
    """
    most = settings().max_pending_per_deployment
    counted_at, pending = _counted.get(deployment().id, (0.0, 0))
    if time.monotonic() - counted_at > COUNT_SECONDS:
        with driver() as conn:
            pending = read.count_pending(conn, deployment().id, most=most)
        _counted[deployment().id] = (time.monotonic(), pending)
    if pending + wanted_runs <= most:
        return None
    return TooMany(f"This deployment has {pending} pending runs already.", retry_after_seconds=5)
