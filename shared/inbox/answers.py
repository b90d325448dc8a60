"""Answers to questions: the run that carries an answer, and the end of a thread that gets none.

An answer is a run that resumes the thread. Every interface that creates runs can create one. The insert of the run closes
the questions and records the answer (`record_answers_1` in `shared/sql/inbox.sql`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared import thread_updates
from shared.deployments.deployments import DeploymentRef
from shared.errors import Invalid, NotFound
from shared.inbox import records
from shared.inbox.records import BREAKPOINT, EXPIRY, QuestionClosed
from shared.infra.postgres import Row, connection
from shared.protocol import resume
from shared.protocol.lifecycle import open_interrupts
from shared.runs import a2a_tasks, read
from shared.runs.drafts import RunRequest
from shared.runs.retry import RETRY_OF, with_configuration
from shared.sql import statement
from shared.threads import state

_OF_THREAD = statement("inbox.of_thread")
NO_VALUE = "A breakpoint takes no value: the answer must be null, which continues the run."
WENT_ON = "This question is not open any more: its thread went on without an answer."
NO_ASSISTANT = "The assistant that asked this question is deleted. Resume the thread with another assistant, or cancel its run."
OF_ONE_RUN = (RETRY_OF, a2a_tasks.KEY)  # keys in a run's metadata that a run that continues it must not have


@dataclass(frozen=True, slots=True)
class AnswerQuestion:
    """The rule of an answer: the run resumes the question's thread. Other questions of the thread stay open."""

    question_id: UUID
    answer: Any

    def missing(self) -> NotFound:
        return records.missing()

    def complete(self, conn: Connection, deployment: DeploymentRef, request: RunRequest) -> RunRequest:
        """Return the request as the continuation of the run that asked. Locks the thread.

        The new run has that run's assistant, metadata, config, context, webhook and stream settings. Raises NotFound
        if the question or its assistant is deleted, Invalid for a value at a breakpoint, and QuestionClosed if the
        question is answered or closed already.
        """
        keys = {"deployment_id": deployment.id, "thread_id": request.thread_id}
        # A statement of its own, so that the next one sees what the previous holder of the lock has committed.
        conn.execute(resume.LOCK_THREAD, keys)
        row = _OF_THREAD.row(conn, **keys, question_id=self.question_id)
        if row is None:
            raise records.missing()
        _require_open(row)
        if not row["has_assistant"]:
            raise NotFound(NO_ASSISTANT)
        if row["kind"] == BREAKPOINT:
            if self.answer is not None:
                raise Invalid(NO_VALUE, loc=("body", "answer"))
            return _continue(conn, deployment.id, row, request)
        resumes = conn.execute(resume.RESUMES_OF_LIVE_RUNS, keys).scalars()
        if row["interrupt_id"] not in resume.unanswered(set(open_interrupts(row["interrupts"])), resumes):
            raise QuestionClosed("A run that is not finished answers this question already.")
        command = {"resume": {row["interrupt_id"]: self.answer}}
        return _continue(conn, deployment.id, row, replace(request, command=command))


def answer_request(row: Row, answer: Any) -> RunRequest:
    """Return the request for the run that answers a question."""
    rule = AnswerQuestion(row["question_id"], answer)
    return RunRequest(assistant_id="", thread_id=row["thread_id"], rule=rule)


def _require_open(row: Row) -> None:
    if row["closed_at"] is None:
        return
    by = f" by {row['answered_by']}" if row["answered_by"] else ""
    if row["answered_from"] == EXPIRY:
        raise QuestionClosed("This question has expired.")
    if row["answered_at"] is not None:
        at = row["answered_at"].isoformat(timespec="seconds")
        raise QuestionClosed(f"This question was answered{by} at {at}.")
    raise QuestionClosed(f"This question was cancelled{by}." if by else WENT_ON)


def _continue(conn: Connection, deployment_id: UUID, question: Row, request: RunRequest) -> RunRequest:
    """Return the request with the configuration of the run that asked; if it is deleted, with its assistant only."""
    try:
        run = read.get(conn, deployment_id, question["run_id"], thread_id=request.thread_id)
    except NotFound:
        return replace(request, assistant_id=str(question["assistant_id"]))
    continued = with_configuration(request, run)
    kept = {name: value for name, value in continued.metadata.items() if name not in OF_ONE_RUN}
    return replace(continued, metadata=kept)


def cancel(
    deployment: DeploymentRef,
    question_id: UUID,
    *,
    by: str = "",
    key_id: str = "",
    address: str = "",
    user: Mapping[str, Any] | None = None,
) -> None:
    """End a question's thread without an answer.

    The thread's state is updated as the node `__end__`, as `POST /threads/{id}/state` does: its open tasks are dropped,
    the thread becomes idle, and its values stay. That closes all questions of the thread. A graph host executes the
    update, so the caller must not hold a database connection. The transaction that stores it records `by`, else the
    label of the key, and `address` as for an answer, with an entry of the audit log. Raises NotFound, QuestionClosed, and
    Conflict if the thread has live runs.
    """
    with connection() as conn:
        row = records.get(conn, question_id)
        _require_open(row)
        thread_id = row["thread_id"]
        newest = state.newest(conn, deployment.id, thread_id)
        state.require_quiet(conn, deployment.id, thread_id)
    step = {"values": None, "as_node": thread_updates.END}
    cancels = {"question_id": str(question_id), "by": by, "key_id": key_id, "address": address}
    thread_updates.apply(deployment, thread_id, newest, [[step]], user=user, cancels=cancels)
