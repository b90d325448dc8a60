"""Objects of A2A, and their JSON in both versions: 1.0 tells the type of an object by its field, 0.3 by `kind`.

The card of an assistant serves clients of either version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shared.infra.postgres import Row
from shared.runs.a2a_tasks import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, SUBMITTED, WORKING
from web.deployment_api.protocols.conversation import input_fields, takes_messages
from web.gate.addresses import deployment_address
from web.gate.context import configured_url, deployment, settings

USER, AGENT = "user", "agent"
STATES = (SUBMITTED, WORKING, COMPLETED, FAILED, CANCELED, INPUT_REQUIRED)

Part = dict[str, Any]  # {"text": …} or {"data": …}


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
    """A run as A2A clients see it. `id` consists of the ids of its thread, which is its context, and of the run."""

    id: str
    context_id: str
    state: str
    at: datetime
    message: Message | None = None  # explains the state: an error or a question
    artifacts: Sequence[Artifact] = ()
    history: Sequence[Message] = ()


class Version1:
    """JSON of protocol version 1.0."""

    def sent(self, task: Task) -> Any:
        """Return the result of sending a message."""
        return {"task": self.task(task)}

    def task(self, task: Task, *, with_artifacts: bool = True) -> dict[str, Any]:
        shown = {
            "id": task.id,
            "contextId": task.context_id,
            "status": self._status(task),
            "history": [self._message(message, task) for message in task.history],
        }
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
        at = task.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        message = task.message
        explanation = {} if message is None else {"message": self._message(message, task, names_task=True)}
        return {"state": self._state(task.state), "timestamp": at, **explanation}

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
        return {"kind": next(iter(part)), **part}


VERSIONS = ("1.0", "0.3")
BINDING = "JSONRPC"
SCOPE_HEADER = "LangGraph-A2A-History-Scope"
SCOPES = CONTEXT, TASK = "context", "task"
HISTORY_SCOPE = {
    "uri": "https://langchain.com/a2a/extensions/history-scope/v1",
    "description": "Selects the history that a task shows: of its whole context, or of the task alone",
    "required": False,
    "params": {"header": SCOPE_HEADER, "values": list(SCOPES), "default": CONTEXT},
}
KEY = {"location": "header", "name": "X-Api-Key"}


def card(agent: Row) -> dict[str, Any]:
    name = agent["name"] or agent["graph_id"]
    description = agent["description"] or f"Runs the assistant {name!r}."
    schema = agent["input_schema"]
    inputs = ["application/json", *(["text/plain"] if takes_messages(schema) else [])]
    outputs = ["application/json", "text/plain"]
    served = deployment()
    address = deployment_address(
        settings(), configured_url(), served.address_name, served.http.get("mount_prefix")
    )
    url = f"{address}/a2a/{agent['assistant_id']}"
    skill = {
        "id": str(agent["assistant_id"]),
        "name": name,
        "description": f"{description} Its input has the fields {', '.join(input_fields(schema)) or 'of a JSON object'}.",
        "tags": ["assistant", agent["graph_id"]],
        "examples": [],
        "inputModes": inputs,
        "outputModes": outputs,
    }
    return {
        "name": name,
        "description": description,
        "version": str(agent["version"]),
        "url": url,
        "preferredTransport": BINDING,
        "protocolVersion": "0.3.0",
        "supportedInterfaces": [
            {"url": url, "protocolBinding": BINDING, "protocolVersion": version} for version in VERSIONS
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": False,
            "stateTransitionHistory": False,
            "extendedAgentCard": True,
            "extensions": [HISTORY_SCOPE],
        },
        "supportsAuthenticatedExtendedCard": True,
        "defaultInputModes": inputs,
        "defaultOutputModes": outputs,
        "skills": [skill],
        # the last field is for version 1.0, the others are for 0.3
        "securitySchemes": {
            "api_key": {"type": "apiKey", "in": "header", "name": KEY["name"], "apiKeySecurityScheme": KEY}
        },
        "security": [{"api_key": []}],
        "securityRequirements": [{"schemes": {"api_key": {"list": []}}}],
    }
