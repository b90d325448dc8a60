"""Expiry of questions: an open question is answered with a default, cancelled, or left open, as its deployment configured.

The service acts here, not a user: a deployment's own authorization is not called. A run that answers acts for the user
of the run that asked.

Each question expires once. `expired_at` is set by a conditional update, in one transaction with the answer and with the
webhook. A cancellation is executed by a graph host between two transactions. The first one marks the question
(`answered_from`), so another process completes the expiry of a process that died.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared.deployments import deployments, logs
from shared.deployments.deployments import DeploymentRef
from shared.deployments.logs import Line
from shared.errors import (
    Conflict,
    Denied,
    HostError,
    NotFound,
    Refused,
    RunyardError,
    TooMany,
    Unanswered,
    Unavailable,
)
from shared.inbox import answers, notices
from shared.inbox.records import EXPIRY, QuestionClosed
from shared.infra.arrays import uuids
from shared.infra.postgres import Row, connection
from shared.runs import configurable, creation, read
from shared.runs.create import Created
from shared.runs.drafts import Creator
from shared.settings import Settings
from shared.sql import part, statement
from shared.threads import records as threads

log = logging.getLogger(__name__)

TEMPORARY = (
    Unavailable,
    Unanswered,
    HostError,
    TooMany,
    Conflict,
)  # an expiry that raises one is tried again
GIVE_UP_SECONDS = 3600.0  # an expiry that fails for so long leaves its question open
READ_AT_ONCE = 100

_IS_DUE = part("inbox_upkeep.is_due")
_DUE_DEPLOYMENTS = statement("inbox_upkeep.due_deployments", is_due=_IS_DUE)
_DUE = statement("inbox_upkeep.due_expiries", is_due=_IS_DUE)
_GET = statement("inbox_upkeep.get_due", is_due=_IS_DUE)
_BEGIN_CANCEL = statement("inbox_upkeep.begin_cancel", is_due=_IS_DUE)
_GIVE_UP_CANCEL = statement("inbox_upkeep.give_up_cancel")
_MARK = statement("inbox_upkeep.mark_expired", is_due=_IS_DUE)


class _NotDue(RunyardError):
    """The question has expired already, was answered, or was closed."""


def due_deployments(conn: Connection) -> Sequence[UUID]:
    """Return the deployments with questions whose time is over."""
    return [row["deployment_id"] for row in _DUE_DEPLOYMENTS.rows(conn)]


def due(conn: Connection, deployment_id: UUID, *, paused: Sequence[UUID] = ()) -> Sequence[UUID]:
    """Return some questions of a deployment whose time is over, oldest first, without those that wait for a retry."""
    rows = _DUE.rows(conn, deployment_id=deployment_id, paused=uuids(paused), limit=READ_AT_ONCE)
    return [row["question_id"] for row in rows]


@dataclass(frozen=True, slots=True)
class _Expiry:
    """The part of an expiry that is committed with the run that answers."""

    question: Row

    def begin(self, conn: Connection) -> None:
        """Mark the question. Raises _NotDue. Locks the thread first, as every answer does."""
        threads.lock(conn, self.question["deployment_id"], self.question["thread_id"])
        if not _MARK.count(conn, question_id=self.question["question_id"]):
            raise _NotDue

    def complete(self, conn: Connection, created: Sequence[Created]) -> None:
        notices.send_expired(conn, self.question["question_id"])


def expire(question_id: UUID, settings: Settings) -> None:
    """Expire a question whose time is over. Does nothing for any other question.

    Raises an error of TEMPORARY if it can be tried again. A refused answer leaves the question open, and its reason is in
    the deployment's log.
    """
    with connection() as conn:
        question = _GET.row(conn, question_id=question_id, give_up_seconds=GIVE_UP_SECONDS)
        deployment = None if question is None else deployments.resolve_by_id(conn, question["deployment_id"])
    if question is None or deployment is None:
        return
    try:
        _expire(question, deployment, settings)
    except (_NotDue, QuestionClosed):
        return
    except TEMPORARY as error:
        if not question["is_late"]:
            raise
        _leave(question, deployment, error)
    except (Refused, Denied) as error:
        _leave(question, deployment, error)
    else:
        log.info("question %s: expired", question_id)


def _expire(question: Row, deployment: DeploymentRef, settings: Settings) -> None:
    rules = question["on_expiry"] or {}
    action = rules.get("action") if question["closed_at"] is None else None
    if action == "answer":
        _answer(question, deployment, settings, rules.get("answer"))
        return
    if action == "cancel":
        _cancel(question, deployment)
    with connection() as conn:
        _mark_expired(conn, question)


def _answer(question: Row, deployment: DeploymentRef, settings: Settings, answer: Any) -> None:
    with connection() as conn:
        user = _user_of_run(conn, question)
    creator = Creator(
        deployment,
        user=user,
        name=EXPIRY,
        address=EXPIRY,
        max_pending_per_thread=settings.max_pending_per_thread,
        event_retention_seconds=settings.event_retention_seconds,
    )
    creation.create_runs(creator, [answers.answer_request(question, answer)], part=_Expiry(question))


def _cancel(question: Row, deployment: DeploymentRef) -> None:
    question_id = question["question_id"]
    with connection() as conn:
        threads.lock(conn, deployment.id, question["thread_id"])
        if not _BEGIN_CANCEL.count(conn, question_id=question_id):
            raise _NotDue
        user = _user_of_run(conn, question)
    try:
        answers.cancel(deployment, question_id, by=EXPIRY, address=EXPIRY, user=user)
    except Conflict:  # a run is live: if it ends the question, that is no expiry
        with connection() as conn:
            _GIVE_UP_CANCEL.count(conn, question_id=question_id)
        raise


def _user_of_run(conn: Connection, question: Row) -> Mapping[str, Any] | None:
    """Return the document of the user of the run that asked, or None."""
    if question["run_id"] is None:
        return None
    try:
        run = read.get(conn, question["deployment_id"], question["run_id"], thread_id=question["thread_id"])
    except NotFound:
        return None
    return configurable.user_of(run)


def _mark_expired(conn: Connection, question: Row) -> bool:
    """Mark the question, and insert the delivery of the webhook. Returns False if it was marked or answered before."""
    is_marked = _MARK.count(conn, question_id=question["question_id"]) == 1
    if is_marked:
        notices.send_expired(conn, question["question_id"])
    return is_marked


def _leave(question: Row, deployment: DeploymentRef, error: RunyardError) -> None:
    """Leave a question open whose expiry failed. The reason is in the deployment's log."""
    with connection() as conn:
        _GIVE_UP_CANCEL.count(conn, question_id=question["question_id"])
        if not _mark_expired(conn, question):
            return
        message = f"question {question['question_id']}: its expiry failed and it stays open: {error.message}"
        line = Line(deployment.id, None, logs.DEPLOY, datetime.now(UTC), "ERROR", message, question["run_id"])
        logs.append(conn, [line])
    log.warning("question %s: its expiry failed, it stays open: %s", question["question_id"], error.message)
