"""Runs as A2A tasks: their ids, their state, their artifacts, and the messages of the thread that belong to them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared.errors import NotFound
from shared.eventlog.events import Event
from shared.infra.postgres import Row, dumps, loads
from shared.models import RunStatus
from shared.runs import a2a_tasks, end_event
from shared.runs.a2a_tasks import COMPLETED, FAILED, INPUT_REQUIRED, SUBMITTED, WORKING
from web.deployment_api.protocols.a2a.shapes import AGENT, CONTEXT, USER, Artifact, Message, Part, Task
from web.deployment_api.protocols.a2a.shapes import TASK as TASK_ALONE
from web.deployment_api.protocols.conversation import is_from_agent, is_from_user, messages_of, text_of

TASK_NOT_FOUND, TASK_NOT_CANCELABLE, PUSH_NOT_SUPPORTED = -32001, -32002, -32003
UNSUPPORTED_OPERATION, CONTENT_NOT_SUPPORTED, VERSION_NOT_SUPPORTED = -32004, -32005, -32009

TASK_ID = re.compile(r"([0-9a-fA-F-]{36}):([0-9a-fA-F-]{36})")


def unknown_task() -> NotFound:
    return NotFound("Task not found")


@dataclass(frozen=True)
class TaskId:
    thread_id: UUID
    run_id: UUID

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Parse the id of a task. Raises NotFound for a text that cannot be one."""
        match = TASK_ID.fullmatch(text)
        try:
            if match is not None:
                return cls(UUID(match[1]), UUID(match[2]))
        except ValueError:
            pass
        raise unknown_task()

    def __str__(self) -> str:
        return f"{self.thread_id}:{self.run_id}"


RESPONSE, QUESTION = "Assistant Response", "Interrupt"
INTERRUPTS = "__interrupt__"

Messages = list[dict[str, Any]]


class ShownHistory:
    """The part of a conversation that is shown with a task: messages of its whole context, or of the task alone.

    `length` is the maximum number of messages, of which the newest are shown; None shows all.
    """

    def __init__(self, scope: str = CONTEXT, length: int | None = None) -> None:
        self._scope, self._length = scope, length

    def of(self, row: Row, listed: Messages, task_messages: Messages) -> list[Message]:
        kept = task_messages if self._scope == TASK_ALONE else listed
        shown = [_message(message, at) for at, message in enumerate(kept) if _is_shown(message)]
        if row["state"] in (SUBMITTED, WORKING):
            shown += [_message(sent, at) for at, sent in enumerate(_first_message(row)) if _is_shown(sent)]
        return shown if self._length is None else shown[len(shown) - min(self._length, len(shown)) :]


WHOLE = ShownHistory()


def get(conn: Connection, deployment_id: UUID, assistant_id: UUID, id: TaskId) -> Row:
    """Return the row of a task. Raises NotFound, also for a task of another assistant.

    Does not apply the caller's filter for threads.
    """
    return a2a_tasks.get(conn, deployment_id, assistant_id, thread_id=id.thread_id, run_id=id.run_id)


def of_row(row: Row, history: ShownHistory = WHOLE) -> Task:
    """Return a task from its row, which includes the values and interrupts of the thread."""
    id = str(TaskId(row["thread_id"], row["run_id"]))
    listed = messages_of(row["values"])
    task_messages = _task_messages(row, listed)
    interrupts = [item for items in (row["interrupts"] or {}).values() for item in items]
    return Task(
        id=id,
        context_id=str(row["thread_id"]),
        state=row["state"],
        at=row["updated_at"],
        message=_status_message(row, interrupts),
        artifacts=_artifacts(row, task_messages, interrupts),
        history=history.of(row, listed, task_messages),
    )


def ended(row: Row, last: Event | None) -> Row:
    """Return the row of a run that has just ended, with the output from its event log.

    The values in the row are those of the thread, which a later run may have changed.
    """
    output = loads(end_event.output_of(last) or b"null") if last is not None else None
    if row["status"] != RunStatus.SUCCESS or not isinstance(output, dict):
        return row
    interrupts = output.pop(INTERRUPTS, None)
    changes = {"values": output, "is_newest": True, "state": COMPLETED, "interrupts": None}
    if interrupts:
        shown = [{"id": item.get("id"), "value": item.get("value")} for item in interrupts]
        changes |= {"state": INPUT_REQUIRED, "interrupts": {"": shown}}
    return {**row, **changes}


def _task_messages(row: Row, listed: Messages) -> Messages:
    """Return the messages that a task has added to its thread, up to the next message of a user.

    They begin with the message that started the task, or after the question that the task answers.
    """
    origin = row["a2a"] if isinstance(row["a2a"], dict) else {}
    ids = [message.get("id") for message in listed]
    if origin.get("message_id") in ids:
        start = ids.index(origin["message_id"])
    elif origin.get("after") in ids and origin.get("after") is not None:
        start = ids.index(origin["after"]) + 1
    else:
        return []
    by_users = (at for at in range(start + 1, len(listed)) if is_from_user(listed[at]))
    return listed[start : next(by_users, len(listed))]


def _first_message(row: Row) -> Messages:
    """Return the message that started a task. The thread's values do not contain it before the task ends."""
    return messages_of(row["input"])


def _is_shown(message: Mapping[str, Any]) -> bool:
    shown = dict(message)
    return bool(is_from_user(shown) or (is_from_agent(shown) and text_of(shown)))


def _message(message: dict[str, Any], at: int) -> Message:
    role = USER if is_from_user(message) else AGENT
    parts = [{"text": text_of(message)}]
    return Message(id=str(message.get("id") or f"message-{at}"), role=role, parts=parts)


def _status_message(row: Row, interrupts: Messages) -> Message | None:
    if row["state"] == FAILED:
        error = row["error"] or {}
        text = f"Error executing assistant: {error.get('error')}: {error.get('message')}"
    elif row["state"] == INPUT_REQUIRED and interrupts:
        question = interrupts[0].get("value")
        text = question if isinstance(question, str) else dumps(question)
    else:
        return None
    return Message(id=f"{row['run_id']}-status", role=AGENT, parts=[{"text": text}])


def _artifacts(row: Row, task_messages: Messages, interrupts: Messages) -> Sequence[Artifact]:
    if row["state"] == INPUT_REQUIRED:
        question: list[Part] = [{"data": {"interrupts": interrupts}}]
        return [_artifact(row, QUESTION, question)]
    parts = _response(row, task_messages) if row["state"] == COMPLETED else []
    return [_artifact(row, RESPONSE, parts)] if parts else []


def _response(row: Row, task_messages: Messages) -> list[Part]:
    """Return the last text of the assistant, or the values that it returned if they are not a conversation."""
    listed = task_messages or (messages_of(row["values"]) if row["is_newest"] else [])
    text = next((text_of(m) for m in reversed(listed) if is_from_agent(m)), "")
    if text:
        return [{"text": text}]
    values = row["values"] if row["is_newest"] else None
    if values is None:
        return []
    return [{"data": values if isinstance(values, dict) else {"values": values}}]


def _artifact(row: Row, name: str, parts: list[Part]) -> Artifact:
    return Artifact(
        id=f"{row['run_id']}-{'response' if name == RESPONSE else 'interrupt'}", name=name, parts=parts
    )
