"""Objects of A2A, and their JSON: the type of an object is the name of its field in version 1.0, and `kind` in 0.3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shared.runs.a2a_tasks import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, SUBMITTED, WORKING
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.a2a.errors import with_details
from web.deployment_api.protocols.a2a.parts import Part
from web.deployment_api.protocols.json_rpc import Id, RpcError

USER, AGENT = "user", "agent"
STATES = (SUBMITTED, WORKING, COMPLETED, FAILED, CANCELED, INPUT_REQUIRED)

SCOPES = CONTEXT, TASK = "context", "task"  # of a task's history


@dataclass(frozen=True, kw_only=True)
class Message:
    id: str
    role: str
    parts: Sequence[Part]


@dataclass(frozen=True, kw_only=True)
class Artifact:
    id: str
    name: str
    parts: Sequence[Part]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Runs of a thread as A2A clients see them. `id` consists of the ids of the thread and of the first run."""

    id: str
    context_id: str
    state: str
    at: datetime
    message: Message | None = None  # explains the state: an error or a question
    artifacts: Sequence[Artifact] = ()
    history: Sequence[Message] | None = ()  # None: left out
    invalid: str = ""  # why the graph's response cannot be shown


class Version1:
    """JSON of protocol version 1.0."""

    def failure(self, id: Id | None, error: RpcError, *, task_id: str | None = None) -> bytes:
        return json_rpc.failure(id, with_details(error, task_id))

    def sent(self, task: Task) -> Any:
        """Return the result of sending a message."""
        return {"task": self.task(task)}

    def task(self, task: Task, *, with_artifacts: bool = True) -> dict[str, Any]:
        shown = {
            "id": task.id,
            "contextId": task.context_id,
            "status": self._status(task),
        }
        if task.history is not None:
            shown["history"] = [self._message(message, task) for message in task.history]
        if with_artifacts and task.artifacts:
            shown["artifacts"] = [self._artifact(artifact) for artifact in task.artifacts]
        return shown

    def first(self, task: Task) -> Any:
        """Return the first item of a stream."""
        return {"task": self.task(task)}

    def status_update(self, task: Task, *, is_last: bool) -> Any:
        return {"statusUpdate": {**self._ids(task), "status": self._status(task)}}

    def artifact_update(self, task: Task, artifact: Artifact) -> Any:
        update = {"artifact": self._artifact(artifact), "append": False, "lastChunk": True}
        return {"artifactUpdate": {**self._ids(task), **update}}

    def _ids(self, task: Task) -> dict[str, Any]:
        return {"taskId": task.id, "contextId": task.context_id}

    def _status(self, task: Task) -> dict[str, Any]:
        message = task.message
        explanation = {} if message is None else {"message": self._message(message, task, names_task=True)}
        return {"state": self._state(task.state), "timestamp": json_rpc.timestamp(task.at), **explanation}

    def _message(self, message: Message, task: Task, *, names_task: bool = False) -> dict[str, Any]:
        ids = self._ids(task) if names_task else {"contextId": task.context_id}
        parts = [self._part(part) for part in message.parts]
        return {"messageId": message.id, **ids, "role": self._role(message.role), "parts": parts}

    def _artifact(self, artifact: Artifact) -> dict[str, Any]:
        parts = [self._part(part) for part in artifact.parts]
        return {"artifactId": artifact.id, "name": artifact.name, "parts": parts}

    def _state(self, state: str) -> str:
        return f"TASK_STATE_{state.upper().replace('-', '_')}"

    def _role(self, role: str) -> str:
        return f"ROLE_{role.upper()}"

    def _part(self, part: Part) -> dict[str, Any]:
        return part


class Version03(Version1):
    """JSON of protocol version 0.3."""

    def failure(self, id: Id | None, error: RpcError, *, task_id: str | None = None) -> bytes:
        return json_rpc.failure(id, error)

    def sent(self, task: Task) -> Any:
        return self.task(task)

    def task(self, task: Task, *, with_artifacts: bool = True) -> dict[str, Any]:
        return {"kind": "task", **super().task(task, with_artifacts=with_artifacts)}

    def first(self, task: Task) -> Any:
        return self.task(task)

    def status_update(self, task: Task, *, is_last: bool) -> Any:
        update = super().status_update(task, is_last=is_last)["statusUpdate"]
        return {"kind": "status-update", **update, "final": is_last}

    def artifact_update(self, task: Task, artifact: Artifact) -> Any:
        return {"kind": "artifact-update", **super().artifact_update(task, artifact)["artifactUpdate"]}

    def _message(self, message: Message, task: Task, *, names_task: bool = False) -> dict[str, Any]:
        return {"kind": "message", **super()._message(message, task, names_task=names_task)}

    def _state(self, state: str) -> str:
        return state

    def _role(self, role: str) -> str:
        return role

    def _part(self, part: Part) -> dict[str, Any]:
        kind = next(iter(part))
        if kind == "data" and not isinstance(part["data"], dict):
            return {"kind": kind, **part, "data": {"value": part["data"]}}  # this version requires an object
        if kind not in ("raw", "url"):
            return {"kind": kind, **part}
        names = {"raw": "bytes", "url": "uri", "mediaType": "mimeType", "filename": "name"}
        return {"kind": "file", "file": {names[name]: value for name, value in part.items()}}
