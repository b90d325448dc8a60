"""Revisions: list, read, create, redeploy, interrupt, stream."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any
from uuid import UUID

from flask import Response, jsonify, request
from redis.exceptions import RedisError
from sqlalchemy import Connection

from shared.audit import Action
from shared.deployments import deployments, revision_events, revisions, traffic
from shared.deployments.records import DEPLOYMENT, REVISION
from shared.eventlog import events, follow
from shared.eventlog.hub import hub
from shared.infra import redis
from shared.infra.postgres import Row, connection
from shared.models import REVISION_ENDS, RevisionStatus
from web.control_plane.deployments import change_of, deployment_record
from web.control_plane.sources import MAX_PREVIEW, PREVIEW, RevisionContent
from web.gate.audit import actor, record_action
from web.gate.context import caller, settings
from web.gate.idempotency import once
from web.http import sse
from web.http.responses import conditional, matches_etag, resource_page, resource_page_schema, with_etag
from web.schemas import fields
from web.schemas.operations import RouteGroup
from web.schemas.validation import whole_number

bp = RouteGroup("revisions", section="Revisions")


MAX_WAIT_SECONDS = 25  # below the 30 seconds after which clients and proxies give up


class RevisionCreate(RevisionContent):
    preview = fields.StrictString(pattern=PREVIEW, max_length=MAX_PREVIEW, allow_none=True)


class RevisionRead(fields.Schema):
    # A longer wait ends at the maximum, since clients repeat the request anyway.
    wait = fields.QueryInteger(minimum=0, load_default=0)


class RevisionSearch(fields.Page):
    # A larger limit returns a page of the maximum size, since clients send what their user typed.
    limit = fields.QueryInteger(minimum=1, load_default=20)
    status = fields.QueryList(fields.OneOf(*map(str, RevisionStatus)), load_default=list)
    remote_reconciled = fields.QueryBoolean()


def find_revision(conn: Connection, deployment_id: UUID, revision_id: UUID) -> Row:
    """Return a revision of one of the caller's deployments. Raises NotFound."""
    deployments.require(conn, caller().organization_id, deployment_id)
    return revisions.get(conn, deployment_id, revision_id)


@bp.operation(
    "GET /v2/deployments/<deployment_id>/revisions",
    "List a deployment's revisions, newest first",
    role="read",
    answer=resource_page_schema(REVISION.schema),
    query=RevisionSearch,
    errors=(404,),
)
def list_revisions(deployment_id: UUID, query: dict[str, Any]) -> Response:
    with connection() as conn:
        deployments.require(conn, caller().organization_id, deployment_id)
        rows = revisions.list_of(
            conn,
            deployment_id,
            statuses=query["status"],
            limit=min(query["limit"], fields.MAX_PAGE),
            offset=query["offset"],
        )
    return resource_page([REVISION.show(row) for row in rows], offset=query["offset"])


@bp.operation(
    "POST /v2/deployments/<deployment_id>/revisions",
    "Create a revision",
    role="deploy",
    answer=REVISION.schema,
    body=RevisionCreate,
    status=201,
    errors=(400, 404, 409),
    idempotent=True,
)
def create_revision(deployment_id: UUID, body: dict[str, Any]) -> Response:
    """Create a revision: a copy of the latest one with the changes in the body.

    A revision with a `preview` serves only the address of that preview.
    """
    with connection() as conn:
        keep = once(conn)
        change = change_of(conn, deployment_id, body)
        organization_id, preview = caller().organization_id, body.get("preview")
        if preview:
            revision_id, transitions = traffic.add_preview(
                conn, organization_id, deployment_id, preview, change, by=actor(conn)
            )
        else:
            revision_id, transitions = deployments.add_revision(
                conn, organization_id, deployment_id, change, by=actor(conn)
            )
        row = revisions.get(conn, deployment_id, revision_id)
        response = keep(jsonify(REVISION.show(row)), 201)
    revision_events.announce(transitions)
    return response


@bp.operation(
    "GET /v2/deployments/<deployment_id>/revisions/<revision_id>",
    "Get a revision, optionally after a wait for a change",
    role="read",
    long="wait",
    answer=REVISION.schema,
    query=RevisionRead,
    errors=(304, 404),
)
def get_revision(deployment_id: UUID, revision_id: UUID, query: dict[str, Any]) -> Response:
    """Return a revision. Answers 304 if If-None-Match holds the record's ETag.

    `wait` delays the answer by up to that many seconds, until the record differs from the ETag in If-None-Match.
    Without If-None-Match, it delays the answer until the revision has ended.
    """
    wait_seconds = min(query["wait"], MAX_WAIT_SECONDS)
    look = partial(revision_events.look, caller().organization_id, deployment_id, revision_id)
    row = look()
    if wait_seconds and _is_awaited(row):
        for _ in revision_events.changes(revision_id, seconds=wait_seconds):
            row = look()
            if not _is_awaited(row):
                break
    return conditional(REVISION.show(row))


def _is_awaited(row: Row) -> bool:
    """Return whether a waiting caller keeps waiting: its ETag matches, or it sent none and the revision has not ended."""
    if request.if_none_match:
        return matches_etag(with_etag(REVISION.show(row)))
    return row["status"] not in REVISION_ENDS


@bp.operation(
    "POST /v2/deployments/<deployment_id>/revisions/<revision_id>/redeploy",
    "Redeploy a revision",
    role="deploy",
    answer=DEPLOYMENT.schema,
    errors=(400, 404, 409),
    idempotent=True,
)
def redeploy_revision(deployment_id: UUID, revision_id: UUID) -> Response:
    """Create a revision with the source and secrets of this one. An existing build is reused.

    If the deployment requires replays, this revision must have served, or its newest judged replay must have passed.
    """
    with connection() as conn:
        keep = once(conn)
        _, transitions = deployments.redeploy(
            conn, caller().organization_id, deployment_id, revision_id, by=actor(conn)
        )
        row = deployments.get(conn, caller().organization_id, deployment_id)
        response = keep(jsonify(deployment_record(row)))
    revision_events.announce(transitions)
    return response


@bp.operation(
    (
        "POST /v1/projects/<deployment_id>/revisions/<revision_id>/interrupt",
        "POST /v2/deployments/<deployment_id>/revisions/<revision_id>/interrupt",
    ),
    "Interrupt a revision",
    role="deploy",
    answer=REVISION.schema,
    errors=(404,),
)
def interrupt_revision(deployment_id: UUID, revision_id: UUID) -> Response:
    """Stop a revision that is being built or deployed. The serving revision keeps serving.

    A revision that has ended stays unchanged.
    """
    with connection() as conn:
        transitions = deployments.interrupt(conn, caller().organization_id, deployment_id, revision_id)
        row = revisions.get(conn, deployment_id, revision_id)
        if transitions:
            name = deployments.get(conn, caller().organization_id, deployment_id)["name"]
            record_action(
                conn,
                Action.REVISION_INTERRUPTED,
                name,
                deployment_id=deployment_id,
                revision_number=row["number"],
            )
    revision_events.announce(transitions)
    return jsonify(REVISION.show(row))


@bp.operation(
    "GET /v2/deployments/<deployment_id>/revisions/<revision_id>/stream",
    "Stream the statuses and the build log of a revision",
    role="read",
    long=True,
    sse=True,
    errors=(404,),
)
def stream_revision(deployment_id: UUID, revision_id: UUID) -> Response:
    """Stream the events `status` and `log`, from the first one or after Last-Event-ID. The last event is `end`.

    For a revision that ended long ago, the stream holds the stored build log and the last status.
    """
    with connection() as conn:
        row = find_revision(conn, deployment_id, revision_id)
    id: UUID = row["id"]
    heartbeat = sse.HeartbeatTimer(settings().heartbeat_seconds)
    after = _position(request.headers.get("Last-Event-ID"), row["seq_reserved"])
    if row["status"] in REVISION_ENDS and _newest(id) <= after:
        return _streamed(_stored_events(row, after), heartbeat, holds=nullcontext())

    def ended(_last: int) -> follow.RowEnd | None:
        last_events = revision_events.last_events(id)
        return None if last_events is None else follow.RowEnd(last_events)

    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(id))
        batches = follow.follow(
            reader,
            id,
            after=after,
            ended=ended,
            quiet_seconds=heartbeat.quiet_seconds,
        )
        return _streamed(batches, heartbeat, holds=stack.pop_all())


def _stored_events(row: Row, after: int) -> sse.Batches:
    """Return the events of an ended revision that follow the event number `after`."""
    if after:
        return [revision_events.last_events(row["id"]) or []]
    return revision_events.replay(row["deployment_id"], row["id"])


def _streamed(
    batches: sse.Batches, heartbeat: sse.HeartbeatTimer, *, holds: AbstractContextManager[object]
) -> Response:
    body = sse.body(batches, heartbeat, with_ids=True, with_end=True, headers_first=True)
    return sse.event_stream(sse.Stream(body, holds=holds, on_disconnect=None), {})


def _newest(id: UUID) -> int:
    """Return the number of the newest event in the event log, or 0 if there is none."""
    try:
        return events.position(redis.events(id), id)
    except RedisError:
        return 0


def _position(last_event_id: str | None, reserved: int) -> int:
    """Return the event number to resume after. An id that no event of this revision can have means 0, the beginning."""
    number = whole_number((last_event_id or "").strip())
    return number if number is not None and number <= reserved else 0
