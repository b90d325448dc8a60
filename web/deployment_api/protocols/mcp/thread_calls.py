"""Tool calls on a thread of their own: the graph may ask the client, and the call may become a task.

The thread is deleted when the call ends, or when its client disconnects. It has a time to live from the start, so it is
also removed if this process is killed. A call waits for its run as any other. If the graph asks, the result holds the
questions, and the client sends the call again with the answers: that call resumes the thread. If the run takes long and
the client resolves tasks, the result is a task, which goes on without its client (`task_methods`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from flask import Response
from sqlalchemy import Connection

from shared.deployments.deployments import DeploymentRef
from shared.errors import NotFound, Refused, Unavailable
from shared.eventlog.events import Event
from shared.eventlog.hub import hub
from shared.infra import encryption
from shared.infra.postgres import Row, connection
from shared.models import ThreadStatus
from shared.removal import expiry
from shared.runs import cancel, create, mcp_calls
from shared.runs.create import Created
from shared.runs.creation import TransactionPart
from shared.runs.drafts import RunRequest
from shared.runs.signals import publish_cancels
from shared.threads import records
from web.deployment_api.protocols import options
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, RpcError
from web.deployment_api.protocols.mcp import progress, questions, results, tasks
from web.deployment_api.protocols.mcp.envelope import TASKS_EXTENSION, McpRequest, missing_capability
from web.deployment_api.protocols.mcp.questions import Answers, Declined, InvalidResponse, Question
from web.deployment_api.protocols.mcp.request_state import CallIdentity, InvalidState, RequestState
from web.deployment_api.runs.creation import create_run
from web.deployment_api.runs.follower import RunFollower
from web.gate.context import caller, deployment, unchecked_deployment, user
from web.gate.observation import take_slot
from web.http import sse

log = logging.getLogger(__name__)

DIRECT_MINUTES = 120  # a requestState, which may be issued again for the same questions, is valid for an hour
TASK_MINUTES = mcp_calls.KEPT // timedelta(minutes=1)  # longer while the task waits, see `keep_waiting`
STEPS = ("updates",)  # the stream mode from which a client learns what its call does
TASKS_REQUIRED = {"extensions": {TASKS_EXTENSION: {}}}


@dataclass(frozen=True, slots=True)
class Terms:
    """Answers that a call may get apart from its result: questions, and a task."""

    asks: bool
    task_after: float | None = None  # seconds that the client waits; 0: a task at once; None: no task

    @property
    def is_task(self) -> bool:
        return self.task_after == 0


def takes_forms(mcp: McpRequest) -> bool:
    """Return whether the client declares that it can show a form to its user."""
    elicitation = mcp.capabilities.get("elicitation")
    return isinstance(elicitation, dict) and (not elicitation or isinstance(elicitation.get("form"), dict))


def terms_of(mcp: McpRequest, tool: Row | None, *, has_progress: bool) -> Terms | None:
    """Return the terms of a call, or None if its run needs no thread. Raises RpcError for a tool that needs tasks.

    Without encryption keys no question can be sealed, so only tasks ask.
    """
    has_tasks = mcp.has_extension(TASKS_EXTENSION)
    asks = takes_forms(mcp) and encryption.is_configured()
    if tool is not None and options.is_task_required(tool):
        if not has_tasks:
            raise missing_capability(TASKS_REQUIRED)
        return Terms(asks, task_after=0)
    if has_tasks and not has_progress:
        return Terms(asks, task_after=None if tool is None else options.task_after(tool))
    return Terms(asks) if asks else None


def name_of_caller() -> str:
    """Return the caller that may continue a call: the user of the deployment's own authorization, else the key."""
    identified = user()
    return f"key:{caller().key_id}" if identified is None else f"user:{identified.identity}"


def start(
    mcp: McpRequest, tool: Row | None, request: RunRequest, terms: Terms, *, token: str | int | None
) -> Response:
    """Run an assistant on a new thread. Raises RpcError, and what refuses the run."""
    request = replace(request, thread_id=uuid4(), if_not_exists="create", lists_thread=False)
    return _run(mcp, tool, request, terms, _NewCall(name_of_caller(), terms), token=token)


def retry(
    mcp: McpRequest,
    tool: Row,
    request: RunRequest,
    terms: Terms,
    *,
    sealed: str,
    responses: Mapping[str, Any],
    token: str | int | None,
) -> Response:
    """Resume the thread of a call with the answers to its questions. Raises RpcError, and what refuses the run."""
    identity = _identity(mcp, tool)
    state: RequestState | None = None
    try:
        state = RequestState.unseal(sealed, identity)
    except InvalidState as error:
        # Refused after the authorization: a caller without access must not learn that the tool exists.
        request = replace(request, rule=RefusedCall(error))
    try:
        if state is None:
            return start(mcp, tool, request, terms, token=token)
        return _resume(mcp, tool, request, terms, state, identity, responses=responses, token=token)
    except (InvalidState, InvalidResponse) as error:
        raise RpcError(INVALID_PARAMS, error.message) from error


def _resume(
    mcp: McpRequest,
    tool: Row,
    request: RunRequest,
    terms: Terms,
    state: RequestState,
    identity: CallIdentity,
    *,
    responses: Mapping[str, Any],
    token: str | int | None,
) -> Response:
    rule = ResumeCall(identity.caller, responses, state.answers, run=state.run)
    request = replace(request, thread_id=state.thread_id, input=None, rule=rule)
    try:
        return _run(mcp, tool, request, terms, Resumption(rule, terms), token=token)
    except AnswersMissing as missing:
        again = replace(state, answers=missing.answers.responses)
        return mcp.answer(_input_required(again, missing.answers.missing, identity))
    except Declined as declined:
        _delete_waiting(state, identity)
        return mcp.answer(results.failed(declined.message))


def _identity(mcp: McpRequest, tool: Row) -> CallIdentity:
    sent = mcp.call.params
    deployment_id = unchecked_deployment().id
    arguments = sent.get("arguments") or {}
    return CallIdentity.of(deployment_id, tool["assistant_id"], name_of_caller(), sent["name"], arguments)


# The run of a call


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """The rule of an invalid call: refuses the run, after authorization."""

    error: Refused

    def complete(self, conn: Connection, deployment: DeploymentRef, request: RunRequest) -> RunRequest:
        raise self.error

    def missing(self) -> Refused:
        return create.missing()


class AnswersMissing(Refused):
    """Some questions of the call have no answer yet."""

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self.answers = answers


class ResumeCall:
    """The rule of a run that resumes a call. It answers all open questions of the thread.

    `run` is the number of the run that asked; None: the newest. If several of `responses` answer a question, the last
    one counts. A response that is stored with the call takes precedence over them.
    """

    def __init__(self, caller: str, *responses: Mapping[str, Any], run: int | None = None) -> None:
        self._caller, self._responses, self._run = caller, responses, run
        self.uses: dict[str, int] = {}  # known after `complete`

    def missing(self) -> Refused:
        return InvalidState()

    def complete(self, conn: Connection, deployment: DeploymentRef, request: RunRequest) -> RunRequest:
        """Return the request with the values that resume the graph. Locks the thread.

        Raises InvalidState if the call does not wait, AnswersMissing, Declined and InvalidResponse.
        """
        assert request.thread_id is not None
        call = lock(conn, deployment.id, request.thread_id, self._caller)
        if call is None or not mcp_calls.waits(call) or self._run not in (None, call["last_seq"]):
            raise InvalidState
        asked = questions.open_questions(call["interrupts"], call["uses"])
        answers = questions.answers_to(asked, *self._responses, call["answers"])
        if answers.missing:
            raise AnswersMissing(answers)
        self.uses = questions.uses_after(asked, call["uses"])
        return replace(
            request,
            assistant_id=str(call["assistant_id"]),
            command={"resume": answers.resume},
            if_thread_status=(ThreadStatus.INTERRUPTED,),
        )


def lock(conn: Connection, deployment_id: UUID, thread_id: UUID, caller: str) -> Row | None:
    """Lock the thread of a call and return the call, or None if it is missing or another caller's."""
    if not records.lock(conn, deployment_id, thread_id):
        return None
    return mcp_calls.get(conn, deployment_id, thread_id, caller=caller)


@dataclass(frozen=True, slots=True)
class _NewCall:
    """The record of a call, committed with its thread and run."""

    caller: str
    terms: Terms

    def begin(self, conn: Connection) -> None:
        pass

    def complete(self, conn: Connection, created: Sequence[Created]) -> None:
        deployment_id, thread_id = unchecked_deployment().id, created[0].thread_id
        mcp_calls.insert(conn, deployment_id, thread_id, caller=self.caller, is_task=self.terms.is_task)
        minutes = TASK_MINUTES if self.terms.is_task else DIRECT_MINUTES
        expiry.set_ttl(conn, deployment_id, thread_id, {"ttl": minutes})


@dataclass(frozen=True, slots=True)
class Resumption:
    """The use of the answers, committed with the run that they resume."""

    rule: ResumeCall
    terms: Terms

    def begin(self, conn: Connection) -> None:
        pass

    def complete(self, conn: Connection, created: Sequence[Created]) -> None:
        deployment_id, thread_id = unchecked_deployment().id, created[0].thread_id
        mcp_calls.record_resumption(conn, deployment_id, thread_id, self.rule.uses)
        if self.terms.is_task:
            _make_task(conn, deployment_id, thread_id)


def _run(
    mcp: McpRequest,
    tool: Row | None,
    request: RunRequest,
    terms: Terms,
    part: TransactionPart,
    *,
    token: str | int | None,
) -> Response:
    if not terms.is_task:
        take_slot()
    with ExitStack() as stack:
        reader = stack.enter_context(hub().reader(request.run_id, before_creation=True))
        created = create_run(request, part=part, trace=mcp.trace)
        assert tool is not None  # no run is created without a tool
        call = ThreadCall(mcp, tool, terms, created)
        if terms.is_task:
            return mcp.answer(tasks.created(call.row()))
        batches = call.follower.batches(reader, after=0, end_alone=True)
        if token is not None:
            body = progress.stream(mcp, batches, call.follower.heartbeat, token, call.result)
            return sse.event_stream(call.stream(body, stack.pop_all()), {})
        return sse.late_json(call.stream(call.body(batches), stack.pop_all()), {})


class TaskTimer(sse.HeartbeatTimer):
    """A timer for heartbeats, and for the moment at which a call becomes a task."""

    def __init__(self, heartbeat_seconds: float, task_after: float | None) -> None:
        super().__init__(heartbeat_seconds)
        self._task_at = None if task_after is None else time.monotonic() + task_after

    def quiet_seconds(self) -> float:
        quiet = super().quiet_seconds()
        return quiet if self._task_at is None else min(quiet, max(self._task_at - time.monotonic(), 0.0))

    def take_task(self) -> bool:
        """Return whether the call becomes a task now. True at most once."""
        if self._task_at is None or time.monotonic() < self._task_at:
            return False
        self._task_at = None
        return True


class ThreadCall:
    """A client that follows its call. Holds all that is needed after the request context has ended."""

    def __init__(self, mcp: McpRequest, tool: Row, terms: Terms, created: Created) -> None:
        self._mcp, self._tool, self._terms = mcp, tool, terms
        self._identity = _identity(mcp, tool)
        self._key = deployment().id, created.thread_id
        self._is_kept = False  # the client knows the thread, or it is deleted already
        self._is_task = False  # the call has become a task while its client waited
        self.follower = RunFollower(created.run_id, created.thread_id, cancels=True)
        self._timer = TaskTimer(self.follower.settings.heartbeat_seconds, terms.task_after)
        self.follower.heartbeat = self._timer

    def row(self) -> Row:
        """Return the call. Raises NotFound if its thread is deleted."""
        with connection() as conn:
            row = mcp_calls.get(conn, *self._key, caller=self._identity.caller)
        if row is None:
            raise records.missing(self._key[1])
        return row

    def stream(self, body: Generator[bytes], holds: ExitStack) -> sse.Stream:
        return sse.Stream(body, holds=holds, on_disconnect=self._abandon, may_end_early=False)

    def body(self, batches: sse.Batches) -> Generator[bytes]:
        """Yield line feeds until the run has ended or the call becomes a task, then the response."""
        return sse.waiting(self._until_task(batches), self._timer, self._answer)

    def _until_task(self, batches: sse.Batches) -> Iterator[list[Event]]:
        """Yield the batches until the run has ended or the call becomes a task."""
        for batch in batches:
            has_ended = bool(batch) and batch[-1].is_last
            if not has_ended and self._timer.take_task() and self._become_task():
                self._is_task = True
                return
            yield batch

    def _answer(self, last: Event | None) -> bytes:
        return self._mcp.result(tasks.created(self.row()) if self._is_task else self.result(last))

    def result(self, last: Event | None) -> dict[str, Any]:
        """Return the questions of the graph, or the result of a call that has ended. Deletes the thread of the latter."""
        if self._terms.asks and (asked := self._input_required()) is not None:
            self._is_kept = True
            return asked
        result = results.of_run(self._tool, self.follower, last)
        self._delete()
        return result

    def _input_required(self) -> dict[str, Any] | None:
        try:
            row = self.row()
        except NotFound:
            return None
        asked = tasks.open_of(row)
        if not asked or row["run_id"] != self.follower.run_id:
            return None
        state = RequestState(thread_id=row["thread_id"], run=row["last_seq"])
        return _input_required(state, asked, self._identity)

    def _become_task(self) -> bool:
        """Make the call a task, which its client may not know yet. Returns False if the thread is deleted."""
        with connection() as conn:
            self._is_kept = _make_task(conn, *self._key)
        return self._is_kept

    def _delete(self) -> None:
        self._is_kept = True
        try:
            with connection() as conn:
                stopped = cancel.delete_thread(conn, *self._key)
            publish_cancels(stopped, self.follower.settings.event_retention_seconds)
        except NotFound:
            pass
        except Unavailable as error:
            log.warning("thread %s: not deleted after its call: %s", self._key[1], error)

    def _abandon(self) -> None:
        """Delete the thread of a call whose client has disconnected. That cancels its run."""
        if not self._is_kept:
            self._delete()


def _make_task(conn: Connection, deployment_id: UUID, thread_id: UUID) -> bool:
    if not mcp_calls.make_task(conn, deployment_id, thread_id):
        return False
    expiry.set_ttl(conn, deployment_id, thread_id, {"ttl": TASK_MINUTES})
    return True


def _input_required(state: RequestState, asked: Sequence[Question], identity: CallIdentity) -> dict[str, Any]:
    return {
        "resultType": "input_required",
        "requestState": state.seal(identity),
        "inputRequests": questions.requests(asked),
    }


def _delete_waiting(state: RequestState, identity: CallIdentity) -> None:
    """Delete the thread of a declined call. Raises InvalidState if the call does not wait any more."""
    with connection() as conn:
        call = lock(conn, identity.deployment_id, state.thread_id, identity.caller)
        if call is None or call["last_seq"] != state.run or not mcp_calls.waits(call):
            raise InvalidState
        cancel.delete_thread(conn, identity.deployment_id, state.thread_id)
