"""What a command means for a thread as it is when the thread is locked: a run with input, or an answer to a question.

A thread that waits for an answer takes the next input as that answer. One that was cancelled, or stands at a
breakpoint, asks nothing: input for it is input.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from redis.exceptions import RedisError
from sqlalchemy import Connection, text

from shared.errors import NotFound
from shared.eventlog import events as logs
from shared.infra import redis
from shared.infra.json_text import readable
from shared.models import ThreadStatus, is_live
from shared.protocol import events
from shared.protocol.lifecycle import open_interrupts
from shared.runs.drafts import RunRequest


class NoSuchRun(NotFound):
    """The thread has no run."""


class NoSuchInterrupt(NotFound):
    """Nothing waits for this answer."""


class NotStoredYet(NoSuchInterrupt):
    """Nothing waits for this answer, but a run of the thread is running and may have published the question.

    Clients learn of a question from the event log, a moment before the end of the run is stored with it.
    """

    def __init__(self, message: str, run_id: UUID, ids: Sequence[str]) -> None:
        super().__init__(message)
        self.run_id, self.ids = run_id, ids


LOCKED = text("""
SELECT status, interrupts FROM thread WHERE deployment_id = :deployment_id AND thread_id = :thread_id
FOR NO KEY UPDATE
""")

COMMANDS = text(f"""
SELECT {readable("kwargs")} -> 'command' -> 'resume' AS resume FROM run
WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND {is_live()} ORDER BY created_seq
""")

RUNNING = text("""
SELECT run_id FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id AND status = 'running'
""")

# A run that was cancelled before it began has asked nothing.
ASKED_BY = text("""
SELECT assistant_id FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id
ORDER BY attempt > 0 DESC, created_seq DESC LIMIT 1
""")


def of_input(conn: Connection, deployment_id: UUID, request: RunRequest, *, thread_id: UUID) -> RunRequest:
    """The run that is to be made for this input: one that takes it as the answer to what the thread asks, if it asks.

    From a checkpoint that is named it is always input. The thread stays as it is.
    """
    thread = conn.execute(LOCKED, {"deployment_id": deployment_id, "thread_id": thread_id}).one_or_none()
    is_asked = thread is not None and thread.status == ThreadStatus.INTERRUPTED and _open(thread)
    if is_asked and request.input is not None and not request.checkpoint:
        return replace(request, input=None, command={"resume": request.input})
    return request


def of_answers(
    conn: Connection,
    deployment_id: UUID,
    request: RunRequest,
    answers: Mapping[str, Any],
    *,
    thread_id: UUID,
) -> RunRequest:
    """The run that is to be made of the assistant that asked: it gives these answers by interrupt.

    What is not answered stays open, and the thread as it is. Raises NoSuchRun, and NoSuchInterrupt for an id that is
    unknown, or answered by a run that has not ended: NotStoredYet while a run of the thread is running.
    """
    keys = {"deployment_id": deployment_id, "thread_id": thread_id}
    thread = conn.execute(LOCKED, keys).one_or_none()
    assistant_id = None if thread is None else conn.execute(ASKED_BY, keys).scalar_one_or_none()
    if thread is None or assistant_id is None:
        raise no_run(thread_id)
    waiting = _unanswered(_open(thread), conn.execute(COMMANDS, keys).scalars())
    unknown = [id for id in answers if id not in waiting]
    if unknown:
        message = f"Unknown or already answered interrupt: {', '.join(unknown)}"
        running = conn.execute(RUNNING, keys).scalar_one_or_none()
        raise NoSuchInterrupt(message) if running is None else NotStoredYet(message, running, unknown)
    command = {**(request.command or {}), "resume": dict(answers)}
    return replace(request, assistant_id=str(assistant_id), command=command)


def has_published(run_id: UUID, ids: Collection[str]) -> bool:
    """Whether a run's log has a question for each of these interrupts; False while the log cannot be read."""
    try:
        names = list(logs.names(redis.events(run_id), run_id, f'{logs.MARK}["input.requested"'))
    except RedisError:
        return False
    return {events.stored_head(name)[2].rpartition("|")[2] for name in names}.issuperset(ids)


def is_running(conn: Connection, run_id: UUID) -> bool:
    """Whether the run's end is still to be stored."""
    found = text("SELECT EXISTS (SELECT FROM run WHERE run_id = :id AND status = 'running')")
    return bool(conn.execute(found, {"id": run_id}).scalar_one())


def no_run(thread_id: UUID) -> NoSuchRun:
    return NoSuchRun(f"Thread {thread_id} has no run")


def _open(thread: Any) -> set[str]:
    return set(open_interrupts(thread.interrupts))


def _unanswered(waiting: set[str], resumes: Iterable[Any]) -> set[str]:
    """What is left open by runs that have not ended; one that does not name what it answers leaves nothing."""
    for resume in resumes:
        names = isinstance(resume, dict) and resume and resume.keys() <= waiting
        waiting = waiting - resume.keys() if names else set()
    return waiting
