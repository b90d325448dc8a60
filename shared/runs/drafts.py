"""Drafts of runs: freezing the configuration into a run, and authorizing it before it is inserted.

Authorization handlers see the run as it will be inserted, and it is inserted as they leave it. Its assistant is not
looked up again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from uuid_utils.compat import uuid7

from shared import assistants
from shared.assistants import Resolved
from shared.deployments.deployments import DeploymentRef
from shared.errors import Refused
from shared.infra.json_text import document_holds_nul
from shared.infra.postgres import Driver, dumps
from shared.models import RunStatus
from shared.runs import configurable
from shared.runs.configurable import RunIdentity
from shared.user_code.authorization import Ask


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A validated request for a run. Defaults are those of the API."""

    assistant_id: str
    input: Any = None
    webhook: str | None = None  # a validated URL
    command: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    own_metadata: dict[str, Any] = field(default_factory=dict)  # set by the service; overrides `metadata`
    config: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    stream_mode: Sequence[str] = ("values",)
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    interrupt_before: Any = None
    interrupt_after: Any = None
    multitask_strategy: str = "enqueue"
    if_not_exists: str = "reject"
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
AS_ASKED = {
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
class Draft:
    """A run that is not yet inserted, with everything that will be frozen into it."""

    request: RunRequest
    assistant: Resolved
    identity: RunIdentity
    run_id: UUID
    thread_id: UUID
    is_stateless: bool
    kwargs: dict[str, Any]  # everything the graph host needs, except the input

    @property
    def is_temporary(self) -> bool:
        return self.is_stateless and self.request.on_completion == "delete"

    @property
    def metadata(self) -> dict[str, Any]:
        """The run's own metadata. A request may override `graph_id`, but not `assistant_id`."""
        request, assistant = self.request, self.assistant
        asked = {**request.config.get("metadata", {}), "graph_id": assistant.graph_id, **request.metadata}
        return {**asked, **request.own_metadata, "assistant_id": str(assistant.assistant_id)}


def draft(
    request: RunRequest,
    assistant: Resolved,
    *,
    thread_id: UUID | None,
    run_id: UUID | None = None,
    request_id: str = "",
    user: Mapping[str, Any] | None = None,
) -> Draft:
    """Return the draft of a run of this assistant. Without `thread_id`, the run gets a new thread."""
    is_stateless = thread_id is None
    run_id, thread_id = run_id or uuid7(), thread_id or uuid7()
    if is_stateless:
        request = replace(request, checkpoint={})
    identity = RunIdentity(
        run_id=str(run_id),
        thread_id=str(thread_id),
        graph_id=assistant.graph_id,
        assistant_id=str(assistant.assistant_id),
        langgraph_request_id=request_id,
        **configurable.of_user(user),
    )
    temporary = is_stateless and request.on_completion == "delete"
    kwargs = _kwargs(request, assistant, identity, temporary=temporary)
    return Draft(request, assistant, identity, run_id, thread_id, is_stateless, kwargs)


def _kwargs(
    request: RunRequest, assistant: Resolved, identity: RunIdentity, *, temporary: bool
) -> dict[str, Any]:
    """Return everything the graph host needs, except the input. The run's configuration overrides the assistant's."""
    own = configurable.given(request.context or request.config.get("configurable", {}))
    context = {**configurable.given(assistant.context), **own}
    config = {**assistant.config, **request.config}
    entries = {**configurable.given(assistant.config.get("configurable", {})), **own}
    config["configurable"] = configurable.of_run(entries, identity, request.extras, request.checkpoint)
    kwargs = {
        "command": request.command,
        "config": config,
        "context": context,
        **{name: getattr(request, asked) for name, asked in AS_ASKED.items()},
        "temporary": temporary,
        "checkpoint_during": request.durability != "exit",
    }
    if request.strict_resume:
        kwargs["strict_resume"] = True
    if request.langsmith_tracer:
        kwargs["langsmith_tracer"] = request.langsmith_tracer
    return kwargs


# Authorization


def ask(draft: Draft) -> Ask:
    """Return the question for the authorization handler of `threads`, `create_run`.

    If the draft `has_own_assistant`, the caller also asks whether the assistant may be read.
    """
    return Ask("threads", "create_run", _value(draft))


def has_own_assistant(draft: Draft) -> bool:
    """Return whether the run uses a created assistant. Every caller may use the default assistants of graphs."""
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
        "metadata": {**request.metadata, **request.own_metadata},
        "prevent_insert_if_inflight": request.multitask_strategy == "reject",
        "multitask_strategy": request.multitask_strategy,
        "if_not_exists": request.if_not_exists,
        "after_seconds": request.after_seconds,
        "kwargs": deepcopy({"input": request.input, **draft.kwargs}),
    }


def changed(draft: Draft, value: Mapping[str, Any]) -> Draft:
    """Return the draft with the metadata, input, config and context that a handler left in `value`.

    Keeps the run's identity: a handler cannot change ids or the user. Raises ValueError if `value` is not a valid run.
    """
    metadata, kwargs = _object(value, "metadata"), _object(value, "kwargs")
    config, context = _object(kwargs, "config"), _object(kwargs, "context")
    entries = _object(config, "configurable")
    if document_holds_nul(dumps(metadata)):
        raise ValueError("a handler returned metadata that contains NUL")
    own = {**configurable.given(entries), **vars(draft.identity)}
    return replace(
        draft,
        request=replace(draft.request, input=kwargs.get("input"), metadata=metadata),
        kwargs={
            **draft.kwargs,
            "config": {**config, "configurable": own},
            "context": configurable.given(context),
        },
    )


def _object(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    if found is None and name in value:
        return {}
    if not isinstance(found, dict):
        raise ValueError(f"a handler returned a run whose {name} is not an object")
    return found


def unknown(request: RunRequest) -> Resolved:
    """Return a placeholder for an assistant that cannot be resolved, so that the handler can be asked about the run."""
    return Resolved(
        assistant_id=assistants.named_id(request.assistant_id),
        graph_id="",
        config={},
        context={},
        metadata={},
        revision_id=UUID(int=0),
        pool="",
    )


def resolved(
    conn: Connection | Driver, deployment: DeploymentRef, request: RunRequest
) -> tuple[Resolved, Refused | None]:
    """Return the run's assistant and None, or a placeholder and the error.

    Authorization runs before the error is raised, so a caller without access cannot probe which assistants exist.
    """
    try:
        return assistants.resolve(conn, deployment, request.assistant_id), None
    except Refused as error:
        return unknown(request), error
