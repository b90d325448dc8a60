"""Messages of clients: each becomes the input of a graph, or the answer to a question of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from uuid_utils.compat import uuid7

from shared import agents
from shared.deployments.deployments import DeploymentRef
from shared.errors import NotFound, Refused
from shared.infra.postgres import Row, connection
from shared.models import ThreadStatus
from shared.protocol import resume
from shared.protocol.lifecycle import open_interrupts
from shared.runs import a2a_tasks
from shared.runs.a2a_tasks import INPUT_REQUIRED, KEY, TASK_ID, TERMINAL, TaskKey
from shared.runs.drafts import RunRequest
from shared.threads import records
from web.deployment_api.assistants import METADATA_BYTES
from web.deployment_api.protocols.a2a import parts as message_parts
from web.deployment_api.protocols.a2a.card import active_extensions, input_modes
from web.deployment_api.protocols.a2a.errors import (
    CONTENT_NOT_SUPPORTED,
    PUSH_NOT_SUPPORTED,
    UNSUPPORTED_OPERATION,
)
from web.deployment_api.protocols.a2a.parts import Contents
from web.deployment_api.protocols.a2a.shapes import SCOPES
from web.deployment_api.protocols.a2a.tasks import TaskId
from web.deployment_api.protocols.conversation import MESSAGES, input_fields, messages_of, takes_messages
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, RpcError
from web.gate.context import run_headers, unchecked_deployment
from web.schemas import fields

MAX_ID = 1024
TOKENS = ("messages-tuple",)  # the stream mode from which a task's stream is made
RESUME = "resume"  # the only key of data that wraps an answer of any type
TOO_LATE = "The question was answered or dropped in the meantime"


class MessageBody(fields.Schema):
    messageId = fields.StrictString(required=True, min_length=1, max_length=MAX_ID)
    role = fields.OneOf("user", "ROLE_USER", required=True)
    parts = fields.ListOf(fields.JsonObject(), required=True, not_empty=True)
    contextId = fields.StrictString(allow_none=True)
    taskId = fields.StrictString(allow_none=True)
    metadata = fields.JsonObject(max_bytes=METADATA_BYTES, searchable=True, allow_none=True)
    extensions = fields.ListOf(fields.StrictString(), max_bytes=METADATA_BYTES, allow_none=True)


class Configuration(fields.Schema):
    blocking = fields.StrictBoolean(allow_none=True)
    returnImmediately = fields.StrictBoolean(allow_none=True)
    historyLength = fields.StrictInteger(minimum=0, allow_none=True)
    historyScope = fields.OneOf(*SCOPES, allow_none=True)
    pushNotificationConfig = fields.AnyJson()
    taskPushNotificationConfig = fields.AnyJson()


class Send(fields.Schema):
    message = fields.Nested(MessageBody, required=True)
    configuration = fields.Nested(Configuration, load_default=dict, allow_none=True)
    metadata = fields.JsonObject(max_bytes=METADATA_BYTES, searchable=True, allow_none=True)


def run_request(agent: Row, body: Mapping[str, Any], run_id: UUID) -> RunRequest:
    """Return the request for the run that a `Send` creates. Raises RpcError, and NotFound for an invalid task id."""
    _refuse_push_notifications(body["configuration"] or {})
    message = body["message"]
    has_a2ui = bool(active_extensions(agent))
    contents = message_parts.read(message["parts"], with_a2ui=has_a2ui)
    origin: dict[str, Any] = {"message_id": message["messageId"]}
    if sent := {**(body.get("metadata") or {}), **(message.get("metadata") or {})}:
        origin["metadata"] = sent
    about = {name: message[name] for name in ("metadata", "extensions") if has_a2ui and message.get(name)}
    thread_id = _thread_id(message)
    return RunRequest(
        assistant_id=str(agent["assistant_id"]),
        thread_id=thread_id,
        run_id=run_id,
        rule=MessageToThread(agent, message, contents, input_modes(agent), about, _asked(message, thread_id)),
        service_metadata={KEY: origin},
        stream_mode=TOKENS,
        if_not_exists="create",
        extras=run_headers(),
    )


@dataclass(frozen=True, slots=True)
class MessageToThread:
    """The rule of a message: it answers the question of the thread, or is the input of a run.

    `modes` are the media types that the agent takes, `about` goes into the message for the graph. `asked` are the ids of the
    thread's interrupts when the message arrived.
    """

    agent: Row
    message: Mapping[str, Any]
    contents: Contents
    modes: list[str]
    about: Mapping[str, Any]
    asked: frozenset[str]

    def missing(self) -> Refused:
        return a2a_tasks.missing()

    def complete(self, conn: Connection, deployment: DeploymentRef, request: RunRequest) -> RunRequest:
        """Return the request with its input or its answer, and with the task that it continues. Locks the thread.

        Raises NotFound for an unknown task. Raises RpcError for a task that has ended, for a question that was closed
        since the message arrived, and for contents that the graph does not take.
        """
        thread_id = request.thread_id
        assert thread_id is not None
        # A statement of its own, so that the next ones see what the previous holder of the lock has committed.
        conn.execute(resume.LOCK_THREAD, {"deployment_id": deployment.id, "thread_id": thread_id})
        thread = _thread(conn, deployment.id, thread_id)
        task_id = self._task(conn, deployment.id, thread_id)
        asked = frozenset[str]() if thread is None else _open_interrupts(thread)
        if self.asked and asked != self.asked:
            raise RpcError(UNSUPPORTED_OPERATION, TOO_LATE)
        newest = a2a_tasks.of_newest_run(conn, deployment.id, thread_id) if asked else None
        is_open = newest is None or newest["state"] == INPUT_REQUIRED
        if newest is not None and newest["assistant_id"] == self.agent["assistant_id"] and is_open:
            task_id = task_id or newest["task_id"]
        origin = {**request.service_metadata[KEY], **({} if task_id is None else {TASK_ID: task_id})}
        schema = agents.input_of_thread(conn, deployment, thread_id, self.agent)
        self._require_supported(schema, is_answer=bool(asked and is_open))
        if thread is None or not asked or not is_open:
            return replace(request, input=self._input(schema), service_metadata={KEY: origin})
        listed = messages_of(thread["values"])
        place = {"after": listed[-1].get("id") if listed else None, "at": len(listed)}
        return replace(
            request, command={"resume": self._answer()}, service_metadata={KEY: {**origin, **place}}
        )

    def _task(self, conn: Connection, deployment_id: UUID, thread_id: UUID) -> str | None:
        """Return the id of the task that the message names, or None. Raises NotFound, and RpcError if it has ended."""
        if not self.message.get("taskId"):
            return None
        id = TaskId.parse(self.message["taskId"])
        key = TaskKey(deployment_id, self.agent["assistant_id"], thread_id, id.run_id)
        state = a2a_tasks.state(conn, key)["state"]
        if state in TERMINAL:
            raise RpcError(
                UNSUPPORTED_OPERATION, f"The task has ended: it is {state}. Send the message without taskId"
            )
        return str(id)

    def _require_supported(self, schema: Any, *, is_answer: bool) -> None:
        """Raise RpcError for contents that the graph does not take."""
        contents = self.contents
        if contents.blocks and not takes_messages(schema) and not (is_answer and not contents.media_types):
            known = ", ".join(input_fields(schema)) or "none that are known"
            raise RpcError(
                INVALID_PARAMS,
                f"message.parts: this agent takes no text and no files, since its input has no messages. Its fields:"
                f" {known}. Send them in a part with data.",
            )
        for path, media_type in contents.media_types.items():
            if not message_parts.is_accepted(media_type, self.modes):
                raise RpcError(
                    CONTENT_NOT_SUPPORTED,
                    f"{path}: the media type {media_type} is not supported: use one of {', '.join(self.modes)}",
                )

    def _answer(self) -> Any:
        """Return the value that resumes the graph: the data, else the text, else the content blocks."""
        contents = self.contents
        if not contents.has_data:
            return contents.content
        data = contents.data
        if isinstance(data, dict) and data.keys() == {RESUME} and RESUME not in self.asked:
            data = data[RESUME]
        if data is None:
            raise RpcError(INVALID_PARAMS, "message.parts: null answers no question")
        return data

    def _input(self, schema: Any) -> dict[str, Any]:
        contents, data = self.contents, self.contents.data if self.contents.has_data else {}
        if not isinstance(data, dict):
            raise RpcError(
                INVALID_PARAMS, "message.parts: data must be an object, unless it answers a question"
            )
        if not contents.blocks:
            return data
        if MESSAGES in data:
            raise RpcError(INVALID_PARAMS, "message.parts: send messages as parts or as data, not as both")
        message = {"role": "user", "content": contents.content, "id": self.message["messageId"]}
        if self.about:
            message["additional_kwargs"] = {KEY: dict(self.about)}
        return {**data, MESSAGES: [message]}


def _refuse_push_notifications(configuration: Mapping[str, Any]) -> None:
    if configuration.get("pushNotificationConfig") or configuration.get("taskPushNotificationConfig"):
        raise RpcError(PUSH_NOT_SUPPORTED, "Push notifications are not supported")


def _thread_id(message: Mapping[str, Any]) -> UUID:
    """Return the thread of the context or of the task that a message names, else a new id.

    Raises RpcError, and NotFound for an invalid task id.
    """
    context_id, task_id = message.get("contextId"), message.get("taskId")
    context = _uuid(context_id) if context_id else None
    if not task_id:
        return context or uuid7()
    thread_id = TaskId.parse(task_id).thread_id
    if context not in (None, thread_id):
        raise RpcError(INVALID_PARAMS, "message.taskId: belongs to another context")
    return thread_id


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise RpcError(INVALID_PARAMS, "message.contextId: must be a UUID") from None


def _asked(message: Mapping[str, Any], thread_id: UUID) -> frozenset[str]:
    """Return the ids of the interrupts that a message may answer: those that are open when it arrives."""
    if not message.get("contextId") and not message.get("taskId"):
        return frozenset()
    with connection() as conn:
        thread = _thread(conn, unchecked_deployment().id, thread_id)
    return frozenset() if thread is None else _open_interrupts(thread)


def _thread(conn: Connection, deployment_id: UUID, thread_id: UUID) -> Any:
    try:
        return records.get(conn, deployment_id, thread_id)
    except NotFound:
        return None


def _open_interrupts(thread: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids of the interrupts of a thread whose graph waits for an answer."""
    if thread["status"] != ThreadStatus.INTERRUPTED:
        return frozenset()
    return frozenset(map(str, open_interrupts(thread["interrupts"])))
