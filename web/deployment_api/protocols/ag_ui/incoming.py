"""Requests for runs, made of `RunAgentInput`: new messages, changed state, answers to interrupts, regeneration.

A client sends its whole conversation each time. The rule `AgentInput` compares it with the thread, so that only what is
new becomes the input of the run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid5

import orjson
from sqlalchemy import Connection

from shared import agents, thread_updates
from shared.deployments.deployments import DeploymentRef
from shared.errors import Conflict, Invalid, Refused
from shared.infra.postgres import Row, connection
from shared.models import ThreadStatus
from shared.protocol.lifecycle import NODE_MISSING
from shared.runs import create, read
from shared.runs.drafts import RunRequest
from shared.threads import records, state
from shared.user_code import filters
from web.deployment_api.assistants import refuse_two_configurations
from web.deployment_api.protocols.ag_ui import interrupts, messages
from web.deployment_api.protocols.ag_ui.events import STREAM_MODES, RunName
from web.deployment_api.protocols.ag_ui.messages import Json
from web.deployment_api.protocols.ag_ui.schema import ForwardedProps
from web.deployment_api.protocols.ag_ui.state import HIDDEN
from web.deployment_api.protocols.conversation import (
    MESSAGES,
    input_fields,
    takes_messages,
    text_of,
)
from web.gate.context import allow, deployment, run_headers, unchecked_deployment, user, user_document
from web.schemas.validation import checked

KEY = "ag_ui"  # in the metadata and in the `configurable` of a run
MAJOR = "1"
TURNS = ("user", "assistant", "tool")  # roles of the messages that make up a conversation
STATES = 100  # read at once in search of a checkpoint


class NoRun(Refused):
    """The thread waits for answers that the request does not give, or has none to take."""

    def __init__(self, values: Any, waiting: list[Json]) -> None:
        super().__init__()
        self.values, self.waiting = values, waiting


class CheckpointNeeded(Refused):
    """The run regenerates the answer to a message: it needs the checkpoint before the message."""

    def __init__(self, message_id: str) -> None:
        super().__init__()
        self.message_id = message_id


def thread_id_of(text: str) -> UUID:
    """Return the id of the thread that a client names. Any text names a thread of the user, or of the deployment.

    With one thread for all users, a user could find out which names others have, and could take them.
    """
    if re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text):
        return UUID(text)
    caller, deployment_id = user(), unchecked_deployment().id
    return uuid5(deployment_id if caller is None else uuid5(deployment_id, caller.identity), text)


def is_old(version: str | None) -> bool:
    """Return whether a client speaks a version before 1.0. Raises Invalid for another major version."""
    if version is None:
        return True
    if version.partition(".")[0] != MAJOR:
        raise Invalid(
            f"protocolVersion: {version[:20]!r} is not supported: use 1.0", loc=("body", "protocolVersion")
        )
    return False


def name_of(body: Mapping[str, Any]) -> RunName:
    """Return the names of a run, as its events repeat them. Raises Invalid for an unsupported version."""
    old = is_old(body.get("protocolVersion"))
    return RunName(body["threadId"], body["runId"], body.get("parentRunId"), is_old=old)


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A client's `forwardedProps`: those that configure the run, and the others for the graph."""

    run: Mapping[str, Any]
    rest: Mapping[str, Any]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Forwarded:
        """Read the properties. Raises SchemaViolation and Invalid."""
        sent = body.get("forwardedProps") or {}
        loaded = checked(ForwardedProps, sent, "body", "forwardedProps")
        run = {name: value for name, value in loaded.items() if value is not None}
        refuse_two_configurations(run)
        return cls(run, {name: sent[name] for name in sent if name not in ForwardedProps._declared_fields})

    @property
    def cancels(self) -> bool:
        return self.run.get("on_disconnect", "cancel") == "cancel"

    @property
    def shows_subgraphs(self) -> bool:
        return bool(self.run.get("streamSubgraphs", True))


def run_request(name: RunName, rule: AgentInput) -> RunRequest:
    """Return the request for the run of a validated `RunAgentInput`. The rule completes it."""
    forwarded = rule.forwarded
    ids = {"thread_id": name.thread_id, "run_id": name.run_id, "parent_run_id": name.parent_run_id}
    passed_on = {KEY: dict(forwarded.rest)} if forwarded.rest else {}
    return RunRequest(
        assistant_id=rule.assistant,
        thread_id=thread_id_of(name.thread_id),
        rule=rule,
        service_metadata={KEY: {key: id for key, id in ids.items() if id is not None}},
        config=forwarded.run.get("config", {}),
        context=forwarded.run.get("context", {}),
        stream_mode=STREAM_MODES,
        stream_subgraphs=forwarded.shows_subgraphs and not name.is_old,
        multitask_strategy=forwarded.run.get("multitask_strategy", "reject"),
        if_not_exists="create",
        extras={**run_headers(), **passed_on},
    )


@dataclass(slots=True)
class AgentInput:
    """The rule of a run: completes the request from the state of the thread.

    `checkpoint_id` is the checkpoint before the message whose answer the run regenerates. `values` are those of the thread
    before the run, known after `complete`.
    """

    assistant: str
    body: Mapping[str, Any]
    forwarded: Forwarded
    checkpoint_id: str | None = None
    values: Any = None

    def missing(self) -> Refused:
        return create.missing()

    def complete(self, conn: Connection, deployment: DeploymentRef, request: RunRequest) -> RunRequest:
        """Return the request with its input or its answers. Locks the thread.

        Raises NotFound (assistant), Conflict, NoRun and CheckpointNeeded.
        """
        agent = agents.agent(conn, deployment, self.assistant)
        assert request.thread_id is not None
        thread = records.locked(conn, deployment.id, request.thread_id)
        self.values = thread["values"] if thread else None
        schema = agents.input_of_thread(conn, deployment, request.thread_id, agent)
        waiting = waiting_of(thread)
        if waiting and not self._starts_over(conn, deployment.id, request.thread_id):
            return self._answer(request, schema, waiting)
        entries = self.body.get("resume") or ()
        interrupts.answers(entries, ())  # logs that they answer nothing
        is_busy = thread is not None and thread["status"] == ThreadStatus.BUSY
        if (entries or self._command_resume is not None) and not self._new():
            raise Conflict(create.BUSY) if is_busy else NoRun(self.values, [])
        message = None if is_busy else self._regenerated()
        if message is None:
            return replace(request, input=self._input(schema, self._new()))
        if self.checkpoint_id is None:
            raise CheckpointNeeded(message["id"])
        checkpoint = {"checkpoint_id": self.checkpoint_id}
        return replace(request, input=self._input(schema, [message]), checkpoint=checkpoint)

    def _starts_over(self, conn: Connection, deployment_id: UUID, thread_id: UUID) -> bool:
        """Return whether a message replaces a question that cannot be answered: the revision lacks the node that asked."""
        if self.body.get("resume") or self._command_resume is not None or not self._new():
            return False
        newest = read.list_of_thread(conn, deployment_id, thread_id, limit=1, offset=0)
        return bool(newest) and (newest[0]["error"] or {}).get("error") == NODE_MISSING

    def _answer(self, request: RunRequest, schema: Any, waiting: list[Json]) -> RunRequest:
        """Return the request as a resume that answers every open interrupt. Raises NoRun."""
        entries, resume = self.body.get("resume") or (), self._command_resume
        if entries:
            resume = interrupts.answers(entries, waiting)
            if len(resume) < len(waiting):
                raise NoRun(self.values, waiting)
        elif resume is None:
            raise NoRun(self.values, waiting)
        new = messages.inputs(self._new()) if takes_messages(schema) else []
        update = {"update": {MESSAGES: new}} if new else {}
        return replace(
            request,
            command={"resume": resume, **update},
            if_thread_status=(ThreadStatus.INTERRUPTED,),  # refused once another request has answered
        )

    @property
    def _command_resume(self) -> Any:
        """The answer of a client before 1.0, or None."""
        return (self.forwarded.run.get("command") or {}).get("resume")

    def _new(self) -> list[Json]:
        """Return the messages of the client that the thread lacks."""
        known = {id for id, _ in messages.with_ids(self.values)}
        return [message for message in self.body["messages"] if message["id"] not in known]

    def _regenerated(self) -> Json | None:
        """Return the user's message whose answer the client requests again, or None.

        The client has dropped messages of the thread that follow it, or has changed its text.
        """
        conversation = [message for message in self.body["messages"] if message["role"] in TURNS]
        known = messages.with_ids(self.values)
        stored = {id: message for id, message in known if messages.role_of(message) in TURNS}
        users = [message for message in conversation if message["role"] == "user"]
        if not users or any(message["id"] not in stored for message in conversation):
            return None
        newest = users[-1]
        has_changed = text_of(messages.to_input(newest)) != text_of(stored[newest["id"]])
        has_dropped = conversation[-1]["id"] != next(reversed(stored))
        return newest if has_changed or has_dropped else None

    def _input(self, schema: Any, new: list[Json]) -> Json:
        names = input_fields(schema)
        before = self.values if isinstance(self.values, dict) else {}
        sent = self.body.get("state")
        sent = sent if isinstance(sent, dict) else {}
        changed = {
            name: value
            for name, value in sent.items()
            if name in names and name not in HIDDEN and (name not in before or before[name] != value)
        }
        tools, context = self.body.get("tools") or [], self.body.get("context") or []
        offered = {
            "tools": tools,
            "ag-ui": {"tools": tools, "context": context},
            "copilotkit": {"actions": tools, "context": context},
        }
        client_fields = {name: value for name, value in offered.items() if name in names}
        conversation = {MESSAGES: messages.inputs(new)} if takes_messages(schema) else {}
        return {**changed, **client_fields, **conversation}


def waiting_of(thread: Row | None) -> list[Json]:
    """Return the interrupts that wait for answers on a thread."""
    if thread is None or thread["status"] != ThreadStatus.INTERRUPTED:
        return []
    return records.interrupt_list(thread["interrupts"])


def checkpoint_before(thread_id: UUID, message_id: str) -> str:
    """Return the newest checkpoint of the thread that lacks a message. Raises Denied, NotFound and Conflict.

    A graph host reads the states. The search follows the parents of the newest state, since forks of the thread have
    other states in between.
    """
    granted = allow("threads", "read", thread_id=thread_id)
    with connection() as conn:
        filters.require_thread(conn, deployment().id, thread_id, granted.filter)
        newest = state.newest(conn, deployment().id, thread_id)
    checkpoint_id, before = newest.checkpoint_id, None
    while checkpoint_id is not None:
        document = {"op": "history", "limit": STATES, "before": before, "filter": None, "checkpoint_ns": None}
        answer = thread_updates.call_host(
            deployment(), thread_id, newest, {**document, "values": True}, user=user_document()
        )
        states = orjson.loads(answer)
        for each in states:
            if each["checkpoint_id"] == checkpoint_id:
                if all(id != message_id for id, _ in messages.with_ids(each["values"])):
                    return str(checkpoint_id)
                checkpoint_id = each["parent_checkpoint_id"]
        if len(states) < STATES:
            break
        before = states[-1]["checkpoint_id"]
    raise Conflict(f"messages: the checkpoint before message {message_id[:100]!r} is not stored any more")
