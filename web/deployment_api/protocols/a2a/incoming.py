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
from shared.infra.postgres import Row
from shared.models import ThreadStatus
from shared.runs import a2a_tasks
from shared.runs.a2a_tasks import KEY
from shared.runs.drafts import RunRequest
from shared.threads import records
from web.deployment_api.assistants import METADATA_BYTES
from web.deployment_api.protocols.a2a.tasks import (
    CONTENT_NOT_SUPPORTED,
    PUSH_NOT_SUPPORTED,
    TaskId,
    unknown_task,
)
from web.deployment_api.protocols.conversation import (
    MESSAGES,
    input_fields,
    messages_of,
    takes_messages,
    user_message,
)
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, RpcError
from web.gate.context import run_headers
from web.schemas import fields

MAX_ID = 1024
TOKENS = ("messages-tuple",)  # the stream mode from which a task's stream is made


class MessageBody(fields.Schema):
    messageId = fields.StrictString(required=True, min_length=1, max_length=MAX_ID)
    role = fields.OneOf("user", "ROLE_USER", required=True)
    parts = fields.ListOf(fields.JsonObject(), required=True, not_empty=True)
    contextId = fields.StrictString(allow_none=True)
    taskId = fields.StrictString(allow_none=True)
    metadata = fields.JsonObject(max_bytes=METADATA_BYTES, searchable=True, allow_none=True)


class Configuration(fields.Schema):
    blocking = fields.StrictBoolean(allow_none=True)
    returnImmediately = fields.StrictBoolean(allow_none=True)
    historyLength = fields.StrictInteger(minimum=0, allow_none=True)
    historyScope = fields.OneOf("context", "task", allow_none=True)
    pushNotificationConfig = fields.AnyJson()
    taskPushNotificationConfig = fields.AnyJson()


class Send(fields.Schema):
    message = fields.Nested(MessageBody, required=True)
    configuration = fields.Nested(Configuration, load_default=dict, allow_none=True)
    metadata = fields.JsonObject(max_bytes=METADATA_BYTES, searchable=True, allow_none=True)


def run_request(agent: Row, body: Mapping[str, Any], run_id: UUID) -> RunRequest:
    """Return the request for the run that a `Send` creates. Raises RpcError."""
    _refuse_push_notifications(body["configuration"] or {})
    message = body["message"]
    text, data = _contents(message["parts"])
    origin: dict[str, Any] = {"message_id": message["messageId"]}
    if sent := {**(body.get("metadata") or {}), **(message.get("metadata") or {})}:
        origin["metadata"] = sent
    return RunRequest(
        assistant_id=str(agent["assistant_id"]),
        thread_id=_thread_id(message),
        run_id=run_id,
        rule=MessageToThread(agent, message, text, data),
        service_metadata={KEY: origin},
        stream_mode=TOKENS,
        if_not_exists="create",
        extras=run_headers(),
    )


@dataclass(frozen=True, slots=True)
class MessageToThread:
    """The rule of a message: it answers the question of the thread, or is the input of a new run."""

    agent: Row
    message: Mapping[str, Any]
    text: str | None
    data: dict[str, Any] | None

    def missing(self) -> Refused:
        return unknown_task()

    def complete(self, conn: Connection, deployment: DeploymentRef, request: RunRequest) -> RunRequest:
        """Return the request with its input or its answer. Raises NotFound for an unknown task, and RpcError."""
        thread_id = request.thread_id
        assert thread_id is not None
        thread = _thread(conn, deployment.id, thread_id)
        if self.message.get("taskId"):
            task = TaskId.parse(self.message["taskId"])
            a2a_tasks.require(conn, deployment.id, self.agent["assistant_id"], **vars(task))
        if thread is None or not _waits(thread):
            schema = agents.input_of_thread(conn, deployment, thread_id, self.agent)
            return replace(request, input=_input(schema, self.text, self.data, self.message["messageId"]))
        origin = {**request.service_metadata[KEY], "after": _newest_message(thread)}
        return replace(
            request,
            service_metadata={KEY: origin},
            command={"resume": self.text if self.data is None else self.data},
            if_thread_status=(ThreadStatus.INTERRUPTED,),  # refused once another client has answered
        )


def _refuse_push_notifications(configuration: Mapping[str, Any]) -> None:
    if configuration.get("pushNotificationConfig") or configuration.get("taskPushNotificationConfig"):
        raise RpcError(PUSH_NOT_SUPPORTED, "Push notifications are not supported")


def _contents(parts: list[dict[str, Any]]) -> tuple[str | None, dict[str, Any] | None]:
    """Return the text and the data of a message, None for a missing one. Raises RpcError."""
    texts: list[str] = []
    data: dict[str, Any] | None = None
    for at, part in enumerate(parts):
        if isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part.get("data"), dict):
            data = {**(data or {}), **part["data"]}
        elif part.get("file") or part.get("raw") or part.get("url"):
            raise RpcError(CONTENT_NOT_SUPPORTED, f"message.parts.{at}: files are not supported")
        else:
            raise RpcError(INVALID_PARAMS, f"message.parts.{at}: must have a text, or an object as data")
    return "\n".join(texts) if texts else None, data


def _thread_id(message: Mapping[str, Any]) -> UUID:
    """Return the thread of the context or of the task that a message names, else a new id.

    Raises RpcError, and NotFound for an invalid task id.
    """
    context_id, task_id = message.get("contextId"), message.get("taskId")
    named = _uuid(context_id) if context_id else None
    if not task_id:
        return named or uuid7()
    thread_id = TaskId.parse(task_id).thread_id
    if named not in (None, thread_id):
        raise RpcError(INVALID_PARAMS, "message.taskId: belongs to another context")
    return thread_id


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise RpcError(INVALID_PARAMS, "message.contextId: must be a UUID") from None


def _thread(conn: Connection, deployment_id: UUID, thread_id: UUID) -> Any:
    try:
        return records.get(conn, deployment_id, thread_id)
    except NotFound:
        return None


def _waits(thread: Mapping[str, Any]) -> bool:
    """Return whether a graph waits for an answer on the thread."""
    return thread["status"] == ThreadStatus.INTERRUPTED and any((thread["interrupts"] or {}).values())


def _newest_message(thread: Mapping[str, Any]) -> Any:
    """Return the id of the last message before the answer. The answer itself has no id."""
    listed = messages_of(thread["values"])
    return listed[-1].get("id") if listed else None


def _input(schema: Any, text: str | None, data: dict[str, Any] | None, message_id: str) -> dict[str, Any]:
    if text is None:
        return data or {}
    if not takes_messages(schema):
        known = ", ".join(input_fields(schema)) or "none that are known"
        raise RpcError(
            INVALID_PARAMS,
            f"message.parts: this agent takes no text, since its input has no messages. Its fields: {known}."
            " Send them in a part with data.",
        )
    if data is not None and MESSAGES in data:
        raise RpcError(INVALID_PARAMS, "message.parts: send messages as text or as data, not as both")
    return {**(data or {}), MESSAGES: [user_message(text, message_id)]}
