"""The Agent-User Interaction protocol (AG-UI 1.0) at a deployment's address: each assistant is an agent.

`schema` and `incoming` turn a client's `RunAgentInput` into a run, `messages` converts messages in both directions.
`events` is the state machine that turns the run's stream into AG-UI events; `transcript` has its messages, `state` its
state, `interrupts` its questions. `following` connects the stream of a run with a client.
"""

from __future__ import annotations

from contextlib import ExitStack
from http import HTTPStatus
from typing import Any

from flask import Response, jsonify, request

from shared.errors import Invalid
from shared.eventlog.hub import hub
from shared.infra.postgres import connection
from shared.models import LIVE_RUN_STATUSES, RunStatus
from shared.records import OBJECT
from shared.runs import read
from shared.runs.create import Created
from shared.runs.drafts import RunRequest
from shared.threads import records
from shared.user_code import filters
from web.deployment_api.protocols.access import readable_agent, refuse_foreign_page
from web.deployment_api.protocols.ag_ui import following
from web.deployment_api.protocols.ag_ui.events import STREAM_MODES, End, RunEvents, RunName
from web.deployment_api.protocols.ag_ui.incoming import (
    KEY,
    AgentInput,
    CheckpointNeeded,
    Forwarded,
    NoRun,
    checkpoint_before,
    is_old,
    name_of,
    run_request,
    thread_id_of,
    waiting_of,
)
from web.deployment_api.protocols.ag_ui.schema import JoinQuery, RunAgentInput
from web.deployment_api.protocols.conversation import takes_messages
from web.deployment_api.runs.creation import create_run
from web.deployment_api.runs.follower import FOLLOWED_HEADERS, RunFollower, stream_headers
from web.deployment_api.runs.joins import add_stream_modes
from web.gate.context import allow, deployment
from web.http import sse
from web.schemas.operations import JSON, SSE, RouteGroup
from web.schemas.validation import BAD_JSON, load

bp = RouteGroup("ag_ui", section="AG-UI", switches=("disable_ag_ui",))
bp.before_request(refuse_foreign_page)


@bp.operation(
    "POST /ag-ui/<assistant_id>",
    "Run an assistant and stream AG-UI events",
    role="run",
    body=RunAgentInput,
    sse=True,
    long=True,
    headers=FOLLOWED_HEADERS,
    errors=(400, 404, 406, 409, 415, 429),
    strict_slashes=False,
)
def run_agent(assistant_id: str) -> Response:
    """Run the assistant on the thread that `threadId` names, which is created if it is missing."""
    _require_stream()
    body = _body()
    name, forwarded = name_of(body), Forwarded.of(body)
    rule = AgentInput(assistant_id, body, forwarded)
    draft = run_request(name, rule)
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(draft.run_id, before_creation=True))
        try:
            created = _create(draft, rule)
        except NoRun as refusal:
            end = End(RunStatus.SUCCESS, refusal.values, refusal.waiting)
            return _whole(RunEvents(name, refusal.values), end)
        follower = RunFollower(created.run_id, created.thread_id, cancels=forwarded.cancels)
        run = RunEvents(name, rule.values, subgraphs=forwarded.shows_subgraphs)
        batches = follower.batches_of_new(reader, starts_at_once=created.starts_at_once)
        chunks = following.follow(follower, run, batches)
        headers = stream_headers(created.thread_id, created.run_id)
        return sse.event_stream(follower.stream(chunks, stack.pop_all()), headers)


def _create(draft: RunRequest, rule: AgentInput) -> Created:
    """Create the run. A run that regenerates an answer first needs the checkpoint before the message."""
    try:
        return create_run(draft)
    except CheckpointNeeded as needed:
        assert draft.thread_id is not None
        rule.checkpoint_id = checkpoint_before(draft.thread_id, needed.message_id)
    return create_run(draft)


@bp.operation(
    "GET /ag-ui/<assistant_id>",
    "Join the newest run of a thread as AG-UI events",
    role="read",
    query=JoinQuery,
    sse=True,
    long=True,
    errors=(404, 406),
    strict_slashes=False,
)
def join_agent(assistant_id: str, query: dict[str, Any]) -> Response:
    """Join the newest run of the thread that `threadId` names. If it has ended, the stream has its end at once."""
    _require_stream()
    old = is_old(query.get("protocolVersion"))
    readable_agent(assistant_id, may_be_past=True)
    thread_id = thread_id_of(query["threadId"])
    granted = allow("threads", "read", thread_id=thread_id)
    with connection() as conn:
        filters.require_thread(conn, deployment().id, thread_id, granted.filter)
        thread = records.get(conn, deployment().id, thread_id)
        row = next(iter(read.list_of_thread(conn, deployment().id, thread_id, limit=1, offset=0)), None)
    metadata = row["metadata"].get(KEY) if row is not None else None
    run_id = metadata.get("run_id") if isinstance(metadata, dict) else None
    unnamed = thread_id if row is None else row["run_id"]
    name = RunName(query["threadId"], str(run_id or unnamed), is_old=old)
    run = RunEvents(name, thread["values"])
    if row is None:
        return _whole(run, End(RunStatus.SUCCESS, thread["values"], waiting_of(thread)))
    follower = RunFollower(row["run_id"], thread_id, cancels=False)
    if row["status"] not in LIVE_RUN_STATUSES:
        return _whole(run, following.end_of_row(follower))
    with ExitStack() as stack:
        add_stream_modes(row, list(STREAM_MODES), None)
        reader = stack.enter_context(hub().reader(follower.run_id))
        newest, _ = follower.extent()
        chunks = following.join(follower, run, follower.batches(reader, after=0), shown=newest)
        headers = stream_headers(thread_id, follower.run_id)
        return sse.event_stream(follower.stream(chunks, stack.pop_all()), headers)


@bp.operation(
    "GET /ag-ui/<assistant_id>/capabilities",
    "Get an assistant's AG-UI capabilities",
    role="read",
    answer=OBJECT,
    errors=(404,),
    strict_slashes=False,
)
def get_capabilities(assistant_id: str) -> Response:
    agent = readable_agent(assistant_id)
    has_messages = takes_messages(agent["input_schema"])
    media = dict.fromkeys(("image", "audio", "video", "pdf", "file"), True)
    return jsonify(
        {
            "identity": {
                "name": agent["name"] or agent["graph_id"],
                "type": "langgraph",
                **({"description": agent["description"]} if agent["description"] else {}),
                "version": str(agent["version"]),
            },
            "transport": {"streaming": True, "websocket": False, "httpBinary": False, "resumable": True},
            "tools": {"supported": True, "clientProvided": True, "parallelCalls": True},
            "state": {"snapshots": True, "deltas": True, "persistentState": True},
            "humanInTheLoop": {"supported": True, "approvals": True, "interrupts": True},
            "reasoning": {"supported": True, "streaming": True, "encrypted": True},
            **({"multimodal": {"input": media}} if has_messages else {}),
        }
    )


def _whole(run: RunEvents, end: End) -> Response:
    """Return the events of a stream that has nothing to wait for."""
    return sse.whole_stream(following.encode(run.ended(end)))


def _require_stream() -> None:
    """Raise Invalid with status 406 if the client does not accept server-sent events."""
    if request.accept_mimetypes and SSE not in request.accept_mimetypes:
        error = f"The Accept header must allow {SSE}"
        raise Invalid(error, loc=("header", "Accept"), status=HTTPStatus.NOT_ACCEPTABLE)


def _body() -> dict[str, Any]:
    """Return the validated body. Raises Invalid, with status 415 for another type, and 400 if it is not JSON."""
    if request.mimetype not in ("", JSON):
        error = f"The Content-Type must be {JSON}"
        raise Invalid(error, loc=("header", "Content-Type"), status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    try:
        return load(RunAgentInput)
    except Invalid as error:
        if error.message == BAD_JSON:
            error.status = HTTPStatus.BAD_REQUEST
        raise
