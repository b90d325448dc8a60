"""A2A tasks from their rows: ids, state, artifacts, and the messages that belong to them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from shared.eventlog.events import Event
from shared.infra.postgres import Row, dumps, loads
from shared.models import RunStatus
from shared.runs import a2a_tasks, end_event
from shared.runs.a2a_tasks import COMPLETED, FAILED, INPUT_REQUIRED
from shared.runs.end_event import INTERRUPTS
from shared.threads import records
from web.deployment_api.protocols.a2a import parts as message_parts
from web.deployment_api.protocols.a2a.parts import InvalidResponse, Part
from web.deployment_api.protocols.a2a.shapes import AGENT, CONTEXT, USER, Artifact, Message, Task
from web.deployment_api.protocols.a2a.shapes import TASK as TASK_ALONE
from web.deployment_api.protocols.conversation import is_from_agent, is_from_user, messages_of

TASK_ID = re.compile(r"([0-9a-fA-F-]{36}):([0-9a-fA-F-]{36})")


@dataclass(frozen=True)
class TaskId:
    """The id of a task: its thread, which is its context, and its first run."""

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
        raise a2a_tasks.missing()

    def __str__(self) -> str:
        return a2a_tasks.id_of(self.thread_id, self.run_id)


RESPONSE, QUESTION = "Assistant Response", "Interrupt"

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class View:
    """The parts of a task that a call shows.

    `scope` is the history: messages of the whole context, or of the task alone. `length` is the maximum number of
    messages, of which the newest are shown: None shows all, and 0 leaves the history out. `with_a2ui` shows parts of the
    extension A2UI.
    """

    scope: str = CONTEXT
    length: int | None = None
    with_a2ui: bool = False


WHOLE = View()


def of_row(row: Row, view: View = WHOLE) -> Task:
    """Return a task from its row, which includes the values and interrupts of the thread."""
    listed = messages_of(row["values"])
    conversation = _Conversation(row, listed)
    interrupts = records.interrupt_list(row["interrupts"])
    state, invalid, artifacts = row["state"], "", list[Artifact]()
    try:
        artifacts = _artifacts(row, conversation, interrupts, view)
    except InvalidResponse as error:
        state, invalid = FAILED, f"Invalid agent response: {error}"
    return Task(
        id=row["task_id"],
        context_id=str(row["thread_id"]),
        state=state,
        at=row["updated_at"],
        message=_status_message(row, interrupts, invalid),
        artifacts=artifacts,
        history=None if view.length == 0 else conversation.history(view),
        invalid=invalid,
    )


def ended(row: Row, run_id: UUID, last: Event | None) -> Row:
    """Return the row of a task whose run has just ended, with the output from the run's event log.

    The values in the row are those of the thread, which a later run may have changed.
    """
    if last is None or row["run_id"] != run_id or row["status"] != RunStatus.SUCCESS:
        return row
    output = loads(end_event.output_of(last) or b"null")
    if not isinstance(output, dict) or row["state"] not in (COMPLETED, INPUT_REQUIRED):
        return row
    interrupts = output.pop(INTERRUPTS, None)
    changes = {"values": output, "is_newest": True, "state": COMPLETED, "interrupts": None}
    if interrupts:
        changes |= {"state": INPUT_REQUIRED, "interrupts": {"": [_interrupt(item) for item in interrupts]}}
    return {**row, **changes}


def _interrupt(item: Mapping[str, Any]) -> dict[str, Any]:
    schema = item.get("response_schema")
    return {"id": item.get("id"), "value": item.get("value")} | (
        {} if schema is None else {"response_schema": schema}
    )


@dataclass(slots=True)
class _Conversation:
    """The messages of a thread, and the answers of people among them, which the thread's values do not contain."""

    row: Row
    listed: Messages
    runs: Sequence[Mapping[str, Any]] = field(init=False)  # of the task, and answers to other questions
    ids: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.runs = self.row.get("runs") or []
        self.ids = [message.get("id") for message in self.listed]

    def task_range(self) -> range:
        """Return the positions of the messages that the task has added, up to the next message of a user.

        They begin with the message that started the task, or after the question that the task answers.
        """
        own = [run for run in self.runs if run["is_own"]]
        start = self._start(own[0]) if own else None
        if start is None:
            return range(0)
        sent = {run["message_id"] for run in own}
        by_others = (
            at
            for at in range(start + 1, len(self.listed))
            if is_from_user(self.listed[at]) and self.ids[at] not in sent
        )
        return range(start, next(by_others, len(self.listed)))

    def _start(self, run: Mapping[str, Any]) -> int | None:
        if run["message_id"] is not None and run["message_id"] in self.ids:
            return self.ids.index(run["message_id"])
        if run["after"] is not None and run["after"] in self.ids:
            return self.ids.index(run["after"]) + 1
        return None

    def history(self, view: View) -> list[Message]:
        """Return the messages, answers at their places, and the messages of runs that have not ended."""
        is_alone = view.scope == TASK_ALONE
        shown_range = self.task_range() if is_alone else range(len(self.listed))
        answers: dict[int, list[Message]] = {}
        waiting: list[Message] = []
        for at, run in enumerate(self.runs):
            if is_alone and not run["is_own"]:
                continue
            if run["answer"] is not None:
                answers.setdefault(self._place(run), []).append(_answer(run, at))
            waiting += [
                shown
                for place, message in enumerate(messages_of(run["input"]))
                if message.get("id") not in self.ids and (shown := _shown(message, place, view))
            ]
        found: list[Message] = []
        for at in range(len(self.listed) + 1):
            found += answers.get(at, [])
            if at in shown_range and (shown := _shown(self.listed[at], at, view)):
                found.append(shown)
        found += waiting
        return found if view.length is None else found[len(found) - min(view.length, len(found)) :]

    def _place(self, run: Mapping[str, Any]) -> int:
        """Return the position before which an answer is shown."""
        if run["after"] is not None and run["after"] in self.ids:
            return self.ids.index(run["after"]) + 1
        at = run["at"]
        return min(at, len(self.listed)) if isinstance(at, int) and at >= 0 else 0


def _answer(run: Mapping[str, Any], at: int) -> Message:
    answer = run["answer"]
    parts: list[Part] = [{"text": answer} if isinstance(answer, str) else {"data": answer}]
    return Message(id=str(run["message_id"] or f"answer-{at}"), role=USER, parts=parts)


def _shown(message: dict[str, Any], at: int, view: View) -> Message | None:
    """Return a message of a person or of the assistant. None for other messages, and for one without a visible part."""
    is_user = is_from_user(message)
    if not is_user and not is_from_agent(message):
        return None
    try:
        parts = message_parts.of_message(message, with_a2ui=view.with_a2ui)
    except InvalidResponse:
        return None  # the task's own response is refused, an earlier message is left out
    if not parts and not is_user:
        return None
    id = str(message.get("id") or f"message-{at}")
    return Message(id=id, role=USER if is_user else AGENT, parts=parts or [{"text": ""}])


def _status_message(row: Row, interrupts: Messages, invalid: str) -> Message | None:
    if invalid:
        text = invalid
    elif row["state"] == FAILED:
        error = row["error"] or {}
        text = f"Error executing assistant: {error.get('error')}: {error.get('message')}"
    elif row["state"] == INPUT_REQUIRED and interrupts:
        question = interrupts[0].get("value")
        text = question if isinstance(question, str) else dumps(question)
    else:
        return None
    return Message(id=f"{row['run_id']}-status", role=AGENT, parts=[{"text": text}])


def _artifacts(row: Row, conversation: _Conversation, interrupts: Messages, view: View) -> list[Artifact]:
    if row["state"] == INPUT_REQUIRED:
        return [_artifact(row, QUESTION, _questions(interrupts))] if interrupts else []
    parts = _response(row, conversation, view) if row["state"] == COMPLETED else []
    return [_artifact(row, RESPONSE, parts)] if parts else []


def _questions(interrupts: Messages) -> list[Part]:
    """Return a part for each interrupt. The first one also lists all, for clients of release 0.2."""
    shown = [_interrupt(item) for item in interrupts]
    return [{"data": item | ({"interrupts": shown} if at == 0 else {})} for at, item in enumerate(shown)]


def _response(row: Row, conversation: _Conversation, view: View) -> list[Part]:
    """Return the parts of the assistant's last message, or the values that it returned if they are no conversation.

    Raises InvalidResponse.
    """
    own = [conversation.listed[at] for at in conversation.task_range()]
    listed = own or (conversation.listed if row["is_newest"] else [])
    for message in reversed(listed):
        if is_from_agent(message) and (parts := message_parts.of_message(message, with_a2ui=view.with_a2ui)):
            return parts
    values = row["values"] if row["is_newest"] else None
    if values is None:
        return []
    return [{"data": values if isinstance(values, dict) else {"values": values}}]


def _artifact(row: Row, name: str, parts: list[Part]) -> Artifact:
    return Artifact(
        id=f"{row['run_id']}-{'response' if name == RESPONSE else 'interrupt'}", name=name, parts=parts
    )
