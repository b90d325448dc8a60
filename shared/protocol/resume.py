"""Interpretation of commands on a locked thread: a run with input, or a resume that answers an interrupt.

An interrupted thread takes the next input as the answer to its open interrupt. A thread that was cancelled or stopped
at a breakpoint has no open interrupt, and takes the input as input.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from redis.exceptions import RedisError
from sqlalchemy import Connection, text

from shared.deployments.deployments import DeploymentRef
from shared.errors import NotFound
from shared.eventlog import events as logs
from shared.infra import redis
from shared.models import ThreadStatus
from shared.protocol import events
from shared.protocol.lifecycle import no_run, open_interrupts
from shared.runs.drafts import RunRequest


class NoSuchInterrupt(NotFound):
    """No open interrupt has this id."""


class NotStoredYet(NoSuchInterrupt):
    """No open interrupt has this id, but a running run of the thread may have published the interrupt.

    Clients get the interrupt from the event log, a moment before the end of the run is stored with it.
    """

    def __init__(self, message: str, run_id: UUID, ids: Sequence[str]) -> None:
        super().__init__(message)
        self.run_id, self.ids = run_id, ids


LOCK_THREAD = text("""
SELECT status, interrupts FROM thread WHERE deployment_id = :deployment_id AND thread_id = :thread_id
FOR NO KEY UPDATE
""")

RESUMES_OF_LIVE_RUNS = text("""
SELECT readable(kwargs) -> 'command' -> 'resume' AS resume FROM run
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND is_live(status) ORDER BY created_seq
""")

RUNNING = text("""
SELECT run_id FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND status = 'running'
""")

# Prefers runs that have started: a run that was cancelled before its start has raised no interrupt.
INTERRUPTED_ASSISTANT = text("""
SELECT assistant_id FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id
ORDER BY attempt > 0 DESC, created_seq DESC LIMIT 1
""")


@dataclass(frozen=True, slots=True)
class ResumeOrStart:
    """The rule of `run.start`: input answers the open interrupt of an interrupted thread."""

    thread_id: UUID

    def missing(self) -> NotFound:
        return no_run(self.thread_id)

    def complete(self, conn: Connection, deployment: DeploymentRef, request: RunRequest) -> RunRequest:
        """Return the request with its input turned into a resume command if the thread has an open interrupt.

        If the request names a checkpoint, its input stays input. Locks the thread.
        """
        keys = {"deployment_id": deployment.id, "thread_id": self.thread_id}
        thread = conn.execute(LOCK_THREAD, keys).one_or_none()
        is_open = thread is not None and thread.status == ThreadStatus.INTERRUPTED and _open(thread)
        if is_open and request.input is not None and not request.checkpoint:
            return replace(request, input=None, command={"resume": request.input})
        return request


@dataclass(frozen=True, slots=True)
class AnswerInterrupts:
    """The rule of `input.respond`: `answers` are values by interrupt id. Other interrupts stay open."""

    thread_id: UUID
    answers: Mapping[str, Any]

    def missing(self) -> NotFound:
        return no_run(self.thread_id)

    def complete(self, conn: Connection, deployment: DeploymentRef, request: RunRequest) -> RunRequest:
        """Return the request as a resume for the assistant of the interrupted run. Locks the thread.

        Raises NoSuchRun. Raises NoSuchInterrupt for an id that is unknown, or that a live run already answers; if a run
        of the thread is running, raises its subclass NotStoredYet.
        """
        keys = {"deployment_id": deployment.id, "thread_id": self.thread_id}
        thread = conn.execute(LOCK_THREAD, keys).one_or_none()
        assistant_id = (
            None if thread is None else conn.execute(INTERRUPTED_ASSISTANT, keys).scalar_one_or_none()
        )
        if thread is None or assistant_id is None:
            raise no_run(self.thread_id)
        waiting = unanswered(_open(thread), conn.execute(RESUMES_OF_LIVE_RUNS, keys).scalars())
        unknown = [id for id in self.answers if id not in waiting]
        if unknown:
            message = f"Unknown or already answered interrupt: {', '.join(unknown)}"
            running = conn.execute(RUNNING, keys).scalar_one_or_none()
            raise NoSuchInterrupt(message) if running is None else NotStoredYet(message, running, unknown)
        command = {**(request.command or {}), "resume": dict(self.answers)}
        return replace(request, assistant_id=str(assistant_id), command=command)


def has_published(run_id: UUID, ids: Collection[str]) -> bool:
    """Return whether a run's log contains all of these interrupts. Returns False if the log cannot be read."""
    try:
        names = list(logs.names(redis.events(run_id), run_id, f'{logs.MARK}["input.requested"'))
    except RedisError:
        return False
    return {events.stored_head(name)[2].rpartition("|")[2] for name in names}.issuperset(ids)


def is_running(conn: Connection, run_id: UUID) -> bool:
    """Return whether the run's end is not yet stored."""
    query = text("SELECT EXISTS (SELECT FROM run WHERE run_id = :id AND status = 'running')")
    return bool(conn.execute(query, {"id": run_id}).scalar_one())


def _open(thread: Any) -> set[str]:
    return set(open_interrupts(thread.interrupts))


def unanswered(waiting: set[str], resumes: Iterable[Any]) -> set[str]:
    """Return the interrupts that no live run answers. A resume without interrupt ids answers all of them."""
    for resume in resumes:
        names = isinstance(resume, dict) and resume and resume.keys() <= waiting
        waiting = waiting - resume.keys() if names else set()
    return waiting
