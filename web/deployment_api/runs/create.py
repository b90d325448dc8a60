"""Routes that create runs, with or without a thread: in the background, wait, stream, retry.

A route that follows a new run subscribes to the run's channel before it inserts the row. It cannot miss an event, and
need not read the event log first. A creation that is repeated under its `Idempotency-Key` creates nothing: it returns
the stream or the output of the run that the first request created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from flask import Response

from shared.eventlog.hub import Reader, hub
from shared.runs import retry
from shared.runs.drafts import RunRequest
from shared.runs.read import RUN
from web.deployment_api.runs import creation, stream_filter
from web.deployment_api.runs.follower import (
    FOLLOWED_HEADERS,
    OUTPUT,
    RUN_HEADERS,
    RunFollower,
    stream_headers,
)
from web.deployment_api.runs.run_request import (
    MAX_BATCH,
    CreateQuery,
    RunCreate,
    read_run_request,
    read_run_requests,
    requested_namespaces,
)
from web.gate.idempotency import REPLAYED, Repeated
from web.http import sse
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("runs", section="Runs", switches=("disable_runs",))


CREATES: dict[str, Any] = {
    "role": "run",
    "body": RunCreate,
    "errors": (400, 404, 409, 429),
    "idempotent": True,
    "id_message": "Invalid thread ID",
}
FOLLOWS: dict[str, Any] = {**CREATES, "long": True, "headers": FOLLOWED_HEADERS}


@bp.with_and_without_thread(
    "POST /runs",
    "Create a run on a thread",
    "Create a run without a thread",
    answer=RUN.schema,
    headers=RUN_HEADERS,
    **CREATES,
)
def create_run(thread_id: UUID | None) -> Response:
    run_request, _ = read_run_request(thread_id)
    return creation.respond_with_new([run_request], creation.run_renderer(thread_id))


@bp.operation(
    "POST /runs/batch",
    "Create several runs without a thread",
    body_items=MAX_BATCH,
    answer=RUN.schema,
    many=True,
    **CREATES,
)
def create_batch() -> Response:
    """Create all runs of the array, or none of them. Returns their records in the same order."""
    return creation.respond_with_new(read_run_requests(), creation.render_batch)


@bp.with_and_without_thread(
    "POST /runs/stream",
    "Create a run on a thread and stream its events",
    "Create a run without a thread and stream its events",
    query=CreateQuery,
    sse=True,
    **FOLLOWS,
)
def stream_run(thread_id: UUID | None) -> Response:
    namespaces = requested_namespaces()
    run_request, on_disconnect = read_run_request(thread_id, namespaces)

    def stream(run: FollowedRun, stack: ExitStack) -> Response:
        body = sse.body(
            run.batches(),
            run.follower.heartbeat,
            with_ids=run.is_resumable,
            rename=stream_filter.creator_filter(run.kwargs, namespaces),
            headers_first=not run.starts_at_once,
        )
        headers = stream_headers(thread_id, run.run_id)
        return sse.event_stream(run.follower.stream(body, stack.pop_all()), headers)

    return _create_and_follow(run_request, stream, cancels=on_disconnect == "cancel")


@bp.with_and_without_thread(
    "POST /runs/wait",
    "Create a run on a thread and wait for its output",
    "Create a run without a thread and wait for its output",
    answer=OUTPUT,
    **FOLLOWS,
)
def wait_for_run(thread_id: UUID | None) -> Response:
    run_request, on_disconnect = read_run_request(thread_id)
    return _create_and_follow(
        run_request,
        lambda run, stack: run.follower.answer(run.reader, stack.pop_all(), after=0),
        cancels=on_disconnect == "cancel",
    )


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """The run that a request created or, if the request is repeated under its key, that the first request created."""

    reader: Reader
    follower: RunFollower
    run_id: UUID
    kwargs: Mapping[str, Any]
    is_resumable: bool
    starts_at_once: bool = False
    is_new: bool = False

    def batches(self) -> sse.Batches:
        """Return the run's events from its start. The log of an older run may have lost its first events."""
        if self.is_new:
            return self.follower.batches_of_new(self.reader, starts_at_once=self.starts_at_once)
        return self.follower.batches(self.reader, after=0)


def _create_and_follow(
    run_request: RunRequest, respond: Callable[[FollowedRun, ExitStack], Response], *, cancels: bool
) -> Response:
    """Create a run and respond with its events or its output. `respond` takes the open resources from the stack."""
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(run_request.run_id, before_creation=True))
        try:
            (created,) = creation.create_runs([run_request], creation.run_renderer(run_request.thread_id))
        except Repeated as repeated:
            first = _first_answer(repeated)
        else:
            run = FollowedRun(
                reader,
                RunFollower(created.run_id, created.thread_id, cancels=cancels, kwargs=created.row["kwargs"]),
                created.run_id,
                created.row["kwargs"],
                is_resumable=run_request.stream_resumable,
                starts_at_once=created.starts_at_once,
                is_new=True,
            )
            return respond(run, stack)
    return _follow_first(first, respond, cancels=cancels)


def _follow_first(
    first: Mapping[str, Any], respond: Callable[[FollowedRun, ExitStack], Response], *, cancels: bool
) -> Response:
    """Respond with the run that the first request under this key created."""
    run_id, kwargs = UUID(first["run_id"]), first["kwargs"]
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(run_id))
        follower = RunFollower(run_id, UUID(first["thread_id"]), cancels=cancels, kwargs=kwargs)
        run = FollowedRun(reader, follower, run_id, kwargs, is_resumable=kwargs["resumable"])
        response = respond(run, stack)
        response.headers[REPLAYED] = "true"
        return response


def _first_answer(repeated: Repeated) -> dict[str, Any]:
    """Return the record of the run that the first request under this key created."""
    assert isinstance(repeated.response, Response)
    return orjson.loads(repeated.response.get_data())


class Retry(fields.Schema):
    force = fields.StrictBoolean(load_default=False)


@bp.operation(
    "POST /threads/<thread_id>/runs/<run_id>/retry",
    "Retry a failed run from its last checkpoint",
    role="run",
    answer=RUN.schema,
    headers=RUN_HEADERS,
    body=Retry,
    errors=(400, 404, 409, 429),
    idempotent=True,
)
def retry_run(thread_id: UUID, run_id: UUID, body: dict[str, Any]) -> Response:
    """Create a run with the configuration of the failed one, on the revision that the deployment serves now.

    If the failed run has no checkpoint, the new run starts over from its input. Returns 409 while the thread is busy.
    Also returns 409 if the thread has moved on since the failed run, unless `force` is true: the new run then forks the
    thread from the failed run's last checkpoint.
    """
    rule = retry.RetryRun(run_id, force=body["force"])
    run_request = RunRequest(assistant_id="", thread_id=thread_id, rule=rule)
    return creation.respond_with_new([run_request], creation.run_renderer(thread_id))
