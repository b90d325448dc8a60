"""Makes runs, for every call that does: asks the deployment's authorization, commits the row, notifies the runner.

It is asked before anything is told: whoever is refused does not learn what there is. And no connection is held while
a project's functions think, so that a thread may have moved by then: what a run is to be, by the state of its thread,
is found out again with the thread held, and asked about again where it came out differently.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from flask import Response, g, has_request_context, jsonify, request
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
from web import tracing
from web.auth import caller
from web.context import deployment, settings
from web.deployment_api.authorization import allow_all, unasked, user
from web.deployment_api.json_rpc import RpcError
from web.deployment_api.locations import run_path
from web.idempotency import once
from web.validation import uuid_header

COUNT_SECONDS = 2.0
TRIES = 3  # a thread that moves each time is somebody's loop


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRun:
    """A run that a caller wants.

    `of_thread` says what the request comes to on the thread as it is, in a transaction, and raises what refuses it;
    `hidden` is what a caller is answered about a thread that is not theirs: the same as of one that is not there.
    """

    request: RunRequest
    thread_id: UUID | None
    run_id: UUID = field(default_factory=uuid7)
    of_thread: Callable[[Connection, UUID], RunRequest] | None = None
    hidden: Callable[[], Exception] = create.missing
    assistant: Granted | None = None  # what was said of reading it, where it was asked already


class _Moved(Exception):
    """The thread is not as it was when the handlers were asked."""


@dataclass(frozen=True, slots=True)
class _Drafted:
    """What the handlers are asked about."""

    wanted: WantedRun
    draft: Draft
    asked: RunRequest | None  # None: the thread refuses it as it is
    refusal: Refused | None  # of the assistant

    @property
    def names_assistant(self) -> bool:
        """Whether the caller said of which assistant it is to be, and not the thread."""
        named = self.wanted.request.assistant_id
        return bool(named) and (self.asked is None or self.asked.assistant_id == named)


@dataclass(frozen=True, slots=True)
class Permit:
    """What the handlers left of a run, and which thread and assistant it may have."""

    drafted: _Drafted
    draft: Draft
    threads: Filter | None
    assistants: Filter | None

    @property
    def is_filtered(self) -> bool:
        return bool(self.threads or self.assistants)

    def require_visible(self, conn: Connection | Driver, deployment_id: UUID) -> None:
        """Raise what the caller is answered about a thread or an assistant that is not there for them; holds the thread."""
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
        """Raise _Moved where something else was asked about than is to be made now, and what refuses it now."""
        if (
            self.drafted.wanted.of_thread is not None
            and _request(conn, deployment_id, self.drafted.wanted) != self.drafted.asked
        ):
            raise _Moved
        if self.drafted.refusal is not None:
            raise self.drafted.refusal


def permits(wanted: Sequence[WantedRun]) -> Sequence[Permit | None]:
    """Ask whether these runs may be made, all at once; None each where nobody decides. Raises Denied."""
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
    """What a run is to be, as far as that can be said; nothing of it is told."""
    found, asked, refusal = drafts.unknown(wanted.request), None, None
    try:
        asked = _request(conn, unasked().id, wanted)
    except (Refused, RpcError):
        pass  # it is raised again after the handlers were asked
    found_out = asked or wanted.request
    if found_out.assistant_id:
        found, refusal = drafts.resolved(conn, unasked(), found_out)
    caller = user()
    draft = drafts.draft(
        found_out,
        found,
        thread_id=wanted.thread_id,
        run_id=wanted.run_id,
        request_id=g.get("request_id", ""),
        user=None if caller is None else caller.document,
    )
    return _Drafted(wanted, draft, asked, refusal)


def _request(conn: Connection | Driver, deployment_id: UUID, wanted: WantedRun) -> RunRequest:
    """What is to be made on the thread as it is."""
    if wanted.of_thread is None:
        return tracing.placed(wanted.request)
    assert isinstance(conn, Connection)
    return tracing.placed(wanted.of_thread(conn, deployment_id))


def make(wanted: WantedRun, *, has_key: bool | None = None) -> tuple[Created, Response]:
    """Commit the run's row, then notify; also its record as an answer.

    `has_key`: whether the request may be answered as another was; by its header, unless told. Raises Repeated.
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
    """The same for an interface whose calls know no `Idempotency-Key`."""
    return make(wanted, has_key=False)[0]


def make_all(wanted: Sequence[WantedRun]) -> Response:
    """Runs without a thread, all or none; their records as an answer."""
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
    """The run whose commit was not answered, if it was carried out: an error would have the caller send it again."""
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
    raise Conflict(
        "The thread has moved each time that it was asked whether this run may be made. Try again."
    )


def _try_to_insert(wanted: WantedRun, permit: Permit | None, *, has_key: bool) -> tuple[Created, Response]:
    is_full = _is_full(1)
    # What looks at other runs, or at an earlier answer, is several statements in one transaction, the rest
    # one that inserts.
    looks = has_key or wanted.of_thread is not None or (permit is not None and permit.is_filtered)
    alone = not looks and (wanted.thread_id is None or not create.depends_on_thread(wanted.request))
    with driver() if alone else connection() as conn:
        if permit is not None:
            permit.require_visible(conn, deployment().id)
        keep = once(conn) if has_key else None  # a repetition makes nothing: it is answered also when full
        if is_full:
            raise is_full
        created = _made(conn, wanted, permit, depth=_depth(conn))
        response = _record(created, wanted.thread_id)
        if keep is not None:
            keep(response)
    return created, response


def _depth(conn: Connection | Driver) -> int:
    """The depth of a run that this request creates. Raises Invalid, and Conflict for one that is nested too deep.

    Clients in graph hosts send commands over HTTP: what comes on a WebSocket names no run.
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
        request_id=g.get("request_id", ""),
        **bounds,
    )


def _record(created: Created, thread_id: UUID | None) -> Response:
    response = jsonify(read.record(created.row))
    response.headers["Content-Location"] = run_path(thread_id, created.run_id)
    return response


def _notify(created: Created) -> None:
    if created.is_due:
        broker.enqueue_run(created.pool, created.run_id)


_counted: dict[UUID, tuple[float, int]] = {}  # deployment → when, how many runs were pending


def _is_full(wanted_runs: int) -> TooMany | None:
    """The refusal where the deployment's bound of pending runs is reached.

    They are counted every few seconds, so it may be overshot.
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
