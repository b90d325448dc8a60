"""Requests and drafts of runs: freezing the configuration into a run, and authorizing it before it is inserted.

A `RunRequest` is validated. A `Draft` is resolved against assistant and thread, and authorized. Authorization handlers
see the run as it will be inserted, and it is inserted as they leave it. Its assistant is not looked up again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import Connection
from uuid_utils.compat import uuid7

from shared import assistants
from shared.assistants import Resolved
from shared.deployments.deployments import DeploymentRef
from shared.errors import Refused
from shared.infra.json_text import document_holds_nul
from shared.infra.postgres import Driver, dumps, in_transaction
from shared.models import RunStatus
from shared.runs import configurable
from shared.runs.configurable import RunIdentity
from shared.user_code.authorization import Ask, Authorize
from shared.user_code.filters import Filter


class ThreadRule(Protocol):
    """Completes a request from the current state of its thread."""

    def complete(self, conn: Connection, deployment: DeploymentRef, request: RunRequest) -> RunRequest:
        """Return the completed request. Locks the thread. Raises Refused if its state allows no run."""
        ...

    def missing(self) -> Refused:
        """Return the error for a thread that does not exist or that a filter hides: the caller sees no difference."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A validated request for a run. Defaults are those of the API."""

    assistant_id: str
    thread_id: UUID | None = None  # None: the run gets a thread of its own
    run_id: UUID = field(default_factory=uuid7)
    rule: ThreadRule | None = field(default=None, compare=False)  # the request depends on the thread's state
    input: Any = None
    webhook: str | None = None  # a validated URL
    command: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    service_metadata: dict[str, Any] = field(default_factory=dict)  # set by the service; overrides `metadata`
    config: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    stream_mode: Sequence[str] = ("values",)
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    interrupt_before: Any = None
    interrupt_after: Any = None
    multitask_strategy: str = "enqueue"
    if_not_exists: str = "reject"
    lists_thread: bool = True  # lists of threads show a thread that the run creates
    on_completion: str = "delete"
    durability: str = "async"
    after_seconds: float = 0
    checkpoint: dict[str, Any] = field(default_factory=dict)  # the checkpoint to start from; on a thread only
    feedback_keys: list[str] | None = None
    strict_resume: bool = False
    langsmith_tracer: dict[str, str] = field(default_factory=dict)  # `project_name`, `example_id`
    if_thread_status: Sequence[str] | None = None  # refuse the run if the thread has another status
    extras: dict[str, Any] = field(default_factory=dict)  # additional entries of `configurable`


# Kwargs of a run that are copied unchanged from the request: name → field of the request.
KWARGS_FROM_REQUEST = {
    "stream_mode": "stream_mode",
    "interrupt_before": "interrupt_before",
    "interrupt_after": "interrupt_after",
    "webhook": "webhook",
    "feedback_keys": "feedback_keys",
    "subgraphs": "stream_subgraphs",
    "resumable": "stream_resumable",
    "durability": "durability",
}


@dataclass(frozen=True, slots=True)
class Creator:
    """The creator of runs at a deployment, and the limits that apply.

    `authorize` calls the handlers of the deployment's own authorization, which exists if it is not None. `trace` are
    entries of `configurable` that place the run in a distributed trace. A limit of None is not checked.
    """

    deployment: DeploymentRef
    user: Mapping[str, Any] | None = None  # the user document that the deployment's authorization returned
    authorize: Authorize | None = None
    key_id: str = ""
    name: str = ""  # the creator in records of answers; empty: the user, else the key
    address: str = ""  # the client address, or what stands for it in records of answers; empty: unknown
    request_id: str = ""
    trace: Mapping[str, Any] = field(default_factory=dict)
    parent_run_id: UUID | None = None  # the run whose code creates these runs
    max_pending_per_thread: int = 1_000
    max_pending: int | None = None  # for the deployment
    event_retention_seconds: int = 900


@dataclass(frozen=True, slots=True)
class Draft:
    """A run resolved against its thread and assistant: everything that will be frozen into its row.

    `snapshot` is the completed request that the authorization handlers saw, None if the thread refused it. The insert
    completes the request again with the thread locked and compares both. `refusal` is the error of the assistant, which
    is raised after authorization. The filters are those that the handlers returned.
    """

    request: RunRequest  # completed from the thread, with the input and metadata that the handlers left
    assistant: Resolved
    identity: RunIdentity
    thread_id: UUID
    kwargs: dict[str, Any]  # everything the graph host needs, except the input
    snapshot: RunRequest | None
    names_assistant: bool = True  # the caller, and not the thread, determines the assistant
    refusal: Refused | None = None
    thread_filter: Filter | None = None
    assistant_filter: Filter | None = None

    @property
    def run_id(self) -> UUID:
        return self.request.run_id

    @property
    def is_stateless(self) -> bool:
        return self.request.thread_id is None

    @property
    def is_temporary(self) -> bool:
        return _is_temporary(self.request)

    @property
    def resume(self) -> Any:
        """The value that the run resumes its thread with, or None. LangGraph treats a null resume as none."""
        return (self.request.command or {}).get("resume")

    @property
    def is_filtered(self) -> bool:
        return bool(self.thread_filter or self.assistant_filter)

    @property
    def metadata(self) -> dict[str, Any]:
        """The run's own metadata. A request may override `graph_id`, but not `assistant_id`."""
        request, assistant = self.request, self.assistant
        sent = {**request.config.get("metadata", {}), "graph_id": assistant.graph_id, **request.metadata}
        return {**sent, **request.service_metadata, "assistant_id": str(assistant.assistant_id)}


def _is_temporary(request: RunRequest) -> bool:
    return request.thread_id is None and request.on_completion == "delete"


def complete(conn: Connection | Driver, creator: Creator, request: RunRequest) -> RunRequest:
    """Return the request as its thread's state completes it, placed in the creator's trace. Raises Refused."""
    if request.rule is not None:
        request = request.rule.complete(in_transaction(conn), creator.deployment, request)
    return replace(request, extras={**request.extras, **creator.trace}) if creator.trace else request


def draft_run(conn: Connection | Driver, creator: Creator, request: RunRequest) -> Draft:
    """Return the draft of a run. Raises the error with which the thread or the assistant refuses it."""
    completed = complete(conn, creator, request)
    assistant = assistants.resolve(conn, creator.deployment, completed.assistant_id)
    return freeze(creator, completed, assistant)


def draft_as_far_as_possible(conn: Connection, creator: Creator, request: RunRequest) -> Draft:
    """Return the draft for the authorization handlers. Raises no error about the thread or the assistant.

    Such an error is raised after authorization, so a caller without access cannot probe which objects exist.
    """
    try:
        completed = complete(conn, creator, request)
    except Refused:  # the insert completes the request again
        completed = None
    drafted = completed or request
    assistant, refusal = _placeholder(drafted), None
    if drafted.assistant_id:
        try:
            assistant = assistants.resolve(conn, creator.deployment, drafted.assistant_id)
        except Refused as error:
            refusal = error
    names_assistant = bool(request.assistant_id) and drafted.assistant_id == request.assistant_id
    draft = freeze(creator, drafted, assistant)
    return replace(draft, snapshot=completed, names_assistant=names_assistant, refusal=refusal)


def _placeholder(request: RunRequest) -> Resolved:
    """Return an assistant for the question to the handlers, if the run's assistant cannot be resolved."""
    return Resolved(
        assistant_id=assistants.named_id(request.assistant_id),
        graph_id="",
        config={},
        context={},
        metadata={},
        revision_id=UUID(int=0),
        pool="",
    )


def freeze(creator: Creator, request: RunRequest, assistant: Resolved) -> Draft:
    """Return the draft of a completed request for a run of this assistant."""
    thread_id = request.thread_id or uuid7()
    if request.thread_id is None:
        request = replace(request, checkpoint={})
    identity = RunIdentity(
        run_id=str(request.run_id),
        thread_id=str(thread_id),
        graph_id=assistant.graph_id,
        assistant_id=str(assistant.assistant_id),
        langgraph_request_id=creator.request_id,
        **configurable.of_user(creator.user),
    )
    kwargs = _kwargs(request, assistant, identity)
    return Draft(request, assistant, identity, thread_id, kwargs, snapshot=request)


def _kwargs(request: RunRequest, assistant: Resolved, identity: RunIdentity) -> dict[str, Any]:
    """Return everything the graph host needs, except the input. The run's configuration overrides the assistant's."""
    run_entries = configurable.without_reserved_keys(
        request.context or request.config.get("configurable", {})
    )
    context = {**configurable.without_reserved_keys(assistant.context), **run_entries}
    config = {**assistant.config, **request.config}
    entries = {**configurable.without_reserved_keys(assistant.config.get("configurable", {})), **run_entries}
    config["configurable"] = configurable.of_run(entries, identity, request.extras, request.checkpoint)
    kwargs = {
        "command": request.command,
        "config": config,
        "context": context,
        **{name: getattr(request, source) for name, source in KWARGS_FROM_REQUEST.items()},
        "temporary": _is_temporary(request),
        "checkpoint_during": request.durability != "exit",
    }
    if request.strict_resume:
        kwargs["strict_resume"] = True
    if request.langsmith_tracer:
        kwargs["langsmith_tracer"] = request.langsmith_tracer
    return kwargs


# Authorization


def authorization_request(draft: Draft) -> Ask:
    """Return the question for the authorization handler of `threads`, `create_run`."""
    return Ask("threads", "create_run", _value(draft))


def reads_assistant(draft: Draft) -> bool:
    """Return whether the run uses a created assistant, for whose reading the handlers must be asked too.

    Every caller may use the default assistants of graphs.
    """
    if not draft.request.assistant_id:
        return False
    return draft.assistant.assistant_id != assistants.default_id(draft.assistant.graph_id)


def _value(draft: Draft) -> dict[str, Any]:
    request = draft.request
    return {
        "thread_id": None if draft.is_stateless else draft.thread_id,
        "assistant_id": draft.assistant.assistant_id if request.assistant_id else None,
        "run_id": draft.run_id,
        "status": RunStatus.PENDING,
        "metadata": {**request.metadata, **request.service_metadata},
        "prevent_insert_if_inflight": request.multitask_strategy == "reject",
        "multitask_strategy": request.multitask_strategy,
        "if_not_exists": request.if_not_exists,
        "after_seconds": request.after_seconds,
        "kwargs": deepcopy({"input": request.input, **draft.kwargs}),
    }


def apply_handler_changes(draft: Draft, value: Mapping[str, Any]) -> Draft:
    """Return the draft with the metadata, input, config and context that a handler left in `value`.

    Keeps the run's identity: a handler cannot change ids or the user. Raises ValueError if `value` is not a valid run.
    """
    metadata, kwargs = _object(value, "metadata"), _object(value, "kwargs")
    config, context = _object(kwargs, "config"), _object(kwargs, "context")
    entries = _object(config, "configurable")
    if document_holds_nul(dumps(metadata)):
        raise ValueError("a handler returned metadata that contains NUL")
    run_entries = {**configurable.without_reserved_keys(entries), **vars(draft.identity)}
    return replace(
        draft,
        request=replace(draft.request, input=kwargs.get("input"), metadata=metadata),
        kwargs={
            **draft.kwargs,
            "config": {**config, "configurable": run_entries},
            "context": configurable.without_reserved_keys(context),
        },
    )


def _object(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    document = value.get(name)
    if document is None and name in value:
        return {}
    if not isinstance(document, dict):
        raise ValueError(f"a handler returned a run whose {name} is not an object")
    return document
