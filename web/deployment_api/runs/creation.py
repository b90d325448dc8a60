"""Creation of runs by the current request: its caller, limits, trace and idempotency key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

from flask import Response, has_request_context, jsonify
from sqlalchemy import Connection

from shared.access.idempotency import HEADER
from shared.infra.trace_context import Context
from shared.runs import creation, nesting
from shared.runs.create import Created
from shared.runs.creation import TransactionPart
from shared.runs.drafts import Creator, RunRequest
from shared.runs.read import show_new
from shared.user_code.authorization import Granted
from web.deployment_api.runs.follower import run_path
from web.gate.addresses import client_address
from web.gate.context import (
    allow_all,
    caller,
    request_id,
    settings,
    trace,
    unchecked_deployment,
    user_document,
)
from web.gate.idempotency import once
from web.http.headers import request_header
from web.schemas.validation import uuid_header

Render = Callable[[Sequence[Created]], Response]


def create_run(
    run_request: RunRequest,
    *,
    part: TransactionPart | None = None,
    assistant_read: Granted | None = None,
    trace: Context | None = None,
) -> Created:
    """Create a run. Ignores an idempotency key, unless `part` does not. See `shared.runs.creation.create_runs`.

    `trace` takes the place of the trace that the headers of the request name.
    """
    creator = _creator()
    if trace is not None:
        creator = replace(creator, trace=trace.entries)
    return creation.create_runs(creator, [run_request], part=part, assistant_read=assistant_read)[0]


def create_runs(run_requests: Sequence[RunRequest], render: Render) -> list[Created]:
    """Create runs under the idempotency key of the current request, if it has one.

    Raises Repeated for a request that was answered before under its key. `render` makes the stored response.
    """
    part = _StoredResponse(render) if request_header(HEADER) is not None else None
    return creation.create_runs(_creator(), run_requests, part=part)


def respond_with_new(run_requests: Sequence[RunRequest], render: Render) -> Response:
    """Create runs as `create_runs` does, and return the response that `render` makes of them."""
    return render(create_runs(run_requests, render))


def run_renderer(thread_id: UUID | None) -> Render:
    """Return a function that renders the record of one created run. Its path has the thread that the caller named."""

    def render(created: Sequence[Created]) -> Response:
        (run,) = created
        response = jsonify(show_new(run.row))
        response.headers["Content-Location"] = run_path(thread_id, run.run_id)
        return response

    return render


def render_batch(created: Sequence[Created]) -> Response:
    return jsonify([show_new(run.row) for run in created])


class _StoredResponse:
    """The response of a request with an idempotency key, which is stored in the transaction that creates the runs."""

    def __init__(self, render: Render) -> None:
        self._render = render

    def begin(self, conn: Connection) -> None:
        self._keep = once(conn)

    def complete(self, conn: Connection, created: Sequence[Created]) -> None:
        self._keep(self._render(created))


def _creator() -> Creator:
    """Return the creator of runs that the current request stands for.

    Clients in graph hosts send commands over HTTP. A command on a WebSocket names no calling run.
    """
    deployment, limits, context = unchecked_deployment(), settings(), trace()
    return Creator(
        deployment,
        user=user_document(),
        authorize=None if deployment.user_code.auth is None else allow_all,
        key_id=caller().key_id,
        address=client_address(settings()) if has_request_context() else "",
        request_id=request_id(),
        trace={} if context is None else context.entries,
        parent_run_id=uuid_header(nesting.HEADER) if has_request_context() else None,
        max_pending_per_thread=limits.max_pending_per_thread,
        max_pending=limits.max_pending_per_deployment,
        event_retention_seconds=limits.event_retention_seconds,
    )
